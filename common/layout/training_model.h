// TrainingModel: a trainer's tensors, the HuggingFace tensors made of them, and which rank holds what. Pure data.
//
//   Holding (of a rank) --pieces--> SourceTensor --Conversion--> HuggingFace tensor
//
// The rules of a framework or the descriptions of the ranks fill it (export_plugin/rules and plan); the plans
// below are compiled from it.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "common/layout/piece.h"
#include "common/model/layout.h"

namespace lockstep::layout {

// One whole (unsharded) training tensor, under a name that is the same on every rank.
struct SourceTensor {
  std::string name;
  Extents shape;
  bool frozen = false;  // its bytes never change within a run
};

// The part of source `source` that HuggingFace tensor `tensor` is made of. Where the source has more dimensions
// (experts stacked in one tensor), the HuggingFace tensor is seen with leading dimensions of 1: see Promoted().
struct Conversion {
  uint32_t source = 0;
  uint32_t tensor = 0;
  Pieces pieces;  // source -> HuggingFace tensor
};

// The part of `source` that `rank` holds: a local tensor of `local_shape`. A rank's local tensors of one source are
// equal copies.
struct Holding {
  uint32_t rank = 0;
  uint32_t source = 0;
  Extents local_shape;
  Pieces pieces;      // local -> source; none: the rank holds nothing of it
  bool copy = false;  // kept in step by the trainer (tied head, MTP embedding): imported into, never exported
};

struct TrainingModel {
  std::vector<model::TensorMeta> tensors;  // HuggingFace, in export order; offsets as AssignOffsets gives them
  std::vector<uint32_t> groups;            // of each tensor: neighbours of one group stay in one bucket
  std::vector<SourceTensor> sources;
  std::vector<Conversion> conversions;
  std::vector<Holding> holdings;
  // By name, of tensors that may be planned in another shape, in which dimensions are split.
  std::unordered_map<std::string, Extents> huggingface_shapes;
};

// The tensors as HuggingFace has them.
std::vector<model::TensorMeta> HuggingFaceTensors(const TrainingModel& model);

// Gives the tensors their offsets (AssignOffsets). That may reorder them, and then what counts them follows. kBadData
// names a tensor that is made twice.
Status PlaceTensors(TrainingModel& model);

// `shape` with leading dimensions of 1 up to `rank`.
Extents Promoted(Extents shape, size_t rank);

// Whether everything that is named is there and within its bounds: indexes, ranks of tensors, pieces that leave their
// tensors or overlap, names given twice, sizes beyond the limits of common/model/layout.h. kBadData names the tensor.
Status CheckTrainingModel(const TrainingModel& model);

}  // namespace lockstep::layout
