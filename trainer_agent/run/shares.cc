#include "trainer_agent/run/shares.h"

#include <algorithm>
#include <queue>

#include "common/base/text.h"

namespace lockstep::run {
namespace {

struct Piece {
  StridedRange range;
  uint32_t rank = 0;
};

std::string Describe(const StridedRange& range) {
  if (range.rows == 1) return Cat("bytes ", range.offset, " + ", range.row_bytes);
  return Cat(range.rows, " rows of ", range.row_bytes, " bytes from ", range.offset, " on, ", range.pitch, " apart");
}

Status CheckRange(const StridedRange& range, uint64_t data_bytes) {
  if (range.rows == 0) return {ErrorCode::kBadData, Cat("a range at ", range.offset, " has no rows")};
  if (range.row_bytes == 0) return OkStatus();
  if (range.rows > 1 && range.pitch < range.row_bytes) {
    return {ErrorCode::kBadData, Cat(Describe(range), ": the rows overlap each other")};
  }
  if (range.offset < data_bytes && range.row_bytes <= data_bytes - range.offset) {
    const uint64_t room = data_bytes - range.offset - range.row_bytes;
    if (range.rows == 1 || range.rows - 1 <= room / range.pitch) return OkStatus();
  }
  return {ErrorCode::kBadData, Cat(Describe(range), " are outside the data section of ", data_bytes, " bytes")};
}

// The ranges of all ranks, cut where tensors end: each piece lies in one tensor.
class PiecesByTensor {
 public:
  explicit PiecesByTensor(const model::ModelLayout& layout) : layout_(layout), pieces_(layout.tensors().size()) {}

  Status Add(const StridedRange& range, uint32_t rank) {
    LS_RETURN_IF_ERROR(CheckRange(range, layout_.data_bytes()));
    if (range.row_bytes == 0) return OkStatus();
    const bool plain = range.rows == 1 || range.row_bytes == range.pitch;
    if (plain) return AddPlain({range.offset, range.bytes()}, rank);
    for (uint64_t row = 0; row < range.rows;) {
      const uint64_t start = range.offset + row * range.pitch;
      const size_t tensor = layout_.TensorAt(start);
      const uint64_t room = RangeOf(tensor).end() - start;
      if (room < range.row_bytes) {
        LS_RETURN_IF_ERROR(AddPlain({start, range.row_bytes}, rank));
        ++row;
        continue;
      }
      const uint64_t rows = std::min((room - range.row_bytes) / range.pitch + 1, range.rows - row);
      LS_RETURN_IF_ERROR(AddPiece(tensor, {start, range.row_bytes, rows, rows > 1 ? range.pitch : 0}, rank));
      row += rows;
    }
    return OkStatus();
  }

  std::vector<Piece>& of(size_t tensor) { return pieces_[tensor]; }
  ByteRange RangeOf(size_t tensor) const { return {layout_.tensors()[tensor].offset, layout_.tensor_bytes(tensor)}; }

 private:
  Status AddPlain(ByteRange range, uint32_t rank) {
    for (uint64_t at = range.offset; at < range.end();) {
      const size_t tensor = layout_.TensorAt(at);
      const uint64_t end = std::min(range.end(), RangeOf(tensor).end());
      LS_RETURN_IF_ERROR(AddPiece(tensor, StridedRange::Plain({at, end - at}), rank));
      at = end;
    }
    return OkStatus();
  }

  Status AddPiece(size_t tensor, const StridedRange& range, uint32_t rank) {
    if (++count_ > kMaxSharePieces) {
      return {ErrorCode::kResourceExhausted,
              Cat("the ranks' shares have more than ", kMaxSharePieces, " pieces, the limit")};
    }
    pieces_[tensor].push_back({range, rank});
    return OkStatus();
  }

  const model::ModelLayout& layout_;
  std::vector<std::vector<Piece>> pieces_;
  size_t count_ = 0;
};

// Rows and columns of a tensor that is seen as rows of one pitch.
struct Rectangle {
  uint64_t first_row = 0;
  uint64_t end_row = 0;
  uint64_t first_column = 0;
  uint64_t end_column = 0;
  uint32_t rank = 0;
};

// Appends the rectangles that `piece` is, where the region that begins at `begin` is seen as rows of `pitch`. REQUIRES
// one row, or this pitch.
void AppendRectangles(const Piece& piece, uint64_t begin, uint64_t pitch, std::vector<Rectangle>& all) {
  const StridedRange& range = piece.range;
  const uint64_t row = (range.offset - begin) / pitch;
  const uint64_t column = (range.offset - begin) % pitch;
  const uint64_t end = column + range.row_bytes;
  const auto add = [&](uint64_t first_row, uint64_t end_row, uint64_t first_column, uint64_t end_column) {
    if (first_row < end_row && first_column < end_column) {
      all.push_back({first_row, end_row, first_column, end_column, piece.rank});
    }
  };
  if (end <= pitch) return add(row, row + range.rows, column, end);
  if (range.rows > 1) {  // a row is not more than a pitch: it wraps once
    add(row, row + range.rows, column, pitch);
    return add(row + 1, row + 1 + range.rows, 0, end - pitch);
  }
  const uint64_t last_row = row + end / pitch;
  add(row, row + 1, column, pitch);
  add(row + 1, last_row, 0, pitch);
  add(last_row, last_row + 1, 0, end % pitch);
}

Status HeldTwice(const std::string& tensor, uint32_t one, uint32_t other) {
  const std::string who =
      one == other ? Cat("rank ", one, " has some of its bytes twice")
                   : Cat("ranks ", std::min(one, other), " and ", std::max(one, other), " both have some of its bytes");
  return {ErrorCode::kBadData,
          Cat("tensor \"", tensor, "\": ", who,
              "; each byte has one writer. A rank that is connected with an earlier share must end first")};
}

// Sweeps over the rows. The rectangles that have a row in common have no column in common.
Status CheckDisjoint(std::vector<Rectangle>& all, const std::string& tensor) {
  std::ranges::sort(all, {}, &Rectangle::first_row);
  std::map<uint64_t, const Rectangle*> by_column;  // that have the present row, by their first column
  const auto ends_later = [](const Rectangle* one, const Rectangle* other) { return one->end_row > other->end_row; };
  std::priority_queue<const Rectangle*, std::vector<const Rectangle*>, decltype(ends_later)> ending(ends_later);
  for (const Rectangle& next : all) {
    while (!ending.empty() && ending.top()->end_row <= next.first_row) {
      by_column.erase(ending.top()->first_column);
      ending.pop();
    }
    const auto after = by_column.lower_bound(next.first_column);
    if (after != by_column.end() && after->first < next.end_column) {
      return HeldTwice(tensor, after->second->rank, next.rank);
    }
    if (after != by_column.begin() && std::prev(after)->second->end_column > next.first_column) {
      return HeldTwice(tensor, std::prev(after)->second->rank, next.rank);
    }
    by_column.emplace_hint(after, next.first_column, &next);
    ending.push(&next);
  }
  return OkStatus();
}

Status ProveTensor(const std::vector<Piece>& pieces, ByteRange region, const std::string& tensor) {
  const auto strided = std::ranges::find_if(pieces, [](const Piece& piece) { return piece.range.rows > 1; });
  const uint64_t pitch = strided == pieces.end() ? std::max<uint64_t>(region.bytes, 1) : strided->range.pitch;
  std::vector<Rectangle> rectangles;
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) {
    bytes += piece.range.bytes();
    if (piece.range.rows == 1 || piece.range.pitch == pitch) {
      AppendRectangles(piece, region.offset, pitch, rectangles);
      continue;
    }
    if (rectangles.size() + piece.range.rows > kMaxSharePieces) {
      return {ErrorCode::kResourceExhausted,
              Cat("tensor \"", tensor, "\": ", Describe(piece.range), ", and the rows of others ", pitch,
                  ": too many rows to compare them one by one")};
    }
    for (uint64_t row = 0; row < piece.range.rows; ++row) {
      const ByteRange one{piece.range.offset + row * piece.range.pitch, piece.range.row_bytes};
      AppendRectangles({StridedRange::Plain(one), piece.rank}, region.offset, pitch, rectangles);
    }
  }
  LS_RETURN_IF_ERROR(CheckDisjoint(rectangles, tensor));
  if (bytes == region.bytes) return OkStatus();
  return {ErrorCode::kBadData, Cat("tensor \"", tensor, "\": ", region.bytes - bytes, " of its ", region.bytes,
                                   " bytes are in no rank's share; have one rank write them")};
}

// Whether rows of `range` lie in blocks apart; else no block between the first and the last is skipped.
bool RowsLieApart(const model::ModelLayout& layout, const StridedRange& range) {
  return range.rows > 1 && range.pitch >= layout.block_bytes();
}

// How often ForEachBlock() calls `use`, or a few more.
uint64_t StepsOf(const model::ModelLayout& layout, const StridedRange& range) {
  const uint64_t rows = RowsLieApart(layout, range) ? range.rows : 1;
  const uint64_t bytes = rows > 1 ? range.row_bytes : (range.rows - 1) * range.pitch + range.row_bytes;
  return rows * (bytes / layout.block_bytes() + 2);
}

// Calls `use` with each block that has a byte of `range`, once for each of its rows where these lie in blocks apart.
template <typename Use>
void ForEachBlock(const model::ModelLayout& layout, const StridedRange& range, Use use) {
  if (range.row_bytes == 0) return;
  const uint64_t block_bytes = layout.block_bytes();
  const auto from_to = [&](uint64_t begin, uint64_t end) {
    for (uint64_t block = begin / block_bytes; block <= (end - 1) / block_bytes; ++block) {
      use(static_cast<BlockIndex>(block));
    }
  };
  if (RowsLieApart(layout, range)) {
    for (uint64_t row = 0; row < range.rows; ++row) {
      const uint64_t begin = range.offset + row * range.pitch;
      from_to(begin, begin + range.row_bytes);
    }
  } else {
    from_to(range.offset, range.offset + (range.rows - 1) * range.pitch + range.row_bytes);
  }
}

}  // namespace

Status ProveShares(const model::ModelLayout& layout, const std::vector<const wire::Share*>& shares) {
  PiecesByTensor pieces(layout);
  for (uint32_t rank = 0; rank < shares.size(); ++rank) {
    for (const StridedRange& range : shares[rank]->ranges) {
      const Status added = pieces.Add(range, rank);
      if (!added.ok()) return added.WithContext(Cat("the share of rank ", rank));
    }
  }
  uint64_t steps = 0;
  for (const wire::Share* share : shares) {
    for (const StridedRange& range : share->ranges) steps += StepsOf(layout, range);
  }
  if (steps > kMaxShareSteps) {
    return {ErrorCode::kResourceExhausted,
            Cat("the ranks' ranges lie in ", steps, " blocks, counted for each range; the limit is ", kMaxShareSteps)};
  }
  for (size_t tensor = 0; tensor < layout.tensors().size(); ++tensor) {
    LS_RETURN_IF_ERROR(ProveTensor(pieces.of(tensor), pieces.RangeOf(tensor), layout.tensors()[tensor].name));
  }
  return OkStatus();
}

Status Shares::Set(uint32_t rank, wire::Share share) {
  if (shares_[rank] != nullptr && *shares_[rank] == share) return OkStatus();
  for (const StridedRange& range : share.ranges) LS_RETURN_IF_ERROR(CheckRange(range, layout_->data_bytes()));
  Forget(rank);
  shares_[rank] = std::make_unique<const wire::Share>(std::move(share));
  std::vector<const wire::Share*> all;
  for (const auto& known : shares_) {
    if (known == nullptr) return OkStatus();
    all.push_back(known.get());
  }
  if (Status proved = ProveShares(*layout_, all); !proved.ok()) {
    Forget(rank);
    return proved;
  }
  std::vector<uint32_t> counts(layout_->block_count());
  for (const wire::Share* known : all) {
    for (const StridedRange& range : known->ranges) {
      ForEachBlock(*layout_, range, [&](BlockIndex block) { ++counts[block]; });
    }
  }
  ranges_of_blocks_ = std::move(counts);
  return OkStatus();
}

void Shares::Forget(uint32_t rank) {
  shares_[rank] = nullptr;
  ranges_of_blocks_.reset();
}

Result<CompletedBlocks> DraftProgress::Report(uint32_t rank, std::span<const uint32_t> batches, Content content) {
  std::vector<BatchState>& states = reported_[rank];
  states.resize(shares_->Find(rank)->batch_ends.size());
  const BatchState state = content == Content::kNew ? BatchState::kNew : BatchState::kUnchanged;
  CompletedBlocks completed;
  for (const uint32_t batch : batches) {
    if (batch >= states.size()) {
      return Status(ErrorCode::kBadData,
                    Cat("rank ", rank, " reports batch ", batch, "; its share has ", states.size()));
    }
    if (states[batch] != BatchState::kMissing) {
      return Status(ErrorCode::kBadData, Cat("rank ", rank, " reports bytes twice, those ", PlaceOf(rank, batch),
                                             "; report each tensor once a version"));
    }
    states[batch] = state;
    if (!missing_.empty()) CountBatch(rank, batch, state, completed);
  }
  return completed;
}

CompletedBlocks DraftProgress::Count() {
  CompletedBlocks completed;
  if (!missing_.empty() || !shares_->ranges_of_blocks()) return completed;
  missing_ = *shares_->ranges_of_blocks();
  changed_.assign(missing_.size(), false);
  for (const auto& [rank, states] : reported_) {
    for (uint32_t batch = 0; batch < states.size(); ++batch) {
      if (states[batch] != BatchState::kMissing) CountBatch(rank, batch, states[batch], completed);
    }
  }
  return completed;
}

void DraftProgress::CountBatch(uint32_t rank, uint32_t batch, BatchState state, CompletedBlocks& completed) {
  for (const StridedRange& range : shares_->Find(rank)->RangesOf(batch)) {
    ForEachBlock(shares_->layout(), range, [&](BlockIndex block) {
      if (state == BatchState::kNew) changed_[block] = true;
      if (--missing_[block] == 0) (changed_[block] ? completed.changed : completed.unchanged).push_back(block);
    });
  }
}

Status DraftProgress::CheckWhole(uint32_t rank) const {
  const wire::Share* const share = shares_->Find(rank);
  const auto at = reported_.find(rank);
  for (uint32_t batch = 0; batch < share->batch_ends.size(); ++batch) {
    if (at != reported_.end() && at->second[batch] != BatchState::kMissing) continue;
    if (share->BytesOf(batch) == 0) continue;
    return {ErrorCode::kBadData, Cat("rank ", rank, " never reported some of its bytes, among them those ",
                                     PlaceOf(rank, batch), "; write and report all that it has to write")};
  }
  return OkStatus();
}

std::string DraftProgress::PlaceOf(uint32_t rank, uint32_t batch) const {
  const model::ModelLayout& layout = shares_->layout();
  for (const StridedRange& range : shares_->Find(rank)->RangesOf(batch)) {
    if (range.row_bytes == 0) continue;
    return Cat("at ", range.offset, ", in tensor \"", layout.tensors()[layout.TensorAt(range.offset)].name, "\"");
  }
  return Cat("in batch ", batch, " of its share");
}

}  // namespace lockstep::run
