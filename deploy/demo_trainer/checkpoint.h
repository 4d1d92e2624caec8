// Reads a HuggingFace checkpoint directory: model.safetensors, or the shards that model.safetensors.index.json names.
#pragma once

#include <string>

#include "common/base/status.h"
#include "deploy/demo_trainer/initial_model.h"

namespace lockstep::demo {

// Maps the files (nothing is read yet but their headers) and lays the tensors out in the order of the files' names and,
// in a file, of its offsets; with an index exactly the tensors it names. kNotFound: no such directory, no weights in
// it, or a shard that is missing. kBadData, naming file and tensor: a file that is no safetensors, an index that is no
// index, a tensor that is not in its shard, or one that is there twice.
Result<InitialModel> OpenCheckpoint(const std::string& directory);

}  // namespace lockstep::demo
