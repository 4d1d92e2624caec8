#include "export_plugin/in_place.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "common/base/text.h"
#include "export_plugin/exporter/pinned_pages.h"

namespace lockstep::abi {
namespace {

using Clock = std::chrono::steady_clock;

// Copied, and reported, at a time: the agent compares it while the next is copied.
constexpr uint64_t kBatchBytes = uint64_t{32} << 20;
// Less waits for more: a report costs as much as copying it.
constexpr uint64_t kLeastReportedBytes = uint64_t{4} << 20;
// Less is as fast without.
constexpr uint64_t kLeastPinnedBytes = uint64_t{1} << 20;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

// Copies that are run in batches. One is reported while the next is on its way, be it of the next Write().
class InPlace::Copies {
 public:
  explicit Copies(InPlace& model) : model_(model) {}
  ~Copies() { model_.engine_->Stop(); }  // nothing writes on after an error

  Status Add(const lockstep_source& source) {
    const ByteRange target = model_.tensors_[source.tensor].range;
    const auto* from = static_cast<const std::byte*>(source.address);
    std::byte* const to = model_.client_->write_data();
    const auto conversion = source.convert != 0 ? ElementConversion::kF32ToBF16 : ElementConversion::kNone;
    const layout::ElementBytes element = exporter::ElementsOf(conversion);
    model_.PinForGpu(from, {to + target.offset, target.bytes});
    for (uint64_t at = 0; at < target.bytes;) {
      const uint64_t room = (kBatchBytes - batch_.bytes) / element.target * element.target;
      if (room == 0) {
        LS_RETURN_IF_ERROR(StartBatch());
        continue;
      }
      const uint64_t bytes = std::min(target.bytes - at, room);
      const layout::StridedCopy copy{.source_offset = at / element.target * element.source,
                                     .target_offset = target.offset + at,
                                     .row_bytes = bytes};
      copies_.push_back({from, to, copy, conversion});
      batch_.ranges.push_back(StridedRange::Plain({target.offset + at, bytes}));
      batch_.bytes += bytes;
      at += bytes;
    }
    return OkStatus();
  }

  Status Finish() {
    if (!copies_.empty()) LS_RETURN_IF_ERROR(StartBatch());
    while (!under_way_.empty()) LS_RETURN_IF_ERROR(WaitForBatch());
    return OkStatus();
  }

 private:
  using ElementConversion = exporter::ElementConversion;

  Status StartBatch() {
    LS_RETURN_IF_ERROR(model_.engine_->Start(copies_));
    copies_.clear();
    under_way_.push_back(std::exchange(batch_, {}));
    LS_RETURN_IF_ERROR(model_.Report(kLeastReportedBytes));
    return under_way_.size() < model_.engine_->most_under_way() ? OkStatus() : WaitForBatch();
  }

  Status WaitForBatch() {
    LS_RETURN_IF_ERROR(model_.engine_->Wait());
    WrittenRanges& all = model_.unreported_;
    const WrittenRanges& done = under_way_.front();
    all.ranges.insert(all.ranges.end(), done.ranges.begin(), done.ranges.end());
    all.bytes += done.bytes;
    under_way_.pop_front();
    return OkStatus();
  }

  InPlace& model_;
  std::vector<exporter::PlacedCopy> copies_;  // of batch_
  WrittenRanges batch_;                       // that is being filled
  std::deque<WrittenRanges> under_way_;
};

Result<std::unique_ptr<InPlace>> InPlace::Open(client::RankOptions options, std::vector<std::string> names,
                                               uint32_t threads) {
  auto model = std::make_unique<InPlace>();
  // The layout sorts by offset, and empty tensors share theirs.
  std::unordered_map<std::string_view, size_t> positions;
  const model::ModelLayout& layout = *options.layout;
  for (size_t i = 0; i < layout.tensors().size(); ++i) positions[layout.tensors()[i].name] = i;
  for (std::string& name : names) {
    const size_t i = positions[name];
    const model::TensorMeta& tensor = layout.tensors()[i];
    model->tensors_.push_back({std::move(name), {tensor.offset, layout.tensor_bytes(i)}, tensor.dtype});
  }
  LS_ASSIGN_OR_RETURN(model->pool_,
                      exporter::NewCopyPool(threads == 0 ? exporter::UsualCopyThreads(options.ranks) : threads));
  LS_ASSIGN_OR_RETURN(model->engine_, exporter::NewCopyEngine(model->pool_.get()));
  LS_ASSIGN_OR_RETURN(model->client_, client::RankClient::Open(std::move(options)));
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
  const Tensor& tensor = tensors_[source.tensor];
  if (source.convert != 0 && tensor.dtype != model::DType::kBF16) {
    return {ErrorCode::kBadData, Cat("tensor \"", tensor.name, "\" is not BF16, and nothing else is converted to")};
  }
  const uint64_t bytes = source.convert != 0 ? 2 * tensor.range.bytes : tensor.range.bytes;
  if (source.bytes == bytes && (source.address != nullptr || bytes == 0)) return OkStatus();
  return {ErrorCode::kBadData, Cat("tensor \"", tensor.name, "\" has ", bytes, " bytes; ", source.bytes, " were given",
                                   source.address == nullptr ? ", at no address" : "")};
}

Result<std::byte*> InPlace::Begin(Version version) {
  const Clock::time_point began = Clock::now();
  LS_ASSIGN_OR_RETURN(std::byte* const data, client_->Begin(version));
  version_ = version;
  unreported_ = {};
  began_ = began;
  stats_ = {.begin_seconds = SecondsSince(began)};
  return data;
}

Status InPlace::Write(std::span<const lockstep_source> sources) {
  LS_RETURN_IF_ERROR(CheckWriting());
  for (const lockstep_source& source : sources) LS_RETURN_IF_ERROR(CheckSource(source));
  Copies copies(*this);
  for (const lockstep_source& source : sources) LS_RETURN_IF_ERROR(copies.Add(source));
  return copies.Finish();
}

Status InPlace::Report(uint64_t least_bytes) {
  if (unreported_.ranges.empty() || unreported_.bytes < least_bytes) return OkStatus();
  const WrittenRanges written = std::exchange(unreported_, {});
  LS_RETURN_IF_ERROR(client_->RangesDone(written.ranges));
  stats_.bytes_copied += written.bytes;
  return OkStatus();
}

// Whole pages, since those at its ends may be a neighbour's, too.
void InPlace::PinForGpu(const void* source, std::span<std::byte> target) {
  const bool wanted = pins_ && target.size() >= kLeastPinnedBytes && !pinned_.contains(target.data());
  if (!wanted || !engine_->OnDevice(source)) return;
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t before = -reinterpret_cast<uintptr_t>(target.data()) % page_bytes;
  const ByteRange whole{before, (target.size() - before) / page_bytes * page_bytes};
  const StridedRange pages = StridedRange::Plain(whole);
  Result<exporter::PinnedMemory> pinned = engine_->Pin(exporter::PagesOf(target.data(), {&pages, 1}, page_bytes));
  pins_ = pinned.ok();
  if (pins_) pinned_[target.data()] = *std::move(pinned);
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
  LS_RETURN_IF_ERROR(Report(0));
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
