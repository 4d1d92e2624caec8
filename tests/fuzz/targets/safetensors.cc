// The header of a checkpoint's safetensors file (common/model/safetensors.h). Each input is tried twice: as a file, and
// as four bytes with the length of the data, then the JSON of a header. The second time, the header's length is right.
#include "common/model/safetensors.h"

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"

namespace lockstep::fuzz {
namespace {

constexpr std::string_view kTwo =
    R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[6,14]},"__metadata__":{"format":"pt"},)"
    R"("a":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]},"none":{"dtype":"F16","shape":[0],"data_offsets":[6,6]}})";

// The tensors tile the data section, in order.
void CheckTensors(const model::SafetensorsFile& file) {
  uint64_t end = 0;
  for (const model::TensorMeta& tensor : file.tensors) {
    LS_FUZZ_RULE(tensor.offset == end);
    end += *model::TensorBytes(tensor);
  }
  LS_FUZZ_RULE(end == file.data_bytes);
}

// A layout of the same tensors, where there can be one, has a header that says the same.
void CheckAgain(const model::SafetensorsFile& file) {
  const auto layout = model::ModelLayout::Create(file.tensors, model::kMaxBlockBytes);
  if (!layout.ok()) return CheckRefusal(layout.status(), {ErrorCode::kBadData});
  const auto again = model::ParseSafetensors(model::SafetensorsHeader(**layout), model::ImageBytes(**layout));
  LS_FUZZ_RULE(again.ok() && again->tensors == file.tensors);
}

void TestHead(ByteView head, uint64_t file_bytes, ByteView input) {
  const auto file = model::ParseSafetensors(head, file_bytes);
  if (!file.ok()) return CheckRefusal(file.status(), {ErrorCode::kBadData});
  LS_FUZZ_RULE(file->data_offset <= head.size() && file->data_offset + file->data_bytes == file_bytes);
  CheckTensors(*file);
  CheckAgain(*file);
  if (file->tensors.size() != 3) return Accepted(input, {});
  Accepted(input, {file->tensors[0].name.size() > 4, file->tensors[2].name.size() > 4});
}

Bytes Seed(uint32_t data_bytes, std::string_view json) {
  Bytes seed;
  Append(seed, data_bytes);
  AppendBytes(seed, AsBytes(json));
  return seed;
}

}  // namespace

std::vector<Bytes> Seeds() {
  const Bytes header = model::SafetensorsHeader(*SmallLayout());
  Bytes whole;
  Append(whole, uint64_t{kTwo.size()});
  AppendBytes(whole, AsBytes(kTwo));
  whole.resize(whole.size() + 14);
  const std::string_view json = AsText(ByteView(header).subspan(sizeof(uint64_t)));
  return {Seed(14, kTwo), Seed(static_cast<uint32_t>(SmallLayout()->data_bytes()), json.substr(0, json.find("}}") + 2)),
          whole};
}

void TestInput(ByteView input) {
  TestHead(input, input.size(), input);
  ByteReader reader(input);
  uint32_t data_bytes = 0;
  if (!reader.Take(data_bytes)) return;
  Bytes head;
  Append(head, uint64_t{reader.rest().size()});
  AppendBytes(head, reader.rest());
  TestHead(head, head.size() + data_bytes, input);
}

}  // namespace lockstep::fuzz
