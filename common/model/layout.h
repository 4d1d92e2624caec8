// ModelLayout (tensors_meta): the ordered HuggingFace tensors of a model, where each lies in the data section, and the
// small files that belong to them.
//
// Invariants, checked by Create() and Decode() before anything is allocated, so that every holder may rely on them:
//   tensors lie back to back in offset order, without gap or overlap, and fill [0, data_bytes);
//   each starts at a multiple of its unit size; shape × bits is a whole number of bytes and equals its size;
//   names are unique, 1..1024 bytes of UTF-8 without control characters; counts and sizes are within the limits below;
//   attachments are as CheckAttachments wants them.
// A joined layout is that of a whole whose parts are models of their own: the tensors of one part after those of the
// other. The blocks of each part begin with it, so that they are the part's own blocks.
// Immutable; share it by shared_ptr. The digest names it: equal digests mean equal layouts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/attachments.h"
#include "common/model/dtype.h"

namespace lockstep::model {

inline constexpr uint32_t kDefaultBlockBytes = 256 * 1024;
inline constexpr uint32_t kMinBlockBytes = 4 * 1024;
inline constexpr uint32_t kMaxBlockBytes = 1024 * 1024;
inline constexpr uint64_t kMaxTensors = 1'000'000;
inline constexpr size_t kMaxTensorName = 1024;
inline constexpr size_t kMaxTensorRank = 16;
inline constexpr uint64_t kMaxBlocks = uint64_t{1} << 26;     // 16 TiB of default blocks
inline constexpr uint64_t kMaxDataBytes = uint64_t{1} << 44;  // 16 TiB

struct TensorMeta {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<uint64_t> shape;  // empty: a scalar
  uint64_t offset = 0;          // bytes into the data section

  bool operator==(const TensorMeta&) const = default;
};

// The tensor's size; kBadData, naming it, when shape × dtype overflows, is over kMaxDataBytes or is no whole number of
// bytes.
Result<uint64_t> TensorBytes(const TensorMeta& tensor);

class ModelLayout {
 public:
  // `tensors` in any order; they are kept in offset order. kBadData names the first offending tensor or attachment and
  // the rule it breaks.
  static Result<std::shared_ptr<const ModelLayout>> Create(std::vector<TensorMeta> tensors,
                                                           uint32_t block_bytes = kDefaultBlockBytes,
                                                           Attachments attachments = {});
  // Of the whole that `parts`, in their order, make. kBadData: they have a tensor, or different attachments of a name,
  // in common, or other block sizes, or one is joined itself. REQUIRES one part at least.
  static Result<std::shared_ptr<const ModelLayout>> Join(const std::vector<std::shared_ptr<const ModelLayout>>& parts);
  // From the canonical encoding (common/model/FORMAT.md), which may come from anywhere. kProtocol for a joined one, but
  // with `joined`.
  static Result<std::shared_ptr<const ModelLayout>> Decode(ByteView encoded, bool joined = false);

  const Bytes& encoded() const { return encoded_; }
  const LayoutDigest& digest() const { return digest_; }

  const std::vector<TensorMeta>& tensors() const { return tensors_; }
  const Attachments& attachments() const { return attachments_; }
  uint64_t tensor_bytes(size_t tensor) const;  // from neighbouring offsets
  uint64_t data_bytes() const { return data_bytes_; }
  uint32_t block_bytes() const { return block_bytes_; }
  uint32_t block_count() const { return static_cast<uint32_t>(block_units_.size()); }
  std::vector<BlockIndex> AllBlocks() const;      // 0, 1, ...
  ByteRange block_range(BlockIndex block) const;  // only the last one, of each part, may be short
  // Unit in which `block` is compared and stepped: the smallest among the tensors it touches (1, 2, 4 or 8).
  uint32_t block_unit(BlockIndex block) const { return block_units_[block]; }

  // What a joined layout is made of; empty: it is not joined.
  struct Part {
    size_t first_tensor = 0;
    LayoutDigest digest;  // of the part's own layout
    uint64_t offset = 0;
    BlockIndex first_block = 0;
  };
  const std::vector<Part>& parts() const { return parts_; }

  // Position of the tensor that holds byte `offset`. REQUIRES offset < data_bytes(). Empty tensors are never named.
  size_t TensorAt(uint64_t offset) const;

 private:
  ModelLayout() = default;
  static Result<std::shared_ptr<const ModelLayout>> Make(std::vector<TensorMeta> tensors, uint32_t block_bytes,
                                                         Attachments attachments, std::vector<Part> parts);

  std::vector<TensorMeta> tensors_;
  std::vector<Part> parts_;
  Attachments attachments_;
  std::vector<uint8_t> block_units_;
  uint64_t data_bytes_ = 0;
  uint32_t block_bytes_ = 0;
  Bytes encoded_;
  LayoutDigest digest_;
};

// Gives `tensors` back-to-back offsets in their order; when some tensor would start unaligned, they are first sorted,
// stably, by falling unit size. kBadData as TensorBytes.
Status AssignOffsets(std::vector<TensorMeta>& tensors);

}  // namespace lockstep::model
