#include "common/versionlog/log_reader.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <map>
#include <set>

#include "common/base/mutex.h"
#include "common/base/text.h"
#include "common/model/manifest.h"
#include "common/objects/sha256.h"
#include "common/payload/block_apply.h"
#include "common/versionlog/head.h"
#include "common/versionlog/history.h"

namespace lockstep::versionlog {
namespace {

constexpr uint64_t kMaxLayoutBytes = uint64_t{1} << 30;

// The most that a delta between versions of `layout` takes: every block, whole.
uint64_t MaxPayloadBytes(const model::ModelLayout& layout) {
  return sizeof(payload::PayloadHeader) + layout.block_count() * sizeof(payload::PayloadEntry) + layout.data_bytes();
}

// Whether deltas lead from `version` to the newest.
bool LeadsFrom(const v1::LogHistory& history, Version version) {
  return version == kMaxVersion || FindDigest(history, version).has_value();
}

}  // namespace

// The blocks that are wanted, and of which version each is.
class BlockMaker {
 public:
  BlockMaker(const model::ModelLayout& layout, const BlocksToMake& wanted)
      : wanted_(wanted), state_(layout.block_count()) {}

  // Those that are not there, by the chunk that has them.
  std::vector<std::pair<uint32_t, std::vector<BlockIndex>>> Missing(const model::ModelLayout& layout,
                                                                    uint64_t chunk_bytes) const {
    std::map<uint32_t, std::vector<BlockIndex>> by_chunk;
    for (const BlockIndex block : wanted_.blocks) {
      if (state_[block].version != 0) continue;
      by_chunk[static_cast<uint32_t>(layout.block_range(block).offset / chunk_bytes)].push_back(block);
    }
    return {by_chunk.begin(), by_chunk.end()};
  }

  std::span<std::byte> place_of(BlockIndex block) const { return wanted_.place_of(block); }

  // A chunk is read whose blocks will be there as they are in `version`. Any thread.
  void Expect(Version version) {
    MutexLock lock(mutex_);
    expected_.insert(version);
  }
  // They are there. REQUIRES Expect. Any thread.
  void Start(const std::vector<BlockIndex>& blocks, Version version) {
    MutexLock lock(mutex_);
    expected_.erase(expected_.find(version));
    for (const BlockIndex block : blocks) state_[block] = {.version = version};
    oldest_ = std::min(oldest_, version);
  }

  // The oldest version that a block is or will be of; kMaxVersion: none is there. Any thread.
  Version oldest() const {
    MutexLock lock(mutex_);
    return expected_.empty() ? oldest_ : std::min(oldest_, *expected_.begin());
  }

  // Blocks that no delta of `history` leads on from are not there any more, and none is expected.
  void Keep(const v1::LogHistory& history) {
    MutexLock lock(mutex_);
    expected_.clear();
    std::map<Version, bool> leads;
    oldest_ = kMaxVersion;
    for (const BlockIndex block : wanted_.blocks) {
      Version& version = state_[block].version;
      if (version == 0) continue;
      const auto [known, unknown] = leads.try_emplace(version, false);
      if (unknown) known->second = LeadsFrom(history, version);
      if (!known->second) state_[block] = {};
      if (version != 0) oldest_ = std::min(oldest_, version);
    }
  }

  // Consecutive deltas, from the oldest version on. A block that does not come out as promised is not made.
  void Apply(payload::ChainView chain, WorkerPool& pool) {
    const Version target = chain.back()->target().version;
    pool.ParallelFor(wanted_.blocks.size(), [&](size_t i) {
      const BlockIndex block = wanted_.blocks[i];
      State& state = state_[block];
      if (state.version == 0 || state.failed) return;
      thread_local std::vector<payload::EntryData> entries;
      payload::FindEntries(chain, block, state.version, entries);
      state.version = std::max(state.version, target);
      if (entries.empty()) return;
      const Result<uint64_t> hash = payload::ApplyEntries(entries, wanted_.place_of(block));
      state.failed = !hash.ok() || *hash != entries.back().entry->target_hash;
      state.hash = hash.ok() ? *hash : 0;
      state.hashed = true;
    });
    MutexLock lock(mutex_);
    oldest_ = std::max(oldest_, target);
  }

  Status Finish(Version made, WorkerPool& pool) {
    std::atomic<int64_t> failed = -1;
    LS_RETURN_IF_ERROR(pool.ParallelTry(wanted_.blocks.size(), [&](size_t i) {
      const BlockIndex block = wanted_.blocks[i];
      State& state = state_[block];
      if (state.failed) failed = block;
      if (state.version == 0 || state.failed) return OkStatus();
      if (!state.hashed) state.hash = model::BlockHash(wanted_.place_of(block));
      return wanted_.on_made(block, state.hash);
    }));
    if (failed < 0) return OkStatus();
    return {ErrorCode::kCorrupt,
            Cat("block ", failed, " of version ", made, " does not come out of its chunk and deltas as they promise")};
  }

 private:
  struct State {
    Version version = 0;  // 0: it is not there
    uint64_t hash = 0;
    bool hashed = false;
    bool failed = false;
  };

  const BlocksToMake& wanted_;
  std::vector<State> state_;  // by block
  mutable Mutex mutex_;
  Version oldest_ LS_GUARDED_BY(mutex_) = kMaxVersion;     // of the blocks that are there
  std::multiset<Version> expected_ LS_GUARDED_BY(mutex_);  // of chunks that are read
};

// --- The head ---

Head LogReader::taken() const {
  MutexLock lock(mutex_);
  return taken_;
}

Result<Head> LogReader::Take(const objects::TaggedObject& object, const Head& before) {
  if (trusted_.empty()) {
    LS_RETURN_IF_ERROR(store_->CheckOwn(model_).WithContext(
        Cat(url(), " is read without keys, so only this user and root may write there")));
  }
  const Result<TrustedKeys> trusted = trusted_.Current();
  Result<v1::LogHead> head = trusted.ok() ? DecodeHead(object.bytes, model_, *trusted) : trusted.status();
  MutexLock lock(mutex_);
  const Status follows = head.ok() && taken_ != nullptr ? CheckFollows(*taken_, *head) : head.status();
  // Another thread has read a newer one meanwhile.
  const bool overtaken = head.ok() && taken_ != before && (before == nullptr || CheckFollows(*before, *head).ok());
  if (!follows.ok() && overtaken) return taken_;
  if (!follows.ok()) return follows.WithContext(Cat(url(), "/", HeadName(model_)));
  taken_ = std::make_shared<const v1::LogHead>(*std::move(head));
  tag_ = object.tag;
  return taken_;
}

Result<Head> LogReader::ReadHead(std::stop_token stop) {
  const Head before = taken();
  LS_ASSIGN_OR_RETURN(const auto object, store_->ReadChanged(HeadName(model_), "", {}, std::move(stop)));
  return Take(*object, before);
}

Result<Head> LogReader::AwaitHead(const Head& seen, std::chrono::milliseconds wait, std::stop_token stop) {
  std::string tag;
  Head before;
  {
    MutexLock lock(mutex_);
    before = taken_;
    if (seen != taken_ && taken_ != nullptr && !tag_.empty()) return taken_;
    if (seen != nullptr) tag = tag_;
  }
  LS_ASSIGN_OR_RETURN(const auto object, store_->ReadChanged(HeadName(model_), tag, wait, stop));
  if (!object) return Head();
  return Take(*object, before);
}

void LogReader::Remember(std::optional<v1::LogHead> seen) {
  MutexLock lock(mutex_);
  taken_ = seen ? std::make_shared<const v1::LogHead>(*std::move(seen)) : nullptr;
  tag_.clear();
}

// --- Objects ---

// An object that is not there: why.
Status LogReader::Missing(const std::string& name, const std::stop_token& stop) {
  LS_ASSIGN_OR_RETURN(const Head now, ReadHead(stop));
  if (ObjectNames(*now).contains(name)) {
    return {ErrorCode::kCorrupt, Cat(url(), "/", name, " is lost: the log's head names it, and it is not there")};
  }
  return {ErrorCode::kAborted, Cat(url(), "/", name, " is not there any more: the log has moved on")};
}

Status LogReader::ReadObject(std::string_view kind, const std::string& sha256, uint64_t bytes,
                             const objects::ObjectStore::Take& take, const std::stop_token& stop) {
  const std::string name = ObjectName(model_, kind, sha256);
  objects::Sha256Stream sum;
  uint64_t read = 0;
  const Status status = store_->Read(
      name,
      [&](ByteView more) -> Status {
        bytes_read_ += more.size();
        read += more.size();
        if (read > bytes) return {ErrorCode::kCorrupt, Cat("it is longer than ", bytes, " bytes")};
        sum.Add(more);
        return take(more);
      },
      stop);
  if (status.code() == ErrorCode::kNotFound) return Missing(name, stop);
  if (!status.ok()) return status.WithContext(Cat(url(), "/", name));
  if (read == bytes && objects::AsRaw(sum.Finish()) == sha256) return OkStatus();
  return {ErrorCode::kCorrupt,
          Cat(url(), "/", name, " is damaged: of its ", bytes, " bytes came ", read, ", and their SHA-256 differs")};
}

// All pieces of all of them, side by side.
Result<std::vector<Bytes>> LogReader::ReadAll(std::string_view kind, std::span<const v1::LogBytes* const> wanted,
                                              const std::stop_token& stop) {
  std::vector<Bytes> read(wanted.size());
  std::vector<std::pair<size_t, int>> pieces;
  for (size_t i = 0; i < wanted.size(); ++i) {
    read[i].resize(wanted[i]->bytes());
    for (int piece = 0; piece < wanted[i]->pieces_size(); ++piece) pieces.emplace_back(i, piece);
  }
  LS_RETURN_IF_ERROR(transfers_.ParallelTry(pieces.size(), [&](size_t i) -> Status {
    const auto [of, piece] = pieces[i];
    const v1::LogBytes& whole = *wanted[of];
    const uint64_t offset = piece * whole.piece_bytes();
    std::span<std::byte> to = std::span(read[of]).subspan(offset);
    to = to.first(std::min<uint64_t>(to.size(), whole.piece_bytes()));
    const uint64_t bytes = to.size();
    const auto take = [&to](ByteView more) {
      std::ranges::copy(more, to.begin());
      to = to.subspan(more.size());
      return OkStatus();
    };
    return ReadObject(kind, whole.pieces(piece), bytes, take, stop);
  }));
  return read;
}

Result<std::shared_ptr<const model::ModelLayout>> LogReader::ReadLayout(const v1::LogHistory& history, bool whole,
                                                                        std::stop_token stop) {
  if (history.layout().bytes() > kMaxLayoutBytes) return Status(ErrorCode::kProtocol, "the head names a huge layout");
  const v1::LogBytes* const wanted = &history.layout();
  LS_ASSIGN_OR_RETURN(const std::vector<Bytes> encoded, ReadAll(kLayout, {&wanted, 1}, stop));
  LS_ASSIGN_OR_RETURN(auto layout, model::ModelLayout::Decode(encoded[0]));
  LS_RETURN_IF_ERROR(CheckLayout(history, *layout, whole).WithContext(url()));
  return layout;
}

Result<std::vector<uint64_t>> LogReader::ReadManifest(const v1::LogHistory& history, std::stop_token stop) {
  const v1::LogBytes* const wanted = &history.manifest();
  LS_ASSIGN_OR_RETURN(const std::vector<Bytes> read, ReadAll(kManifest, {&wanted, 1}, stop));
  std::vector<uint64_t> hashes(read[0].size() / sizeof(uint64_t));
  std::memcpy(hashes.data(), read[0].data(), hashes.size() * sizeof(uint64_t));
  const ManifestDigest digest = model::ComputeManifestDigest({*Bytes16(history.layout_digest())}, hashes);
  if (ToBytes(digest) == history.newest().manifest_digest()) return hashes;
  return Status(ErrorCode::kCorrupt, Cat(url(), ": the manifest of version ", history.newest().version(),
                                         " does not give the digest that the head names"));
}

Result<payload::DeltaChain> LogReader::ReadSteps(const v1::LogHistory& history, const model::ModelLayout& layout,
                                                 std::span<const v1::LogStep* const> steps, std::stop_token stop) {
  std::vector<const v1::LogBytes*> wanted;
  for (const v1::LogStep* step : steps) {
    if (step->payload().bytes() > MaxPayloadBytes(layout)) {
      return Status(ErrorCode::kProtocol, Cat(url(), ": a delta of ", step->payload().bytes(), " bytes"));
    }
    wanted.push_back(&step->payload());
  }
  LS_ASSIGN_OR_RETURN(std::vector<Bytes> read, ReadAll(kDelta, wanted, stop));
  payload::DeltaChain chain(steps.size());
  LS_RETURN_IF_ERROR(workers_.ParallelTry(steps.size(), [&](size_t i) -> Status {
    const auto bytes = std::make_shared<const Bytes>(std::move(read[i]));
    auto opened = payload::Payload::Open(layout, {*bytes, bytes});
    const v1::LogStep& step = *steps[i];
    const std::string where = Cat(url(), ": the delta from version ", step.base(), " to ", step.target().version());
    if (!opened.ok()) return opened.status().WithContext(where);
    const payload::PayloadHeader& header = (*opened)->header();
    const bool named = ToBytes(header.run) == history.run() && header.base == step.base() &&
                       header.target == step.target().version() && header.entries == step.entries() &&
                       header.data_bytes == step.data_bytes() &&
                       ToBytes(header.target_digest) == step.target().manifest_digest();
    if (!named) return {ErrorCode::kProtocol, Cat(where, " is another one")};
    chain[i] = *std::move(opened);
    return OkStatus();
  }));
  return chain;
}

Status LogReader::ReadChunk(const v1::LogChunk& chunk, uint64_t bytes, const objects::ObjectStore::Take& take,
                            std::stop_token stop) {
  return ReadObject(kChunk, chunk.sha256(), bytes, take, stop);
}

Status LogReader::CheckObject(std::string_view kind, const std::string& sha256, uint64_t bytes, std::stop_token stop) {
  return ReadObject(
      kind, sha256, bytes, [](ByteView) { return OkStatus(); }, stop);
}

// --- Blocks ---

Status LogReader::MovedOn() const {
  return {ErrorCode::kAborted, Cat(url(), ": the log has moved on")};
}

// Chunks no newer than `version` of the blocks that are not there.
Status LogReader::ReadChunks(BlockMaker& maker, const model::ModelLayout& layout, uint64_t chunk_bytes, Version version,
                             const NextHistory& next, const std::stop_token& stop) {
  const auto chunks = maker.Missing(layout, chunk_bytes);
  return transfers_.ParallelTry(chunks.size(), [&](size_t i) -> Status {
    const uint32_t index = chunks[i].first;
    const std::vector<BlockIndex>& blocks = chunks[i].second;
    const std::shared_ptr<const v1::LogHistory> history = next();
    if (history == nullptr) return MovedOn();
    const v1::LogChunk* chunk = FindChunk(*history, index, version);
    if (chunk == nullptr) return {ErrorCode::kNotFound, Cat(url(), ": no chunk ", index, " of version ", version)};
    const ByteRange range = ChunkRange(*history, index, layout.data_bytes());
    uint64_t at = range.offset;  // of the bytes that come next
    auto block = blocks.begin();
    const auto take = [&](ByteView bytes) {
      const uint64_t end = at + bytes.size();
      while (block != blocks.end() && layout.block_range(*block).offset < end) {
        const ByteRange place = layout.block_range(*block);
        const uint64_t from = std::max(place.offset, at);
        const uint64_t to = std::min(place.end(), end);
        std::ranges::copy(bytes.subspan(from - at, to - from),
                          maker.place_of(*block).subspan(from - place.offset).begin());
        if (place.end() > end) break;
        ++block;
      }
      at = end;
      return OkStatus();
    };
    maker.Expect(chunk->version());
    LS_RETURN_IF_ERROR(ReadObject(kChunk, chunk->sha256(), range.bytes, take, stop));
    maker.Start(blocks, chunk->version());
    return OkStatus();
  });
}

// All that is there, by the deltas of `history`.
Status LogReader::BringTo(BlockMaker& maker, const v1::LogHistory& history, const model::ModelLayout& layout,
                          Version version, const std::stop_token& stop) {
  const Version first = maker.oldest();
  std::vector<std::vector<const v1::LogStep*>> batches;
  uint64_t batch_bytes = 0;
  for (const v1::LogStep& step : history.steps()) {
    if (step.base() < first || step.target().version() > version) continue;
    // One batch is applied while the next is read.
    if (batches.empty() || batch_bytes + step.payload().bytes() > memory_bytes_ / 2) {
      batches.emplace_back();
      batch_bytes = 0;
    }
    batches.back().push_back(&step);
    batch_bytes += step.payload().bytes();
  }
  const auto read_batch = [&](size_t i) { return ReadSteps(history, layout, batches[i], stop); };
  std::future<Result<payload::DeltaChain>> next;
  for (size_t i = 0; i < batches.size(); ++i) {
    const Result<payload::DeltaChain> chain = i == 0 ? read_batch(0) : next.get();
    LS_RETURN_IF_ERROR(chain);
    if (i + 1 < batches.size()) next = std::async(std::launch::async, read_batch, i + 1);
    maker.Apply(*chain, workers_);
  }
  return OkStatus();
}

Status LogReader::MakeBlocks(const v1::LogHistory& history, const model::ModelLayout& layout, Version version,
                             const BlocksToMake& wanted, std::stop_token stop) {
  BlockMaker maker(layout, wanted);
  const std::shared_ptr<const v1::LogHistory> same(std::shared_ptr<void>(), &history);
  LS_RETURN_IF_ERROR(ReadChunks(
      maker, layout, history.chunk_bytes(), version, [&] { return same; }, stop));
  LS_RETURN_IF_ERROR(BringTo(maker, history, layout, version, stop));
  return maker.Finish(version, workers_);
}

Status LogReader::MakeNewest(Head& head, const model::ModelLayout& layout, const BlocksToMake& wanted,
                             std::stop_token stop) {
  BlockMaker maker(layout, wanted);
  Mutex mutex;
  const auto same_model = [&](const v1::LogHistory& history) {
    return history.run() == head->history().run() && history.chunk_bytes() == head->history().chunk_bytes() &&
           CheckLayout(history, layout, /*whole=*/true).ok();
  };
  // A newer head that another thread has read is gone on with while its deltas lead on from what is there.
  const auto next = [&]() -> std::shared_ptr<const v1::LogHistory> {
    MutexLock lock(mutex);
    const Head now = taken();
    if (now != nullptr && now != head && same_model(now->history())) {
      if (!LeadsFrom(now->history(), maker.oldest())) return nullptr;
      head = now;
    }
    return {head, &head->history()};
  };
  while (true) {
    const Status status = ReadChunks(maker, layout, head->history().chunk_bytes(), kMaxVersion, next, stop);
    if (!status.ok() && status.code() != ErrorCode::kAborted) return status;
    maker.Keep(head->history());
    const bool all = status.ok() && maker.Missing(layout, head->history().chunk_bytes()).empty();
    if (all || next() == nullptr) {
      const Version newest = head->history().newest().version();
      const Status brought = BringTo(maker, head->history(), layout, newest, stop);
      if (!brought.ok() && brought.code() != ErrorCode::kAborted) return brought;
      if (all && brought.ok()) return maker.Finish(newest, workers_);
    }
    LS_ASSIGN_OR_RETURN(const Head now, ReadHead(stop));
    if (!same_model(now->history())) return MovedOn();
    head = now;
    maker.Keep(head->history());
  }
}

}  // namespace lockstep::versionlog
