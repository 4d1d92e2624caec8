#include "export_plugin/exporter/bucket_plan.h"

#include <algorithm>
#include <functional>

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

// A part of a chunk: a box of elements, row by row in the HuggingFace tensor's order.
struct PackedItem {
  uint32_t source = 0;
  uint32_t tensor = 0;
  layout::Piece piece;  // local -> HuggingFace tensor
  uint64_t bytes = 0;
  uint64_t packed_offset = 0;  // in the payload
};

// Adds an item's copies to its bucket.
using AppendItem = std::function<Status(const PackedItem&, Bucket&)>;

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

Status AppendBuckets(const layout::TrainingModel& model, const std::vector<Chunk>& chunks, uint64_t payload_bytes,
                     const AppendItem& append, std::vector<Bucket>& buckets) {
  Items all = ItemsOf(model, chunks, payload_bytes);
  std::vector<layout::BucketItem> sizes;
  for (const PackedItem& item : all.items) sizes.push_back({item.bytes, model.groups[item.tensor]});
  size_t chunk = 0;
  for (const layout::Bucket& bucket : layout::SplitIntoBuckets(sizes, payload_bytes)) {
    Bucket& packed = buckets.emplace_back();
    for (size_t i = bucket.begin; i < bucket.end; ++i) {
      all.items[i].packed_offset = packed.payload_bytes;
      packed.payload_bytes += all.items[i].bytes;
      LS_RETURN_IF_ERROR(append(all.items[i], packed));
    }
    for (; chunk < chunks.size() && all.chunk_ends[chunk] <= bucket.end; ++chunk) {
      AppendRanges(model, chunks[chunk], packed.completed);
    }
  }
  return OkStatus();
}

Result<RankBuckets> PackBuckets(const layout::TrainingModel& model, const layout::RankPlan& plan,
                                uint64_t payload_bytes, const AppendItem& append) {
  std::vector<Chunk> changing;
  std::vector<Chunk> frozen;
  for (Chunk& chunk : ChunksOf(model, plan)) (chunk.frozen ? frozen : changing).push_back(std::move(chunk));
  RankBuckets buckets;
  LS_RETURN_IF_ERROR(AppendBuckets(model, changing, payload_bytes, append, buckets.all));
  if (buckets.all.empty()) buckets.all.emplace_back();  // a set has a header
  buckets.changing = static_cast<uint32_t>(buckets.all.size());
  LS_RETURN_IF_ERROR(AppendBuckets(model, frozen, payload_bytes, append, buckets.all));
  return buckets;
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

uint64_t RankBuckets::largest_payload() const {
  return std::ranges::max_element(all, {}, &Bucket::payload_bytes)->payload_bytes;
}

Result<RankBuckets> OutgoingBuckets(const layout::TrainingModel& model, const layout::RankPlan& plan,
                                    uint64_t payload_bytes, std::span<const LocalTensor> locals,
                                    const LocalsBySource& by_source) {
  return PackBuckets(model, plan, payload_bytes, [&](const PackedItem& item, Bucket& bucket) -> Status {
    const uint32_t local = by_source[item.source][0];
    const model::TensorMeta& tensor = model.tensors[item.tensor];
    LS_ASSIGN_OR_RETURN(const ElementConversion conversion, ConversionOf(locals[local], tensor));
    const layout::TensorView source = ViewOf(locals[local]);
    const layout::TensorView target = PackedView(item, model::FindDType(tensor.dtype)->bits / 8);
    const layout::Pieces packing = layout::Box(item.piece.source, Origin(item.piece), item.piece.size);
    LS_RETURN_IF_ERROR(layout::CheckBounds(packing, source.shape, target.shape));
    std::vector<layout::StridedCopy> copies;
    layout::AppendCopies(packing, source, target, copies);
    for (const layout::StridedCopy& copy : copies) bucket.copies.push_back({local, copy, conversion});
    return OkStatus();
  });
}

Result<RankBuckets> IncomingBuckets(const layout::TrainingModel& model, const layout::RankPlan& plan,
                                    uint64_t payload_bytes) {
  return PackBuckets(model, plan, payload_bytes, [&](const PackedItem& item, Bucket& bucket) {
    const layout::TensorView target = ViewOf(model.tensors[item.tensor], item.piece.size.size());
    std::vector<layout::StridedCopy> copies;
    layout::AppendCopies(layout::Box(Origin(item.piece), item.piece.target, item.piece.size),
                         PackedView(item, target.element_bytes), target, copies);
    for (const layout::StridedCopy& copy : copies) bucket.copies.push_back({.copy = copy});
    return OkStatus();
  });
}

}  // namespace lockstep::exporter
