#include "export_plugin/in_place.h"

#include <algorithm>
#include <unordered_map>

#include "common/base/text.h"

namespace lockstep::abi {
namespace {

using Clock = std::chrono::steady_clock;

// Copied, and reported, at a time: the agent compares it while the next is copied.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

// Copies that wait to be run together.
class InPlace::Batch {
 public:
  explicit Batch(InPlace& model) : model_(model) {}

  Status Add(const lockstep_source& source) {
    const ByteRange target = model_.tensors_[source.tensor];
    const auto* from = static_cast<const std::byte*>(source.address);
    for (uint64_t at = 0; at < target.bytes;) {
      const uint64_t bytes = std::min(target.bytes - at, kBatchBytes - bytes_);
      std::byte* to = model_.client_->write_data() + target.offset + at;
      copies_.push_back({.source = from + at, .target = to, .copy = {.row_bytes = bytes}});
      ranges_.push_back(StridedRange::Plain({target.offset + at, bytes}));
      at += bytes;
      bytes_ += bytes;
      if (bytes_ == kBatchBytes) LS_RETURN_IF_ERROR(Run());
    }
    return OkStatus();
  }

  Status Run() {
    LS_RETURN_IF_ERROR(model_.engine_->Run(copies_));
    LS_RETURN_IF_ERROR(model_.client_->RangesDone(ranges_));
    model_.stats_.bytes_copied += bytes_;
    copies_.clear();
    ranges_.clear();
    bytes_ = 0;
    return OkStatus();
  }

 private:
  InPlace& model_;
  std::vector<exporter::PlacedCopy> copies_;
  std::vector<StridedRange> ranges_;
  uint64_t bytes_ = 0;
};

Result<std::unique_ptr<InPlace>> InPlace::Open(buffer::RankOptions options, std::vector<std::string> names,
                                               uint32_t threads) {
  auto model = std::make_unique<InPlace>();
  // The layout sorts by offset, and empty tensors share theirs.
  std::unordered_map<std::string_view, ByteRange> ranges;
  const model::ModelLayout& layout = *options.layout;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    ranges[layout.tensors()[i].name] = {layout.tensors()[i].offset, layout.tensor_bytes(i)};
  }
  for (const std::string& name : names) model->tensors_.push_back(ranges[name]);
  model->names_ = std::move(names);
  LS_ASSIGN_OR_RETURN(model->pool_,
                      exporter::NewCopyPool(threads == 0 ? exporter::UsualCopyThreads(options.ranks) : threads));
  model->engine_ = exporter::NewHostCopyEngine(model->pool_.get());
  LS_ASSIGN_OR_RETURN(model->client_, buffer::RankClient::Open(std::move(options)));
  return model;
}

Status InPlace::CheckWriting() const {
  LS_RETURN_IF_ERROR(client_->CheckMayCall());
  return client_->writing() ? OkStatus()
                            : Status(ErrorCode::kState, "no version is being written; call lockstep_begin");
}

Status InPlace::CheckSource(const lockstep_source& source) const {
  if (source.tensor >= tensors_.size()) {
    return {ErrorCode::kBadData, Cat("there is no tensor ", source.tensor, "; the model has ", tensors_.size())};
  }
  const uint64_t bytes = tensors_[source.tensor].bytes;
  if (source.bytes == bytes && (source.address != nullptr || bytes == 0)) return OkStatus();
  return {ErrorCode::kBadData, Cat("tensor \"", names_[source.tensor], "\" has ", bytes, " bytes; ", source.bytes,
                                   " were given", source.address == nullptr ? ", at no address" : "")};
}

Result<std::byte*> InPlace::Begin(Version version) {
  const Clock::time_point began = Clock::now();
  LS_ASSIGN_OR_RETURN(std::byte* const data, client_->Begin(version));
  version_ = version;
  began_ = began;
  stats_ = {.begin_seconds = SecondsSince(began)};
  return data;
}

Status InPlace::Write(std::span<const lockstep_source> sources) {
  LS_RETURN_IF_ERROR(CheckWriting());
  for (const lockstep_source& source : sources) LS_RETURN_IF_ERROR(CheckSource(source));
  Batch batch(*this);
  for (const lockstep_source& source : sources) LS_RETURN_IF_ERROR(batch.Add(source));
  return batch.Run();
}

Status InPlace::RangesDone(std::span<const lockstep_range> ranges) {
  LS_RETURN_IF_ERROR(CheckWriting());
  std::vector<StridedRange> converted;
  uint64_t bytes = 0;
  for (const lockstep_range& range : ranges) {
    converted.push_back(StridedRange::Plain({range.offset, range.bytes}));
    bytes += range.bytes;
  }
  LS_RETURN_IF_ERROR(client_->RangesDone(converted));
  stats_.bytes_copied += bytes;
  return OkStatus();
}

Status InPlace::Commit(std::string_view label) {
  LS_RETURN_IF_ERROR(CheckWriting());
  LS_RETURN_IF_ERROR(client_->SetLabel(label));
  LS_RETURN_IF_ERROR(client_->Commit());
  stats_.total_seconds = SecondsSince(began_);
  return OkStatus();
}

Status InPlace::Abort(Version version, std::string_view reason) {
  LS_RETURN_IF_ERROR(CheckWriting());
  if (version != version_) {
    return {ErrorCode::kState, Cat("version ", version, " is not being written; version ", version_, " is")};
  }
  return client_->Abort(reason);
}

}  // namespace lockstep::abi
