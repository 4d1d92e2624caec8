// Where a training run starts: a layout, and the values of its tensors or the promise to draw them.
#pragma once

#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/model/layout.h"
#include "common/os/segment.h"

namespace lockstep::demo {

struct InitialModel {
  std::shared_ptr<const ModelLayout> layout;
  std::vector<ByteView> values;      // of each tensor of the layout, inside `files`; none at all: drawn at random
  std::vector<MappedSegment> files;  // keeps `values` alive
};

}  // namespace lockstep::demo
