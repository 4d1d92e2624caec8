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

inline uint64_t ElementCount(const ModelLayout& layout) {
  uint64_t elements = 0;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    elements += layout.tensor_bytes(i) * 8 / FindDType(layout.tensors()[i].dtype)->bits;
  }
  return elements;
}

}  // namespace lockstep::demo
