// Where a training run starts: a layout, and the values of its tensors or the promise to draw them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "export_plugin/exporter/checkpoint.h"

namespace lockstep::demo {

struct InitialModel {
  std::shared_ptr<const model::ModelLayout> layout;
  std::vector<ByteView> values;                    // of each tensor of the layout; none at all: drawn at random
  std::optional<exporter::Checkpoint> checkpoint;  // keeps `values` alive
};

// Maps the HuggingFace checkpoint in `directory` (nothing is read yet but headers) and lays its tensors out by name.
// Errors are those of Checkpoint::Open().
Result<InitialModel> OpenCheckpoint(const std::string& directory);

uint64_t ElementCount(const model::ModelLayout& layout);

}  // namespace lockstep::demo
