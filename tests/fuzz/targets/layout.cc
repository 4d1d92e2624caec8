// The encoded layout of a model (common/model/layout.h), and what is made of one: its blocks, its safetensors header.
#include "common/model/layout.h"

#include <numeric>

#include "common/model/manifest.h"
#include "common/model/safetensors.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"

namespace lockstep::fuzz {
namespace {

void CheckTensors(const model::ModelLayout& layout) {
  uint64_t end = 0;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const model::TensorMeta& tensor = layout.tensors()[i];
    LS_FUZZ_RULE(tensor.offset == end);
    LS_FUZZ_RULE(layout.tensor_bytes(i) == *model::TensorBytes(tensor));
    end += layout.tensor_bytes(i);
  }
  LS_FUZZ_RULE(end == layout.data_bytes() && end > 0);
}

void CheckBlocks(const model::ModelLayout& layout) {
  uint64_t end = 0;
  for (BlockIndex block = 0; block < layout.block_count(); ++block) {
    const ByteRange range = layout.block_range(block);
    LS_FUZZ_RULE(range.offset == end && range.bytes >= 1 && range.bytes <= layout.block_bytes());
    LS_FUZZ_RULE(range.bytes % layout.block_unit(block) == 0);
    const model::TensorMeta& tensor = layout.tensors()[layout.TensorAt(range.offset)];
    LS_FUZZ_RULE(tensor.offset <= range.offset && range.offset - tensor.offset < *model::TensorBytes(tensor));
    end = range.end();
  }
  LS_FUZZ_RULE(end == layout.data_bytes());
  std::vector<BlockIndex> all(layout.block_count());
  std::iota(all.begin(), all.end(), 0);
  LS_FUZZ_RULE(!model::TensorsInBlocks(layout, all).empty());
}

void CheckHeader(const model::ModelLayout& layout) {
  const Bytes header = model::SafetensorsHeader(layout);
  LS_FUZZ_RULE(header.size() % model::kDataAlignment == 0);
  LS_FUZZ_RULE(header.size() + layout.data_bytes() == model::ImageBytes(layout));
  const auto file = model::ParseSafetensors(header, model::ImageBytes(layout));
  LS_FUZZ_RULE(file.ok());
  LS_FUZZ_RULE(file->data_offset == header.size() && file->data_bytes == layout.data_bytes());
  LS_FUZZ_RULE(file->tensors == layout.tensors());
}

}  // namespace

std::vector<Bytes> Seeds() {
  return {HexBlock("common/model/FORMAT.md", "layout"), HexBlock("common/model/FORMAT.md", "layout-with-attachment"),
          SmallLayout()->encoded()};
}

void TestInput(ByteView input) {
  if (NamesManyBlocks(input)) return;
  const auto decoded = model::ModelLayout::Decode(input);
  if (!decoded.ok()) return CheckRefusal(decoded.status(), {ErrorCode::kProtocol, ErrorCode::kBadData});
  const model::ModelLayout& layout = **decoded;
  LS_FUZZ_RULE(layout.encoded() == Copy(input));
  const auto again = model::ModelLayout::Create(layout.tensors(), layout.block_bytes(), layout.attachments());
  LS_FUZZ_RULE(again.ok() && (*again)->digest() == layout.digest());
  CheckTensors(layout);
  CheckBlocks(layout);
  CheckHeader(layout);
  const model::TensorMeta& first = layout.tensors()[0];
  Accepted(input, {layout.block_bytes() > 4096, first.dtype != model::DType::kF32, first.name[0] != 'n'});
}

}  // namespace lockstep::fuzz
