// Import: the inverse plan. Reads a HuggingFace checkpoint into this rank's training tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "export_plugin/exporter/local_tensor.h"

namespace lockstep::exporter {

struct ImportStats {
  uint64_t bytes_read = 0;
  uint64_t tensors_read = 0;
};

// Fills every tensor of `locals` (addresses are written to) from `directory` (model.safetensors, or the shards that
// model.safetensors.index.json names, or one .safetensors file), by the rank's own description. What the checkpoint has
// no element for (a padded vocabulary) becomes zero. BF16 checkpoints fill F32 tensors exactly; otherwise dtypes must
// match. Nothing is written before everything is checked: kBadData names the tensor that is missing, or of another
// shape or dtype, kNotFound and kIo the file.
Result<ImportStats> ImportCheckpoint(const std::string& directory, const std::string& description,
                                     std::span<const LocalTensor> locals, uint32_t threads);

}  // namespace lockstep::exporter
