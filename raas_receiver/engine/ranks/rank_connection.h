// RankConnection: one attached rank of an engine: its connection, what it said of its memory, and what is known to be
// in it.
//
//   Reading --(Pause)--> Pausing --(AwaitPaused)--> Paused --(Serve, Resume)--> Resuming --(AwaitServing)--> Reading
//
// A rank that attached as waiting is paused too; it answers Pause again. A rank is given write batches to stage in any
// state; it writes them only while it is paused. One that is asleep is only attached, so that it is known to be there.
// One that compares stages and compares, and gets no other message.
//
// Threads: one at a time; gone() may be called from any, and several may stage or write write batches.
#pragma once

#include <sys/types.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/os/deadline.h"
#include "common/os/unique_fd.h"
#include "common/os/unix_socket.h"
#include "raas_receiver/engine/placement/description/description.h"
#include "raas_receiver/engine/ranks/messages.h"

namespace lockstep::engine {

class RankConnection {
 public:
  // From a connection on which `attach` came. Takes the connection when it answers a RankConnection, and leaves it
  // otherwise. kBadData or kProtocol say what is wrong with the message or the description.
  static Result<std::shared_ptr<RankConnection>> Open(os::UnixConnection& connection, EngineMessage attach);
  // The peer sees the connection end.
  ~RankConnection() { connection_.Shutdown(); }
  RankConnection(const RankConnection&) = delete;
  RankConnection& operator=(const RankConnection&) = delete;

  const std::string& model() const { return model_; }
  const std::string& engine() const { return engine_; }
  // Of the ranks that share one copy of the model: the engine's name, and a number if it is not 0.
  const std::string& group() const { return group_; }
  const RankDescription& description() const { return description_; }
  uint32_t rank() const { return description_.rank; }
  // Whether its description was made for `layout`; else why the rank is refused.
  bool IsFor(const model::ModelLayout& layout) const;
  Status ForAnotherLayout() const;
  // The ranks of its group that attach to this receiver, rising: all of them, or those of one of several hosts.
  const std::vector<uint32_t>& here() const { return here_; }
  bool is_among_others() const { return here_.size() < description_.world; }
  // Its position in here().
  size_t place() const;
  pid_t pid() const { return pid_; }
  // False: PAUSED says nothing of readers; the rank's server must have been paused before.
  bool gated() const { return gated_; }
  // What tells two starts of one server apart.
  const std::string& incarnation() const { return incarnation_; }
  // The URL of its server, as it says itself; empty: it does not.
  const std::string& server() const { return server_; }
  // Its memory is not there.
  bool asleep() const { return asleep_; }
  // Others write its memory, which it only compares.
  bool compares() const { return compares_; }
  std::string Label() const;  // "engine tp4/1, rank 2 (process 4711)"
  // How long each answer to what is below "write batches" may take.
  void SetAnswerTimeout(std::chrono::milliseconds timeout) { answer_timeout_ = timeout; }

  // What the rank reads: what ATTACH said, then what the last SERVE did; nothing: it waits.
  VersionRef reads() const { return paused_ ? VersionRef() : reads_; }
  // The same, or what it would go on with if the connection ended now.
  const VersionRef& goes_on_with() const { return reads_; }
  // What is known to be in its memory, wholly; nothing: anything may be there.
  VersionRef holds() const { return proved_ ? memory_ : VersionRef(); }
  // What ATTACH said that it holds, or what it held before Doubt, until that is checked; nothing: nothing is to be
  // checked.
  VersionRef claim() const { return proved_ ? VersionRef() : memory_; }
  void SetHolds(const VersionRef& held) {
    memory_ = held;
    proved_ = true;
  }
  // It may hold something else than was written.
  void Doubt() { proved_ = false; }

  // Whether the peer has hung up. Never blocks.
  bool gone() const;
  int fd() const { return connection_.fd(); }  // to poll
  // Ends the connection, also for other threads that know it.
  void HangUp() { connection_.Shutdown(); }
  // The connection, for the caller to refuse the rank.
  os::UnixConnection TakeConnection() && { return std::move(connection_); }

  // Whether the rank has not got ATTACHED yet.
  bool newcomer() const { return !attached_; }

  // Messages; every error means that the rank must be dropped.
  Status SendAttached();
  void SendRefused(const Status& why);
  Status Pause(const VersionRef& next, std::string_view label);
  Status AwaitPaused(const os::Deadline& deadline);
  Status Serve(VersionRef held);
  // A rank that was not written since Pause, which ended its reading, goes on with what it read. Others wait on.
  Status Resume() { return !paused_ || reads_.nothing() ? OkStatus() : Serve(reads_); }
  Status AwaitServing(const os::Deadline& deadline);
  // Says that this receiver has come so far with `version`, and asks whether the engine's other receivers have.
  Result<Agreement> Agree(AgreeStep step, const VersionRef& version);

  // Write batches (placement/writes/FORMAT.md). Whatever goes wrong ends the connection, and is what later calls
  // answer.

  //   staged, checked by the rank --(Write, FinishWriting)--> being written --(AwaitWritten)--> written

  Status Stage(const os::UniqueFd& batch);
  // Stages it, and has the rank write all that is staged, while the next one is packed. From here on it holds nothing
  // that is known.
  Status Write(const os::UniqueFd& batch);
  // The rank writes what it has staged, if anything, and from then on holds `after` wholly; then AwaitWritten.
  Status FinishWriting(const VersionRef& after);
  // Waits for what the rank was told to write, if anything.
  Status AwaitWritten();
  // Whether the memory has what the write batch says.
  Result<bool> Compare(const os::UniqueFd& batch);
  // What is staged is not written.
  void DropStaged();

 private:
  RankConnection() = default;
  std::string RankLabel() const;  // "rank 2 (process 4711)": for errors that RankGroup puts its name before
  Status ReadBody(const EngineMessage& attach);
  Status ReadState(const std::string& state);
  Status ReadHere(const nlohmann::json& here);
  Status SendStage(const os::UniqueFd& batch) LS_REQUIRES(write_batches_mutex_);
  Status StartWrite(const VersionRef& after) LS_REQUIRES(write_batches_mutex_);
  Status AwaitStarted() LS_REQUIRES(write_batches_mutex_);
  Status Ask(EngineMessageType type, const VersionRef& held, std::span<const int> fds)
      LS_REQUIRES(write_batches_mutex_);
  Status Checked(Status status) LS_REQUIRES(write_batches_mutex_);
  Status Await(EngineMessageType type, const os::Deadline& deadline);
  Result<EngineMessage> Receive(EngineMessageType type, const os::Deadline& deadline);
  Result<uint8_t> ReceiveByte(EngineMessageType type, uint8_t most);

  os::UnixConnection connection_;
  pid_t pid_ = 0;
  std::string model_;
  std::string engine_;
  std::string group_;
  std::string incarnation_;
  std::string server_;
  bool gated_ = true;
  bool asleep_ = false;
  bool compares_ = false;
  bool attached_ = false;  // ATTACHED was sent
  RankDescription description_;
  std::vector<uint32_t> here_;
  std::chrono::milliseconds answer_timeout_{30'000};
  Mutex write_batches_mutex_;                                // one write batch after the other
  bool staged_ LS_GUARDED_BY(write_batches_mutex_) = false;  // the rank has something staged
  // What the WRITE makes of its memory that it has not answered.
  std::optional<VersionRef> writing_ LS_GUARDED_BY(write_batches_mutex_);
  Status failed_ LS_GUARDED_BY(write_batches_mutex_);  // of write batches
  VersionRef reads_;     // what the rank reads, or read before Pause; nothing once it is written
  bool paused_ = false;  // since Pause
  VersionRef memory_;    // what is in the rank's memory
  bool proved_ = false;  // memory_ was written or compared here; false: the rank says so
};

using Ranks = std::vector<std::shared_ptr<RankConnection>>;

// Sends the peer the reason why it is not taken, and ends the connection.
void SendRefusal(os::UnixConnection& connection, const Status& why);

// The model whose layout ASK wants. kBadData or kProtocol say what is wrong with the message.
Result<std::string> ReadAsk(const EngineMessage& ask);
// The body of LAYOUT.
Bytes LayoutBody(const model::ModelLayout& layout);

}  // namespace lockstep::engine
