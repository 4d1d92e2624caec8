// RankLink: one attached rank of an engine: its connection, what it said of its memory, and what is known to be in it.
//
//   Reading --(Hold)--> Holding --(AwaitHeld)--> Held --(Serve)--> Resuming --(AwaitServing)--> Reading
//
// A rank that attached without a version counts as Reading too: it may read memory of its own making until it is held.
//
// A rank is given portions to stage in any state; it writes them only while it is Held.
//
// Threads: one at a time; gone() may be called from any.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/os/deadline.h"
#include "common/os/unix_socket.h"
#include "raas_receiver/placement/description/description.h"
#include "raas_receiver/targets/messages.h"
#include "raas_receiver/targets/own_writes.h"

namespace lockstep::targets {

class RankLink {
 public:
  // From a connection on which `attach` came. Takes the connection when it answers a link, and leaves it otherwise.
  // kBadData or kProtocol say what is wrong with the message or the description.
  static Result<std::shared_ptr<RankLink>> Open(os::UnixConnection& connection, EngineMessage attach);
  // The peer sees the connection end.
  ~RankLink() { connection_.Shutdown(); }
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  const std::string& model() const { return model_; }
  const std::string& engine() const { return engine_; }
  const placement::RankDescription& description() const { return description_; }
  uint32_t rank() const { return description_.rank; }
  pid_t pid() const { return pid_; }
  // False: HELD says nothing of readers; whoever runs the rank's server must have paused it.
  bool gated() const { return gated_; }
  std::string Label() const;  // "engine tp4, rank 2 (process 4711)"
  OwnWrites& writes() { return writes_; }
  // How long each answer to what is below "portions" may take, and the bytes of a portion.
  void SetStaging(std::chrono::milliseconds timeout, uint64_t portion_bytes);

  // What the rank reads when it is not held: what ATTACH said, then what the last SERVE did.
  const Held& serving() const { return serving_; }
  // The rank is held, and what it read is no version any more.
  void ForgetServing() { serving_ = {}; }
  // What is known to be in its memory, wholly; nothing: anything may be there.
  const Held& holds() const { return holds_; }
  void SetHolds(const Held& held) { holds_ = held; }
  // What the rank said that it holds has not been checked yet.
  bool claims() const { return claims_; }
  void ForgetClaim() { claims_ = false; }

  // Whether the peer has hung up. Never blocks.
  bool gone() const;
  int fd() const { return connection_.fd(); }  // to poll
  // Ends the connection, for whoever else still knows this link.
  void HangUp() { connection_.Shutdown(); }
  // The connection, for somebody else to refuse the rank.
  os::UnixConnection TakeConnection() && { return std::move(connection_); }

  // Messages; every error means that the rank must be dropped. `page` is a descriptor.
  Status SendAttached(int page);
  void SendRefused(const Status& why);
  Status Hold(const Held& next, std::string_view label);
  Status AwaitHeld(const os::Deadline& deadline);
  Status Serve(const Held& held);
  Status ServeAgain() { return Serve(serving_); }
  Status AwaitServing(const os::Deadline& deadline);

  // Portions. Hands over one, and waits until the rank has checked it.
  Status Stage(int portion);
  // The rank writes what was staged, and holds `after` wholly then; nothing: more is to come. Then AwaitWritten.
  Status StartWrite(const Held& after);
  Status AwaitWritten();
  // Whether the memory has what was staged.
  Result<bool> Compare();
  // What was staged is not written.
  void DropStaged();

 private:
  RankLink() = default;
  std::string RankLabel() const;  // "rank 2 (process 4711)": for errors that the group puts its engine's name before
  Status ReadBody(ByteView body);
  Status Await(EngineMessageType type, const os::Deadline& deadline);
  Result<EngineMessage> Receive(EngineMessageType type, const os::Deadline& deadline);

  os::UnixConnection connection_;
  pid_t pid_ = 0;
  std::string model_;
  std::string engine_;
  bool gated_ = true;
  placement::RankDescription description_;
  OwnWrites writes_{*this};
  std::chrono::milliseconds answer_timeout_{30'000};
  bool staged_ = false;  // the rank has something at hand
  Held serving_;
  Held holds_;
  bool claims_ = false;
};

// Sends the peer the reason why it is not taken, and ends the connection.
void SendRefusal(os::UnixConnection& connection, const Status& why);

}  // namespace lockstep::targets
