// The safetensors header: what makes a slot, and a replica's file, loadable by any HuggingFace tool.
#pragma once

#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/layout.h"

namespace lockstep::model {

inline constexpr uint64_t kDataAlignment = 4096;
inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;  // what the safetensors library takes

// The bytes before the data section: 8-byte length and JSON ({"__metadata__": {"format": "pt"}, ...}), padded with
// spaces so that the data section starts at a multiple of kDataAlignment. Equal layouts give equal headers.
Bytes SafetensorsHeader(const ModelLayout& layout);

// Size of a whole file image: header and data section.
uint64_t ImageBytes(const ModelLayout& layout);

struct SafetensorsFile {
  std::vector<TensorMeta> tensors;  // in offset order; offsets relative to the file's data section
  uint64_t data_offset = 0;         // where the data section starts in the file
  uint64_t data_bytes = 0;
};

// Parses the front of a file of `file_bytes` bytes. `head` must hold at least the 8-byte length and the JSON. kBadData
// says what is wrong: truncated, too long, no JSON, unknown dtype, offsets that do not match shapes or the file's size,
// tensors that overlap.
Result<SafetensorsFile> ParseSafetensors(ByteView head, uint64_t file_bytes);

}  // namespace lockstep::model
