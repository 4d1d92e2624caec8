// The digest of a copy plan.
#include <string_view>

#include "common/base/bytes.h"
#include "common/layout/copy_plan.h"
#include "kernels/hash.h"

namespace lockstep::layout {
namespace {

void AppendText(Bytes& out, std::string_view text) {
  AppendVarint(out, text.size());
  AppendBytes(out, AsBytes(text));
}

void AppendExtents(Bytes& out, const Extents& extents) {
  AppendVarint(out, extents.size());
  for (const uint64_t extent : extents) AppendVarint(out, extent);
}

void AppendEntry(Bytes& out, const TrainingModel& model, const PlanEntry& entry) {
  const SourceTensor& source = model.sources[entry.source];
  AppendVarint(out, entry.tensor);
  AppendText(out, source.name);
  out.push_back(std::byte{source.frozen});
  AppendVarint(out, entry.pieces.size());
  for (const Piece& piece : entry.pieces) {
    AppendExtents(out, piece.source);
    AppendExtents(out, piece.target);
    AppendExtents(out, piece.size);
  }
}

}  // namespace

PlanDigest DigestOf(const TrainingModel& model, const std::vector<bool>& on_agent_host,
                    const std::vector<RankPlan>& ranks) {
  Bytes whole;
  AppendVarint(whole, model.tensors.size());
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const model::TensorMeta& tensor = model.tensors[i];
    AppendText(whole, tensor.name);
    whole.push_back(static_cast<std::byte>(tensor.dtype));
    AppendExtents(whole, tensor.shape);
    AppendVarint(whole, model.groups[i]);
  }
  AppendVarint(whole, ranks.size());
  Bytes one;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    one.clear();
    for (const PlanEntry& entry : ranks[rank].entries) AppendEntry(one, model, entry);
    whole.push_back(std::byte{on_agent_host[rank]});
    AppendBytes(whole, AsBytes(Hash128(one)));
  }
  return PlanDigest{Hash128(whole)};
}

}  // namespace lockstep::layout
