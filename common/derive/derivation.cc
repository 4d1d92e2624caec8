#include "common/derive/derivation.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "common/base/text.h"
#include "common/derive/modules.h"
#include "common/model/model_name.h"
#include "common/model/module_names.h"
#include "kernels/hash.h"

namespace lockstep::derive {
namespace {

using model::DType;
using model::TensorMeta;

// To be raised when a source would get other derived bytes than before.
constexpr uint32_t kRevision = 1;
constexpr std::string_view kConfig = "config.json";
constexpr size_t kMaxRequestBytes = 256 << 10;
constexpr int kMaxDepth = 32;
constexpr std::string_view kHead = "lm_head";
constexpr std::string_view kQuantizationConfig = "quantization_config";
// Of a part's source. Less would read more blocks of the source twice, more would leave fewer parts than threads.
constexpr uint64_t kPartBytes = 4 << 20;

kernels::FloatType FloatTypeOf(DType dtype) {
  if (dtype == DType::kF32) return kernels::FloatType::kF32;
  return dtype == DType::kF16 ? kernels::FloatType::kF16 : kernels::FloatType::kBF16;
}

uint64_t CeilDiv(uint64_t a, uint64_t b) {
  return (a + b - 1) / b;
}

// Room for what a part reads, of the thread.
std::byte* Scratch(uint64_t bytes) {
  thread_local std::vector<std::byte> scratch;
  if (scratch.size() < bytes) scratch.resize(bytes);
  return scratch.data();
}

}  // namespace

// Goes through the source's tensors twice: names and shapes of the derived ones first, which have offsets only once all
// are known, and then the parts.
class Derivation::Builder {
 public:
  Builder(const model::ModelLayout& source, std::string model) : source_(source) { made_.model_ = std::move(model); }

  Result<std::shared_ptr<const Derivation>> Build(Json config) {
    const auto at = config.find(kQuantizationConfig);
    if (at == config.end() || !at->is_object()) {
      return Status(ErrorCode::kBadData, "its config.json has no quantization_config, which names the format");
    }
    LS_ASSIGN_OR_RETURN(format_, FindFormat(*at));
    made_.format_ = format_->name;
    const auto left_out = at->find(format_->left_out);
    LS_ASSIGN_OR_RETURN(const Selection selection,
                        Selection::Create(config, left_out == at->end() ? nullptr : &*left_out));
    LS_RETURN_IF_ERROR(Select(selection));
    (*at)[std::string(format_->left_out)] = ModulesLeftOut();
    LS_RETURN_IF_ERROR(LayOut(config));
    for (size_t tensor = 0; tensor < source_.tensors().size(); ++tensor) AddParts(tensor);
    made_.quantised_ = static_cast<size_t>(std::count(taken_.begin(), taken_.end(), true));
    return std::make_shared<const Derivation>(std::move(made_));
  }

 private:
  Status Select(const Selection& selection) {
    for (const TensorMeta& tensor : source_.tensors()) {
      taken_.push_back(selection.Takes(tensor));
      if (taken_.back() && !IsFloat(tensor.dtype)) {
        return {ErrorCode::kBadData, Cat("tensor ", tensor.name, " is ", model::FindDType(tensor.dtype)->name,
                                         "; weights to quantise are BF16, F16 or F32; leave its module out")};
      }
      if (taken_.back() && tensor.shape[1] % format_->encoding->multiple_of != 0) {
        return {ErrorCode::kBadData,
                Cat("tensor ", tensor.name, " has ", tensor.shape[1], " columns; ", format_->name,
                    " needs a multiple of ", format_->encoding->multiple_of, "; leave its module out")};
      }
      if (selection.HoldsExperts(tensor)) {
        return {ErrorCode::kBadData,
                Cat("tensor ", tensor.name, " has the experts of a layer in one; publish each as tensors of its own")};
      }
    }
    LS_RETURN_IF_ERROR(CheckFused());
    if (std::find(taken_.begin(), taken_.end(), true) != taken_.end()) return OkStatus();
    return {ErrorCode::kBadData, "no tensor of the model is a weight of its decoder's linear layers"};
  }

  // What engines run as one module has one format.
  Status CheckFused() const {
    std::map<std::string, size_t> first;  // tensor of each fused module
    for (size_t i = 0; i < taken_.size(); ++i) {
      const TensorMeta& tensor = source_.tensors()[i];
      const auto module = model::ModuleOf(tensor);
      if (!module || tensor.shape.size() != 2) continue;
      const auto [at, added] = first.try_emplace(model::FusedModule(*module), i);
      if (added || taken_[at->second] == taken_[i]) continue;
      return {ErrorCode::kBadData,
              Cat("of ", source_.tensors()[at->second].name, " and ", tensor.name,
                  ", which engines run as one module, one would be quantised; leave out both, or none")};
    }
    return OkStatus();
  }

  // Engines are told exact names, those of our own rule too, so that they expect what is there. The head is named also
  // where it is tied to the embedding: some engines quantise heads by default.
  Json ModulesLeftOut() const {
    Json names = Json::array();
    bool has_head = false;
    for (size_t i = 0; i < taken_.size(); ++i) {
      const auto module = model::ModuleOf(source_.tensors()[i]);
      if (!module || taken_[i] || source_.tensors()[i].shape.size() < 2) continue;
      names.push_back(*module);
      has_head = has_head || *module == kHead;
    }
    if (!has_head) names.push_back(kHead);
    return names;
  }

  static std::string NameOf(const TensorMeta& weight, std::string_view suffix) {
    return Cat(*model::ModuleOf(weight), ".", suffix);
  }

  uint64_t ScaleColumns(const TensorMeta& weight) const {
    return format_->encoding->scale_columns == 0 ? 1 : CeilDiv(weight.shape[1], format_->encoding->scale_columns);
  }

  Status LayOut(const Json& config) {
    std::vector<TensorMeta> tensors;
    for (size_t i = 0; i < taken_.size(); ++i) {
      const TensorMeta& from = source_.tensors()[i];
      if (!taken_[i]) {
        tensors.push_back(from);
        continue;
      }
      const uint64_t rows = from.shape[0];
      tensors.push_back({.name = NameOf(from, format_->values),
                         .dtype = format_->encoding->values,
                         .shape = {rows, from.shape[1] / format_->encoding->values_in_byte}});
      if (!format_->scales.empty()) {
        tensors.push_back({.name = NameOf(from, format_->scales),
                           .dtype = format_->encoding->scales,
                           .shape = {CeilDiv(rows, format_->encoding->scale_rows), ScaleColumns(from)}});
      }
      if (!format_->global.empty()) {
        tensors.push_back({.name = NameOf(from, format_->global), .dtype = DType::kF32, .shape = {1}});
      }
    }
    LS_RETURN_IF_ERROR(model::AssignOffsets(tensors));
    model::Attachments attachments = source_.attachments();
    attachments.erase(std::string(kRequests));
    attachments[std::string(kConfig)] = config.dump(2) + "\n";
    LS_RETURN_IF_ERROR(model::CheckAttachments(attachments));
    LS_ASSIGN_OR_RETURN(made_.layout_,
                        model::ModelLayout::Create(std::move(tensors), source_.block_bytes(), std::move(attachments)));
    for (const TensorMeta& tensor : made_.layout_->tensors()) offsets_.emplace(tensor.name, tensor.offset);
    return OkStatus();
  }

  void AddParts(size_t index) {
    const TensorMeta& tensor = source_.tensors()[index];
    if (!taken_[index]) {
      const uint64_t target = offsets_.at(tensor.name);
      const uint64_t bytes = source_.tensor_bytes(index);
      for (uint64_t at = 0; at < bytes; at += kPartBytes) {
        const uint64_t some = std::min(kPartBytes, bytes - at);
        made_.parts_.push_back(
            {.bands = {{.source = {tensor.offset + at, some}, .values = {target + at, some}}}, .globals = {}});
      }
      return;
    }
    Part* whole = nullptr;
    if (!format_->global.empty()) {
      const auto [at, added] = fused_.try_emplace(model::FusedModule(*model::ModuleOf(tensor)), made_.parts_.size());
      if (added) made_.parts_.emplace_back();
      whole = &made_.parts_[at->second];
      whole->globals.push_back(offsets_.at(NameOf(tensor, format_->global)));
    }
    AddBands(tensor, source_.tensor_bytes(index), whole);
  }

  // To `whole`, or, where that is null, each as a part of its own.
  void AddBands(const TensorMeta& tensor, uint64_t bytes, Part* whole) {
    const uint64_t rows = tensor.shape[0];
    const uint64_t columns = tensor.shape[1];
    const uint64_t row_bytes = bytes / rows;
    const uint64_t values_bytes = columns / format_->encoding->values_in_byte;
    const uint64_t scales_bytes = ScaleColumns(tensor) * model::FindDType(format_->encoding->scales)->bits / 8;
    const uint64_t values = offsets_.at(NameOf(tensor, format_->values));
    const uint64_t scales = format_->scales.empty() ? 0 : offsets_.at(NameOf(tensor, format_->scales));
    const uint64_t unit = std::max<uint64_t>(format_->encoding->scale_rows, 1);
    const uint64_t step = std::max<uint64_t>(kPartBytes / row_bytes / unit, 1) * unit;
    for (uint64_t row = 0; row < rows; row += step) {
      const uint64_t some = std::min(step, rows - row);
      Band band{.source = {tensor.offset + row * row_bytes, some * row_bytes},
                .format = format_,
                .type = FloatTypeOf(tensor.dtype),
                .rows = some,
                .columns = columns,
                .values = {values + row * values_bytes, some * values_bytes},
                .scales = {}};
      if (!format_->scales.empty()) {
        const uint64_t scale_row = row / format_->encoding->scale_rows;
        band.scales = {scales + scale_row * scales_bytes, CeilDiv(some, format_->encoding->scale_rows) * scales_bytes};
      }
      if (whole == nullptr) {
        made_.parts_.push_back({.bands = {band}, .globals = {}});
      } else {
        whole->bands.push_back(band);
      }
    }
  }

  const model::ModelLayout& source_;
  const Format* format_ = nullptr;
  std::vector<bool> taken_;  // by tensor: is quantised
  std::map<std::string, uint64_t> offsets_;
  std::map<std::string, size_t> fused_;  // parts of formats with a global scale
  Derivation made_;
};

Result<std::vector<std::shared_ptr<const Derivation>>> Derivation::All(const model::ModelLayout& source) {
  std::vector<std::shared_ptr<const Derivation>> all;
  const auto at = source.attachments().find(std::string(kRequests));
  if (at == source.attachments().end()) return all;
  if (at->second.size() > kMaxRequestBytes) {
    return Status(ErrorCode::kBadData, Cat("attachment \"", kRequests, "\" has ", at->second.size(),
                                           " bytes; the limit is ", kMaxRequestBytes));
  }
  bool deep = false;
  // Copies of JSON recurse.
  const auto note_depth = [&](int depth, Json::parse_event_t, Json&) { return !(deep = deep || depth > kMaxDepth); };
  const Json requests = Json::parse(at->second, note_depth, /*allow_exceptions=*/false);
  if (deep) return Status(ErrorCode::kBadData, Cat("attachment \"", kRequests, "\": it is nested too deeply"));
  if (!requests.is_object() || requests.empty() || requests.size() > kMaxRequests) {
    return Status(ErrorCode::kBadData, Cat("attachment \"", kRequests, "\": give an object of 1 to ", kMaxRequests,
                                           " names of models, each with its config.json"));
  }
  for (const auto& [name, config] : requests.items()) {
    const std::string context = Cat("derived model ", CleanText(name));
    if (const Status status = model::CheckModelName(name); !status.ok()) return status.WithContext(context);
    if (!config.is_object()) return Status(ErrorCode::kBadData, Cat(context, ": its config.json is no object"));
    auto made = Builder(source, name).Build(config);
    if (!made.ok()) return made.status().WithContext(context);
    all.push_back(*std::move(made));
  }
  return all;
}

RunId Derivation::RunOf(const RunId& source) const {
  Bytes names;
  AppendBytes(names, AsBytes(std::string_view("lockstep derived run")));
  Append(names, kRevision);
  AppendBytes(names, AsBytes(source.bytes));
  AppendBytes(names, AsBytes(layout_->digest().bytes));
  return RunId{Hash128(names)};
}

std::vector<ByteRange> Derivation::SourcesOf(size_t part) const {
  std::vector<ByteRange> ranges;
  for (const Band& band : parts_[part].bands) ranges.push_back(band.source);
  return ranges;
}

std::vector<ByteRange> Derivation::TargetsOf(size_t part) const {
  std::vector<ByteRange> ranges;
  for (const Band& band : parts_[part].bands) {
    ranges.push_back(band.values);
    if (band.scales.bytes != 0) ranges.push_back(band.scales);
  }
  for (const uint64_t global : parts_[part].globals) ranges.push_back({global, sizeof(float)});
  return ranges;
}

Status Derivation::Make(size_t index, const Read& read, const Place& place) const {
  const Part& part = parts_[index];
  float global = 0;
  if (!part.globals.empty()) {
    // As integers NaN is more than all else.
    uint32_t most = 0;
    for (const Band& band : part.bands) {
      std::byte* const bytes = Scratch(band.source.bytes);
      LS_RETURN_IF_ERROR(read(band.source, bytes));
      most = std::max(most, std::bit_cast<uint32_t>(kernels::AbsMax({bytes, band.type, band.rows, band.columns})));
    }
    global = part.bands[0].format->encoding->global(std::bit_cast<float>(most));
    for (const uint64_t at : part.globals) std::memcpy(place({at, sizeof global}, {}).values, &global, sizeof global);
  }
  for (const Band& band : part.bands) {
    const Room room = place(band.values, band.scales);
    if (band.format == nullptr) {
      LS_RETURN_IF_ERROR(read(band.source, room.values));
      continue;
    }
    std::byte* const bytes = Scratch(band.source.bytes);
    if (part.globals.empty() || part.bands.size() > 1) LS_RETURN_IF_ERROR(read(band.source, bytes));
    band.format->encoding->quantise({bytes, band.type, band.rows, band.columns}, global, room.values, room.scales);
  }
  return OkStatus();
}

}  // namespace lockstep::derive
