// The proof of an export plan: all ranks together write every element of every HuggingFace tensor exactly once.
#include <numeric>
#include <span>
#include <string>

#include "common/base/text.h"
#include "common/layout/copy_plan.h"
#include "common/layout/tiling.h"

namespace lockstep::layout {
namespace {

// All pieces of a plan by the tensor that they write.
class Proof {
 public:
  Proof(const TrainingModel& model, const std::vector<RankPlan>& ranks) : model_(model) {
    first_.resize(model.tensors.size() + 1);
    ForEachPiece(ranks, [&](uint32_t, const PlanEntry& entry, const Piece&) { ++first_[entry.tensor + 1]; });
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    boxes_.resize(first_.back());
    writers_.resize(first_.back());
    std::vector<size_t> next = first_;
    ForEachPiece(ranks, [&](uint32_t rank, const PlanEntry& entry, const Piece& piece) {
      const size_t at = next[entry.tensor]++;
      boxes_[at] = TargetView(piece, model.tensors[entry.tensor].shape.size());
      writers_[at] = {rank, entry.source};
    });
  }

  Status Check() const {
    for (size_t tensor = 0; tensor < model_.tensors.size(); ++tensor) LS_RETURN_IF_ERROR(CheckTensor(tensor));
    return OkStatus();
  }

 private:
  struct Writer {
    uint32_t rank = 0;
    uint32_t source = 0;
  };

  template <typename Function>
  static void ForEachPiece(const std::vector<RankPlan>& ranks, Function function) {
    for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
      for (const PlanEntry& entry : ranks[rank].entries) {
        for (const Piece& piece : entry.pieces) function(rank, entry, piece);
      }
    }
  }

  Status CheckTensor(size_t tensor) const {
    const model::TensorMeta& meta = model_.tensors[tensor];
    const auto boxes = std::span(boxes_).subspan(first_[tensor], first_[tensor + 1] - first_[tensor]);
    if (const auto overlap = FindOverlap(boxes, meta.shape.size())) {
      const Piece shared = Shared(boxes[overlap->first], boxes[overlap->second], meta.shape.size());
      return Broken(meta, OverlapText(writers_[first_[tensor] + overlap->first],
                                      writers_[first_[tensor] + overlap->second], BoxText(shared.target, shared.size)));
    }
    if (const auto hole = FindHole(boxes, meta.shape)) {
      return Broken(meta, Cat("no rank holds ", hole->elements, " elements of ", ElementCount(meta.shape),
                              ", the first at ", ShapeText(hole->first)));
    }
    return OkStatus();
  }

  std::string OverlapText(const Writer& a, const Writer& b, const std::string& box) const {
    const std::string writes = a.rank == b.rank ? Cat("rank ", a.rank, " writes ", box, " twice")
                                                : Cat("ranks ", a.rank, " and ", b.rank, " both write ", box);
    const std::string& name = model_.sources[a.source].name;
    if (a.source == b.source) return Cat(writes, ": their shards of \"", name, "\" overlap without being the same");
    return Cat(writes, ": from \"", name, "\" and \"", model_.sources[b.source].name, "\"");
  }

  static Status Broken(const model::TensorMeta& meta, const std::string& problem) {
    return {ErrorCode::kBadData, Cat("tensor \"", meta.name, "\" (", model::FindDType(meta.dtype)->name, " ",
                                     ShapeText(meta.shape), "): ", problem)};
  }

  const TrainingModel& model_;
  std::vector<size_t> first_;  // of each tensor, into the two below
  std::vector<BoxView> boxes_;
  std::vector<Writer> writers_;
};

}  // namespace

Status ProveTiling(const TrainingModel& model, const std::vector<RankPlan>& ranks) {
  return Proof(model, ranks).Check();
}

}  // namespace lockstep::layout
