// Where the lanes of one pull and the thread that waits for them meet: the queue of runs, and what has become of them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/wire/frame.h"
#include "raas_receiver/pull/block_run.h"

namespace lockstep {

// Takes the blocks of one Fetch. Frames have been checked against their run.
class BlockSink {
 public:
  virtual ~BlockSink() = default;
  // Memory of frame.payload_bytes that the payload is to be read into, or an empty span: then Put gets it from the
  // lane's own.
  virtual std::span<std::byte> Destination(const FrameHeader& frame) = 0;
  // The whole payload; it has the frame's hash. A lane may break between Destination and Put: the block then comes
  // again. An error breaks the lane.
  virtual Status Put(const FrameHeader& frame, ByteView payload) = 0;
};

struct LaneCounters {
  uint64_t payload_bytes = 0;  // of blocks received
  uint64_t retries = 0;        // times a lane was opened again
  uint64_t bytes_per_s = 0;    // of all lanes together while blocks came; 0: too few came to tell
};

// What the board needs of a lane. Called by any thread; returns at once.
class BoardMember {
 public:
  virtual ~BoardMember() = default;
  virtual void Wake() = 0;  // there may be work, or an end to it
  virtual void GiveTicket(Result<Ticket> ticket) = 0;
};

// Thread-safe.
class RunBoard {
 public:
  // --- the thread in LaneSet::Fetch ---
  void Join(std::shared_ptr<BoardMember> lane);
  void Post(const std::vector<BlockRun>& runs, BlockSink& sink);
  // Waits until the posted runs are done, or one failed and no lane holds another. Calls `renew` for lanes that want
  // tickets.
  Status Wait(const std::function<Result<std::vector<Ticket>>(size_t lanes)>& renew);
  // Tells every lane to stop; waits for none.
  void Stop();
  // Waits until every lane has left, and forgets them.
  void WaitForLanes();

  // --- lanes ---
  bool stopping() const;
  // Lanes that stand by come in once the link proved long, or a lane was given up.
  void WantSpares();
  bool spares_wanted() const;
  // A run to ask for; the lane owes a Done, GiveBack or Refuse for it.
  std::optional<BlockRun> Take();
  BlockSink& sink() const { return *sink_; }  // REQUIRES a run taken
  void Count(uint64_t payload_bytes);
  void Done();
  void GiveBack(std::optional<BlockRun> rest);
  // The agent will not answer the run.
  void Refuse(Status why);
  void WantTicket(std::shared_ptr<BoardMember> lane);
  // The lane ends: by Stop when OK, else given up because of `status`.
  void Leave(Status status);

  LaneCounters counters() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool Settled() const;
  void Fail(Status status);
  void WakeAll();
  void ServeTickets(std::unique_lock<std::mutex>& lock,
                    const std::function<Result<std::vector<Ticket>>(size_t lanes)>& renew);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<BoardMember>> lanes_;
  std::vector<std::shared_ptr<BoardMember>> wanting_tickets_;
  std::deque<BlockRun> queue_;
  BlockSink* sink_ = nullptr;
  size_t taken_ = 0;    // runs that lanes hold
  size_t present_ = 0;  // lanes that have not left
  bool stopping_ = false;
  bool spares_wanted_ = false;
  Status failure_;    // of the current Post
  Status last_loss_;  // why the last lane left
  LaneCounters counters_;

  // Of the current Post: its blocks come from the first one's end to the last one's.
  Clock::time_point first_block_;
  Clock::time_point last_block_;
  uint64_t bytes_after_first_ = 0;
};

}  // namespace lockstep
