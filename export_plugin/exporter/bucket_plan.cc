#include "export_plugin/exporter/bucket_plan.h"

#include <algorithm>

#include "common/layout/buckets.h"

namespace lockstep::exporter {
namespace {

// Cuts `piece` along its outer dimensions into boxes of at most `max_elements`.
void AppendCut(const layout::Piece& piece, uint64_t max_elements, layout::Pieces& parts) {
  const uint64_t elements = layout::ElementCount(piece.size);
  if (elements <= max_elements) {
    parts.push_back(piece);
    return;
  }
  size_t dim = 0;
  while (piece.size[dim] == 1) ++dim;
  const uint64_t step = std::max<uint64_t>(1, max_elements / (elements / piece.size[dim]));
  for (uint64_t at = 0; at < piece.size[dim]; at += step) {
    layout::Piece part = piece;
    part.source[dim] += at;
    part.target[dim] += at;
    part.size[dim] = std::min(step, piece.size[dim] - at);
    AppendCut(part, max_elements, parts);
  }
}

// All items of a plan in order, and of each chunk the position after its last one.
struct Items {
  std::vector<PackedItem> items;
  std::vector<size_t> chunk_ends;
};

Items ItemsOf(const layout::TrainingModel& model, const std::vector<Chunk>& chunks, uint64_t max_bytes) {
  Items all;
  for (const Chunk& chunk : chunks) {
    const uint64_t element_bytes = model::FindDType(model.tensors[chunk.tensor].dtype)->bits / 8;
    layout::Pieces parts;
    for (const layout::Piece& piece : chunk.pieces) AppendCut(piece, max_bytes / element_bytes, parts);
    for (layout::Piece& part : parts) {
      const uint64_t bytes = layout::ElementCount(part.size) * element_bytes;
      all.items.push_back({chunk.source, chunk.tensor, std::move(part), bytes, 0});
    }
    all.chunk_ends.push_back(all.items.size());
  }
  return all;
}

// How the payload is seen by an item: its box, packed.
layout::TensorView PackedView(const PackedItem& item, uint64_t element_bytes) {
  return layout::TensorView::Contiguous(item.piece.size, element_bytes, item.packed_offset);
}

layout::Extents Origin(const layout::Piece& piece) {
  return layout::Extents(piece.size.size(), 0);
}

void AppendBuckets(const layout::TrainingModel& model, const std::vector<Chunk>& chunks, uint64_t payload_bytes,
                   std::vector<PackedBucket>& buckets) {
  Items all = ItemsOf(model, chunks, payload_bytes);
  std::vector<layout::BucketItem> sizes;
  for (const PackedItem& item : all.items) sizes.push_back({item.bytes, model.groups[item.tensor]});
  size_t chunk = 0;
  for (const layout::Bucket& bucket : layout::SplitIntoBuckets(sizes, payload_bytes)) {
    PackedBucket& packed = buckets.emplace_back();
    for (size_t i = bucket.begin; i < bucket.end; ++i) {
      all.items[i].packed_offset = packed.payload_bytes;
      packed.payload_bytes += all.items[i].bytes;
      packed.items.push_back(std::move(all.items[i]));
    }
    for (; chunk < chunks.size() && all.chunk_ends[chunk] <= bucket.end; ++chunk) {
      AppendRanges(model, chunks[chunk], packed.completed);
    }
  }
}

}  // namespace

std::vector<std::optional<uint32_t>> ProxiesOf(const layout::CopyPlan& plan, const std::vector<bool>& on_agent_host) {
  std::vector<std::optional<uint32_t>> proxies(plan.ranks.size());
  std::vector<uint64_t> taken(plan.ranks.size());
  for (uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    if (on_agent_host[rank] || plan.ranks[rank].bytes == 0) continue;
    std::optional<uint32_t>& proxy = proxies[rank];
    for (uint32_t candidate = 0; candidate < plan.ranks.size(); ++candidate) {
      if (on_agent_host[candidate] && (!proxy || taken[candidate] < taken[*proxy])) proxy = candidate;
    }
    taken[*proxy] += plan.ranks[rank].bytes;
  }
  return proxies;
}

RankBuckets<PackedBucket> PackBuckets(const layout::TrainingModel& model, const layout::RankPlan& plan,
                                      uint64_t payload_bytes) {
  std::vector<Chunk> changing;
  std::vector<Chunk> frozen;
  for (Chunk& chunk : ChunksOf(model, plan)) (chunk.frozen ? frozen : changing).push_back(std::move(chunk));
  RankBuckets<PackedBucket> buckets;
  AppendBuckets(model, changing, payload_bytes, buckets.all);
  if (buckets.all.empty()) buckets.all.emplace_back();  // a set has a header
  buckets.changing = static_cast<uint32_t>(buckets.all.size());
  AppendBuckets(model, frozen, payload_bytes, buckets.all);
  return buckets;
}

Result<RankBuckets<OutgoingBucket>> LowerOutgoing(const layout::TrainingModel& model,
                                                  const RankBuckets<PackedBucket>& buckets,
                                                  std::span<const LocalTensor> locals,
                                                  const LocalsBySource& by_source) {
  RankBuckets<OutgoingBucket> lowered{.changing = buckets.changing};
  for (const PackedBucket& bucket : buckets.all) {
    OutgoingBucket& outgoing = lowered.all.emplace_back();
    outgoing.payload_bytes = bucket.payload_bytes;
    for (const PackedItem& item : bucket.items) {
      const uint32_t local = by_source[item.source][0];
      const model::TensorMeta& tensor = model.tensors[item.tensor];
      LS_ASSIGN_OR_RETURN(const ElementConversion conversion, ConversionOf(locals[local], tensor));
      const layout::TensorView source = ViewOf(locals[local]);
      const layout::TensorView target = PackedView(item, model::FindDType(tensor.dtype)->bits / 8);
      const layout::Pieces packing = layout::Box(item.piece.source, Origin(item.piece), item.piece.size);
      LS_RETURN_IF_ERROR(layout::CheckBounds(packing, source.shape, target.shape));
      std::vector<layout::StridedCopy> copies;
      layout::AppendCopies(packing, source, target, copies);
      for (const layout::StridedCopy& copy : copies) outgoing.copies.push_back({local, copy, conversion});
    }
  }
  return lowered;
}

RankBuckets<IncomingBucket> LowerIncoming(const layout::TrainingModel& model, RankBuckets<PackedBucket> buckets) {
  RankBuckets<IncomingBucket> lowered{.changing = buckets.changing};
  for (PackedBucket& bucket : buckets.all) {
    IncomingBucket& incoming = lowered.all.emplace_back();
    incoming.completed = std::move(bucket.completed);
    incoming.payload_bytes = bucket.payload_bytes;
    for (const PackedItem& item : bucket.items) {
      const layout::TensorView target = ViewOf(model.tensors[item.tensor], item.piece.size.size());
      layout::AppendCopies(layout::Box(Origin(item.piece), item.piece.target, item.piece.size),
                           PackedView(item, target.element_bytes), target, incoming.copies);
    }
  }
  return lowered;
}

}  // namespace lockstep::exporter
