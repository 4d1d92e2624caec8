#include "common/model/layout.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string_view>

#include "common/base/text.h"
#include "common/model/parts.h"
#include "kernels/hash.h"

namespace lockstep::model {
namespace {

constexpr char kMagic[8] = {'L', 'S', 'L', 'A', 'Y', 'O', 'U', 'T'};
constexpr uint16_t kLayoutFormat = 2;
constexpr uint16_t kJoinedFormat = 3;

struct EncodedHeader {  // 32 bytes, FORMAT.md
  char magic[8];
  uint16_t format;
  uint16_t header_bytes;
  uint32_t block_bytes;
  uint64_t data_bytes;
  uint32_t tensor_count;
  uint32_t attachment_count;
};
static_assert(sizeof(EncodedHeader) == 32);

// Names go into JSON headers, logs and error messages: printable, well-formed UTF-8 keeps all three honest.
bool IsCleanUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto lead = static_cast<uint8_t>(text[at]);
    if (lead < 0x20 || lead == 0x7f) return false;
    const size_t length = lead < 0x80 ? 1 : Utf8Length(text.substr(at));  // mostly ASCII, which needs no call
    if (length == 0) return false;
    at += length;
  }
  return true;
}

Status BadTensor(const TensorMeta& tensor, const std::string& problem) {
  return {ErrorCode::kBadData, Cat("tensor \"", CleanText(tensor.name, 200), "\": ", problem)};
}

Status CheckName(const TensorMeta& tensor) {
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorName || !IsCleanUtf8(tensor.name)) {
    return {ErrorCode::kBadData,
            Cat("a tensor's name must be 1 to ", kMaxTensorName, " bytes of UTF-8 without control characters; got ",
                tensor.name.size(), " bytes at offset ", tensor.offset)};
  }
  if (tensor.name == "__metadata__") return BadTensor(tensor, "the name is reserved by the safetensors format");
  return OkStatus();
}

// Which of the tensors' names were met: their numbers, next to a bit of each name's hash, in one piece of memory. A set
// of the library's, with a node for each of 100,000 names, makes most of what a layout costs.
class NameSet {
 public:
  explicit NameSet(const std::vector<TensorMeta>& tensors)
      : tensors_(tensors), slots_(std::bit_ceil(2 * tensors.size() + 1)) {}

  // False when there is one of this name already. REQUIRES `tensor` to be of the tensors given.
  bool Add(const TensorMeta& tensor) {
    const uint64_t hash = Hash64(tensor.name.data(), tensor.name.size());
    const auto tag = static_cast<uint32_t>(hash >> 32);
    for (size_t at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      Slot& slot = slots_[at];
      if (slot.number == 0) {
        slot = {tag, static_cast<uint32_t>(&tensor - tensors_.data()) + 1};
        return true;
      }
      if (slot.tag == tag && tensors_[slot.number - 1].name == tensor.name) return false;
    }
  }

 private:
  struct Slot {
    uint32_t tag = 0;
    uint32_t number = 0;  // counted from 1; 0: free
  };
  const std::vector<TensorMeta>& tensors_;
  std::vector<Slot> slots_;  // at most half are taken
};

Status CheckTensors(const std::vector<TensorMeta>& tensors, uint64_t& data_bytes) {
  if (tensors.size() > kMaxTensors) {
    return {ErrorCode::kBadData, Cat("the layout has ", tensors.size(), " tensors; the limit is ", kMaxTensors)};
  }
  NameSet names(tensors);
  uint64_t end = 0;
  for (const TensorMeta& tensor : tensors) {
    LS_RETURN_IF_ERROR(CheckName(tensor));
    if (!names.Add(tensor)) return BadTensor(tensor, "the name is given twice");
    LS_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor));
    if (tensor.offset != end) {
      return BadTensor(tensor, Cat("it starts at byte ", tensor.offset, " but the tensors before it end at ", end,
                                   tensor.offset < end ? ": they overlap" : ": there is a gap"));
    }
    const uint32_t unit = FindDType(tensor.dtype)->unit_bytes;
    if (tensor.offset % unit != 0) {
      return BadTensor(tensor, Cat("its offset ", tensor.offset, " is not a multiple of its element unit of ", unit,
                                   " bytes; order tensors by falling element size"));
    }
    end += bytes;
    if (end > kMaxDataBytes) return BadTensor(tensor, Cat("the model is larger than ", HumanBytes(kMaxDataBytes)));
  }
  if (end == 0) return {ErrorCode::kBadData, "the layout has no bytes: give at least one tensor with elements"};
  data_bytes = end;
  return OkStatus();
}

Bytes Encode(const std::vector<TensorMeta>& tensors, const Attachments& attachments, uint32_t block_bytes,
             uint64_t data_bytes, const std::vector<ModelLayout::Part>& parts) {
  EncodedHeader header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.format = parts.empty() ? kLayoutFormat : kJoinedFormat;
  header.header_bytes = sizeof header;
  header.block_bytes = block_bytes;
  header.data_bytes = data_bytes;
  header.tensor_count = static_cast<uint32_t>(tensors.size());
  header.attachment_count = static_cast<uint32_t>(attachments.size());
  size_t bytes = sizeof header;
  for (const TensorMeta& tensor : tensors) bytes += 4 + 8 * tensor.shape.size() + tensor.name.size();
  Bytes out;
  out.reserve(bytes);
  Append(out, header);
  for (const TensorMeta& tensor : tensors) {
    Append(out, static_cast<uint16_t>(tensor.name.size()));
    Append(out, static_cast<uint8_t>(tensor.dtype));
    Append(out, static_cast<uint8_t>(tensor.shape.size()));
    for (const uint64_t dim : tensor.shape) Append(out, dim);
    AppendBytes(out, AsBytes(std::string_view(tensor.name)));
  }
  AppendAttachments(out, attachments);
  if (!parts.empty()) Append(out, static_cast<uint32_t>(parts.size()));
  for (const ModelLayout::Part& part : parts) {
    Append(out, static_cast<uint32_t>(part.first_tensor));
    AppendBytes(out, AsBytes(part.digest.bytes));
  }
  return out;
}

// Appends the smallest unit among the tensors of each block of `tensors`, which end at `end`. All units are powers of
// two and tensors are aligned to theirs, so the block's start and length are multiples of it.
void AppendBlockUnits(std::span<const TensorMeta> tensors, uint32_t block_bytes, uint64_t end,
                      std::vector<uint8_t>& units) {
  const uint64_t begin = tensors.front().offset;
  const size_t before = units.size();
  units.resize(before + (end - begin + block_bytes - 1) / block_bytes, 8);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t its_end = i + 1 < tensors.size() ? tensors[i + 1].offset : end;
    if (its_end == tensors[i].offset) continue;
    const auto unit = static_cast<uint8_t>(FindDType(tensors[i].dtype)->unit_bytes);
    for (uint64_t block = (tensors[i].offset - begin) / block_bytes; block <= (its_end - 1 - begin) / block_bytes;
         ++block) {
      units[before + block] = std::min(units[before + block], unit);
    }
  }
}

Status CheckBlockBytes(uint32_t block_bytes) {
  if (block_bytes < kMinBlockBytes || block_bytes > kMaxBlockBytes || (block_bytes & (block_bytes - 1)) != 0) {
    return {ErrorCode::kBadData,
            Cat("block size ", block_bytes, " is not a power of two from ", kMinBlockBytes, " to ", kMaxBlockBytes)};
  }
  return OkStatus();
}

Status Truncated() {
  return {ErrorCode::kProtocol, "encoded layout: truncated"};
}

Result<TensorMeta> DecodeTensor(ByteReader& reader, uint64_t offset) {
  TensorMeta tensor;
  uint16_t name_bytes = 0;
  uint8_t dtype = 0;
  uint8_t rank = 0;
  if (!reader.Take(name_bytes) || !reader.Take(dtype) || !reader.Take(rank)) return Truncated();
  tensor.dtype = static_cast<DType>(dtype);
  tensor.offset = offset;
  tensor.shape.reserve(rank);
  for (uint8_t i = 0; i < rank; ++i) {
    uint64_t dim = 0;
    if (!reader.Take(dim)) return Truncated();
    tensor.shape.push_back(dim);
  }
  ByteView name;
  if (!reader.TakeBytes(name_bytes, name)) return Truncated();
  tensor.name = AsText(name);
  return tensor;
}

}  // namespace

Result<uint64_t> TensorBytes(const TensorMeta& tensor) {
  const DTypeInfo* info = FindDType(tensor.dtype);
  if (info == nullptr) return BadTensor(tensor, Cat("unknown dtype number ", static_cast<int>(tensor.dtype)));
  if (tensor.shape.size() > kMaxTensorRank) {
    return BadTensor(tensor, Cat("rank ", tensor.shape.size(), " is over the limit of ", kMaxTensorRank));
  }
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return uint64_t{0};
  uint64_t elements = 1;
  for (const uint64_t dim : tensor.shape) {
    if (dim > kMaxDataBytes * 2 / elements) return BadTensor(tensor, "its shape overflows");
    elements *= dim;
  }
  const uint64_t bits = elements * info->bits;  // at most 2^45 elements of 64 bits: no overflow
  if (bits % 8 != 0)
    return BadTensor(tensor, Cat(elements, " elements of ", info->bits, " bits are no whole number of bytes"));
  if (bits / 8 > kMaxDataBytes) return BadTensor(tensor, Cat("it is larger than ", HumanBytes(kMaxDataBytes)));
  return bits / 8;
}

Result<std::shared_ptr<const ModelLayout>> ModelLayout::Create(std::vector<TensorMeta> tensors, uint32_t block_bytes,
                                                               Attachments attachments) {
  return Make(std::move(tensors), block_bytes, std::move(attachments), {});
}

Result<std::shared_ptr<const ModelLayout>> ModelLayout::Join(
    const std::vector<std::shared_ptr<const ModelLayout>>& parts) {
  std::vector<TensorMeta> tensors;
  Attachments attachments;
  std::vector<Part> joined;
  uint64_t end = 0;
  for (const auto& part : parts) {
    if (!part->parts().empty()) return Status(ErrorCode::kBadData, "a part is a whole of parts itself");
    if (part->block_bytes() != parts[0]->block_bytes()) {
      return Status(ErrorCode::kBadData, Cat("one part has blocks of ", parts[0]->block_bytes(), " bytes, another of ",
                                             part->block_bytes(), "; give all agents the same --block-bytes"));
    }
    joined.push_back({.first_tensor = tensors.size(), .digest = part->digest()});
    for (TensorMeta tensor : part->tensors()) {
      tensor.offset += end;
      tensors.push_back(std::move(tensor));
    }
    end += part->data_bytes();
    for (const auto& [name, text] : part->attachments()) {
      if (name == kPartAttachment) continue;
      const auto [at, added] = attachments.emplace(name, text);
      if (added || at->second == text) continue;
      return Status(ErrorCode::kBadData, Cat("two parts have different attachments \"", name, "\""));
    }
  }
  return Make(std::move(tensors), parts[0]->block_bytes(), std::move(attachments), std::move(joined));
}

Result<std::shared_ptr<const ModelLayout>> ModelLayout::Make(std::vector<TensorMeta> tensors, uint32_t block_bytes,
                                                             Attachments attachments, std::vector<Part> parts) {
  LS_RETURN_IF_ERROR(CheckBlockBytes(block_bytes));
  LS_RETURN_IF_ERROR(CheckAttachments(attachments));
  const auto in_order = [](const TensorMeta& a, const TensorMeta& b) { return a.offset < b.offset; };
  if (!std::is_sorted(tensors.begin(), tensors.end(), in_order)) {
    std::stable_sort(tensors.begin(), tensors.end(), in_order);
  }
  uint64_t data_bytes = 0;
  LS_RETURN_IF_ERROR(CheckTensors(tensors, data_bytes));
  if ((data_bytes - 1) / block_bytes >= kMaxBlocks) {
    return Status(ErrorCode::kBadData,
                  Cat("the model has more than ", kMaxBlocks, " blocks of ", block_bytes, " bytes; use larger blocks"));
  }
  std::shared_ptr<ModelLayout> layout(new ModelLayout);
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t first = parts[i].first_tensor;
    if (first < tensors.size() && (i == 0 ? first == 0 : first > parts[i - 1].first_tensor)) continue;
    return Status(ErrorCode::kBadData, "a part of the layout has no tensors");
  }
  layout->encoded_ = Encode(tensors, attachments, block_bytes, data_bytes, parts);
  layout->digest_ = LayoutDigest{Hash128(layout->encoded_)};
  const std::span<const TensorMeta> all(tensors);
  if (parts.empty()) AppendBlockUnits(all, block_bytes, data_bytes, layout->block_units_);
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    const size_t tensors_end = last ? tensors.size() : parts[i + 1].first_tensor;
    parts[i].offset = tensors[parts[i].first_tensor].offset;
    parts[i].first_block = layout->block_count();
    AppendBlockUnits(all.subspan(parts[i].first_tensor, tensors_end - parts[i].first_tensor), block_bytes,
                     last ? data_bytes : tensors[tensors_end].offset, layout->block_units_);
  }
  layout->parts_ = std::move(parts);
  layout->tensors_ = std::move(tensors);
  layout->attachments_ = std::move(attachments);
  layout->data_bytes_ = data_bytes;
  layout->block_bytes_ = block_bytes;
  return std::shared_ptr<const ModelLayout>(std::move(layout));
}

Result<std::shared_ptr<const ModelLayout>> ModelLayout::Decode(ByteView encoded, bool joined) {
  ByteReader reader(encoded);
  EncodedHeader header{};
  if (!reader.Take(header)) return Truncated();
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) {
    return Status(ErrorCode::kProtocol, "encoded layout: it does not start with \"LSLAYOUT\"");
  }
  const bool is_joined = joined && header.format == kJoinedFormat;
  if (header.format != kLayoutFormat && !is_joined) {
    return Status(ErrorCode::kProtocol, Cat("encoded layout: format ", header.format, " is not known here (known: ",
                                            kLayoutFormat, "); use matching releases on both ends"));
  }
  if (header.header_bytes != sizeof header) {
    return Status(ErrorCode::kProtocol,
                  Cat("encoded layout: its header has ", header.header_bytes, " bytes, not ", sizeof header));
  }
  // A tensor takes at least 5 bytes here, so a count that the input cannot hold is refused before anything is reserved.
  if (header.tensor_count > kMaxTensors || header.tensor_count > encoded.size() / 5) return Truncated();
  std::vector<TensorMeta> tensors;
  tensors.reserve(header.tensor_count);
  uint64_t offset = 0;
  for (uint64_t i = 0; i < header.tensor_count; ++i) {
    LS_ASSIGN_OR_RETURN(TensorMeta tensor, DecodeTensor(reader, offset));
    LS_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor));
    offset += bytes;
    if (offset > kMaxDataBytes) return BadTensor(tensor, Cat("the model is larger than ", HumanBytes(kMaxDataBytes)));
    tensors.push_back(std::move(tensor));
  }
  LS_ASSIGN_OR_RETURN(Attachments attachments, TakeAttachments(reader, header.attachment_count));
  std::vector<Part> parts;
  uint32_t part_count = 0;
  if (is_joined && (!reader.Take(part_count) || part_count == 0)) return Truncated();
  while (parts.size() < part_count) {
    uint32_t first_tensor = 0;
    Part& part = parts.emplace_back();
    if (!reader.Take(first_tensor) || !reader.Take(part.digest)) return Truncated();
    part.first_tensor = first_tensor;
  }
  if (!reader.empty()) return Status(ErrorCode::kProtocol, "encoded layout: bytes after its last entry");
  if (offset != header.data_bytes) {
    return Status(ErrorCode::kProtocol,
                  Cat("encoded layout: it says ", header.data_bytes, " bytes but its tensors have ", offset));
  }
  return Make(std::move(tensors), header.block_bytes, std::move(attachments), std::move(parts));
}

uint64_t ModelLayout::tensor_bytes(size_t tensor) const {
  const uint64_t end = tensor + 1 < tensors_.size() ? tensors_[tensor + 1].offset : data_bytes_;
  return end - tensors_[tensor].offset;
}

std::vector<BlockIndex> ModelLayout::AllBlocks() const {
  std::vector<BlockIndex> blocks(block_count());
  std::iota(blocks.begin(), blocks.end(), 0);
  return blocks;
}

ByteRange ModelLayout::block_range(BlockIndex block) const {
  uint64_t begin = 0;  // of its part
  uint64_t end = data_bytes_;
  if (!parts_.empty()) {
    const auto after = std::upper_bound(parts_.begin(), parts_.end(), block,
                                        [](BlockIndex at, const Part& part) { return at < part.first_block; });
    if (after != parts_.end()) end = after->offset;
    begin = std::prev(after)->offset;
    block -= std::prev(after)->first_block;
  }
  const uint64_t offset = begin + uint64_t{block} * block_bytes_;
  return {offset, std::min<uint64_t>(block_bytes_, end - offset)};
}

size_t ModelLayout::TensorAt(uint64_t offset) const {
  const auto after = std::upper_bound(tensors_.begin(), tensors_.end(), offset,
                                      [](uint64_t at, const TensorMeta& tensor) { return at < tensor.offset; });
  return static_cast<size_t>(after - tensors_.begin()) - 1;
}

Status AssignOffsets(std::vector<TensorMeta>& tensors) {
  const auto lay_out = [&](bool& aligned) -> Status {
    uint64_t end = 0;
    aligned = true;
    for (TensorMeta& tensor : tensors) {
      LS_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor));
      if (end % FindDType(tensor.dtype)->unit_bytes != 0) aligned = false;
      tensor.offset = end;
      end += bytes;
      if (end > kMaxDataBytes) return BadTensor(tensor, Cat("the model is larger than ", HumanBytes(kMaxDataBytes)));
    }
    return OkStatus();
  };
  bool aligned = true;
  LS_RETURN_IF_ERROR(lay_out(aligned));
  if (aligned) return OkStatus();
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorMeta& a, const TensorMeta& b) {
    return FindDType(a.dtype)->unit_bytes > FindDType(b.dtype)->unit_bytes;
  });
  return lay_out(aligned);
}

}  // namespace lockstep::model
