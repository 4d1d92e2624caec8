// An engine's rank as FORMAT.md wants it, with real memfds and a real socket, in a thread or in a process of its own.
// While it is not paused it reads its memory all the time, and counts when that is not the version it serves. For
// tests.
#pragma once

#include <poll.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/os/segment.h"
#include "common/os/unix_socket.h"
#include "common/peer/peer.h"
#include "raas_receiver/engine/placement/description/description.h"
#include "raas_receiver/engine/placement/description/description_testing.h"
#include "raas_receiver/engine/ranks/messages.h"
#include "raas_receiver/engine/ranks/test_own_memory.h"
#include "raas_receiver/engine/ranks/test_rank_memory.h"
#include "raas_receiver/replica/test_model.h"

namespace lockstep::engine {

// For whatever must not fail by its time, on however busy a machine.
inline constexpr std::chrono::seconds kPatience{60};

// What a rank does wrong when it has to answer. One that refuses or hangs up instead of WRITTEN has written a part.
enum class RankFault { kNone, kSilent, kWrong, kHangsUp, kTwice, kRefuses };

// Answers that two ranks give together: each enters, and leaves once the other has entered the same one. In memory that
// they share.
struct Collective {
  std::array<std::atomic<uint64_t>, 2> entered{};                 // answers, by rank
  std::array<std::array<std::atomic<Version>, 2>, 2> versions{};  // read in it, by rank and the answer's parity
};

struct TestRankOptions {
  std::string socket;
  std::string model = "actor";
  std::string engine = "tp2";
  uint32_t group = 0;
  bool gated = true;
  uint32_t rank = 0;
  RankFault at_pause = RankFault::kNone;
  RankFault at_serve = RankFault::kNone;
  RankFault at_stage = RankFault::kNone;
  RankFault at_write = RankFault::kNone;
  RankFault at_compare = RankFault::kNone;
  std::string without;    // a tensor that it does not have
  bool reattach = false;  // when the connection has ended, until status.stop
  bool asleep = false;    // attaches so
  bool compares = false;  // attaches so
  std::string incarnation = "one";
  Collective* collective = nullptr;  // its readers answer in this
  // Called at "pause", "paused", "paused and said so", "stage", "half written", "written", "serve" and "serving";
  // false: the rank hangs up there.
  std::function<bool(std::string_view edge)> at_edge;
  std::string description;             // instead of the engine's own, when not empty
  std::optional<LayoutDigest> layout;  // that the engine's own description says
};

// What others see of a rank, in memory that is shared with a process that it may be.
struct RankStatus {
  std::atomic<uint32_t> attached{0};   // ATTACHED so far
  std::atomic<uint32_t> served{0};     // SERVE so far
  std::atomic<uint32_t> ended{0};      // connections that ended so far
  std::atomic<bool> following{false};  // attached now
  std::atomic<bool> refused{false};
  std::atomic<bool> paused{true};   // reads nothing
  std::atomic<Version> serving{0};  // what it reads, or read
  std::atomic<Version> holding{0};  // what its memory is, wholly
  std::atomic<uint32_t> wrong_reads{0};
  std::atomic<uint32_t> answers{0};  // given together with the other rank
  std::atomic<uint32_t> batches{0};  // staged so far
  std::atomic<uint32_t> at_hand{0};  // staged, and neither written nor compared nor dropped
  std::atomic<uint32_t> most_at_hand{0};
  std::atomic<bool> faulty{true};  // does what is wrong when it stages, writes or compares
  std::atomic<bool> stop{false};
  std::array<char, 512> sentence{};  // of REFUSED
};

class TestRank {
 public:
  // `status` and `memory` (of TestRankMemory::bytes) outlive it. The rank attaches with what status says.
  TestRank(const replica::TestModel& model, TestRankOptions options, RankStatus& status, os::MappedSegment& memory)
      : model_(model),
        options_(std::move(options)),
        parts_(model, options_.rank, options_.without),
        status_(status),
        memory_(memory) {}

  // Until status.stop. No exceptions, no Catch2: runs in threads and forked processes.
  void Run() {
    while (!status_.stop) {
      if (Connect()) {
        Attach();
        Follow();
        if (resumes_) status_.paused = false;  // nothing was written
        resumes_ = hold_waits_ = false;
        connection_ = os::UnixConnection();
        Forget();
        ++status_.ended;
        status_.following = false;
      }
      do {
        Read();
      } while (status_.ended != 0 && !options_.reattach && !status_.stop);
    }
  }

 private:
  bool Connect() {
    Result<os::UnixConnection> connection = os::UnixConnect(options_.socket, kPatience);
    if (!connection.ok()) return false;
    connection_ = *std::move(connection);
    return true;
  }

  void Attach() {
    RankDescription own = parts_.Describe();
    own.layout = options_.layout;
    const std::string description = options_.description.empty() ? ToJson(own) : options_.description;
    const nlohmann::json body{{"peer", peer::SelfLine("engine_rank")},
                              {"model", options_.model},
                              {"engine", options_.engine},
                              {"group", options_.group},
                              {"incarnation", options_.incarnation},
                              {"gated", options_.gated},
                              {"state", State()},
                              {"description", nlohmann::json::parse(description)}};
    const std::string text = body.dump();
    const ByteView bytes = AsBytes(std::string_view(text));
    const VersionRef holds = options_.asleep || status_.holding == 0 ? VersionRef() : model_.held(status_.holding);
    (void)SendEngineMessage(connection_,
                            {.type = EngineMessageType::kAttach, .held = holds, .body = {bytes.begin(), bytes.end()}},
                            {}, kPatience);
  }

  const char* State() const {
    if (options_.asleep) return "asleep";
    if (options_.compares) return "comparing";
    return status_.paused ? "waiting" : "reading";
  }

  void Follow() {
    while (!status_.stop) {
      pollfd readable{connection_.fd(), POLLIN | POLLRDHUP, 0};
      if (::poll(&readable, 1, 1) <= 0) {
        Read();
        if (!HoldUnlessInside()) return;
        continue;
      }
      Result<EngineMessage> message = ReceiveEngineMessage(connection_, kPatience);
      if (!message.ok() || !Answer(*message)) return;
    }
  }

  bool Answer(EngineMessage& message) {
    switch (message.type) {
      case EngineMessageType::kAttached:
        ++status_.attached;
        status_.following = true;
        return message.fds.empty();
      case EngineMessageType::kRefused:
        std::copy_n(reinterpret_cast<const char*>(message.body.data()),
                    std::min(message.body.size(), status_.sentence.size() - 1), status_.sentence.data());
        status_.refused = true;
        return false;
      case EngineMessageType::kPause:
        if (options_.at_pause == RankFault::kSilent) return true;  // and still reads
        if (!Edge("pause")) return false;
        hold_waits_ = true;
        return HoldUnlessInside();
      case EngineMessageType::kServe:
        if (options_.at_serve == RankFault::kSilent) return true;
        if (!Edge("serve")) return false;
        Serve(message.held);
        ++status_.served;
        return Edge("serving") && Reply(EngineMessageType::kServing, options_.at_serve);
      case EngineMessageType::kStage:
        return Stage(message) && Edge("stage") && Reply(EngineMessageType::kStaged, Fault(options_.at_stage));
      case EngineMessageType::kWrite:
        return Write(message.held) && Edge("written") && Reply(EngineMessageType::kWritten, Fault(options_.at_write));
      case EngineMessageType::kCompare:
        return Reply(EngineMessageType::kCompared, Fault(options_.at_compare), Bytes(1, std::byte{Compare()}));
      case EngineMessageType::kDrop:
        Forget();
        return true;
      default:
        return false;
    }
  }

  bool Edge(std::string_view edge) const { return !options_.at_edge || options_.at_edge(edge); }

  // False: it has hung up.
  bool HoldUnlessInside() {
    if (!hold_waits_ || inside_ || OtherWaitsInside()) return true;
    hold_waits_ = false;
    if (!status_.paused.exchange(true)) resumes_ = true;
    return Edge("paused") && Reply(EngineMessageType::kPaused, options_.at_pause) && Edge("paused and said so");
  }

  RankFault Fault(RankFault fault) const { return status_.faulty ? fault : RankFault::kNone; }

  bool Reply(EngineMessageType type, RankFault fault, const Bytes& body = {}) {
    if (fault == RankFault::kSilent) return true;
    if (fault == RankFault::kHangsUp) return false;
    if (fault == RankFault::kWrong) type = EngineMessageType::kAttached;
    if (fault == RankFault::kRefuses) {
      const ByteView why = AsBytes(std::string_view("byte 4096 of memory 0 leaves it"));
      (void)SendEngineMessage(connection_, {.type = EngineMessageType::kRefused, .body = {why.begin(), why.end()}}, {},
                              kPatience);
      return false;
    }
    for (int times = fault == RankFault::kTwice ? 2 : 1; times > 0; --times) {
      if (!SendEngineMessage(connection_, {.type = type, .body = body}, {}, kPatience).ok()) return false;
    }
    return true;
  }

  // --- its memory ---

  bool Stage(EngineMessage& message) {
    if (message.fds.size() != 1 || !staged_.Stage(message.fds[0], parts_.bytes())) return false;
    ++status_.batches;
    status_.at_hand = staged_.size();
    status_.most_at_hand = std::max(status_.most_at_hand.load(), staged_.size());
    return true;
  }

  void Forget() {
    staged_.Drop();
    status_.at_hand = 0;
  }

  bool Write(const VersionRef& after) {
    if (!status_.paused) ++status_.wrong_reads;
    const RankFault fault = Fault(options_.at_write);
    const bool breaks = fault == RankFault::kHangsUp || fault == RankFault::kRefuses;
    resumes_ = false;
    status_.holding = 0;
    staged_.Write(memory_.data(), 1000);
    if (!Edge("half written")) return false;
    if (!breaks) staged_.Write(memory_.data(), UINT64_MAX);
    Forget();
    if (!breaks) status_.holding = after.version;
    return true;
  }

  bool Compare() {
    const bool equal = staged_.Equal(memory_.data());
    Forget();
    return equal;
  }

  void Serve(const VersionRef& held) {
    if (held.run != model_.run() || held.nothing()) ++status_.wrong_reads;
    if (status_.holding != held.version) ++status_.wrong_reads;
    resumes_ = false;
    status_.serving = held.version;
    status_.paused = false;
  }

  void Read() {
    if (status_.paused) return std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (!parts_.Is(status_.serving, memory_.data())) ++status_.wrong_reads;
    if (options_.collective != nullptr) AnswerTogether();
  }

  // Enters the next answer, or leaves the one that it is in, where the other allows.
  void AnswerTogether() {
    Collective& all = *options_.collective;
    const uint32_t me = options_.rank;
    if (!inside_ && (!hold_waits_ || OtherWaitsInside())) {
      const uint64_t answer = all.entered[me] + 1;
      all.versions[me][answer % 2] = status_.serving.load();
      all.entered[me] = answer;
      inside_ = true;
    }
    const uint64_t answer = all.entered[me];
    if (!inside_ || all.entered[1 - me] < answer) return;
    if (all.versions[1 - me][answer % 2] != status_.serving) ++status_.wrong_reads;
    ++status_.answers;
    inside_ = false;
  }

  bool OtherWaitsInside() const {
    if (options_.collective == nullptr || status_.paused) return false;
    return options_.collective->entered[1 - options_.rank] > options_.collective->entered[options_.rank];
  }

  const replica::TestModel& model_;
  const TestRankOptions options_;
  const TestRankMemory parts_;
  RankStatus& status_;
  os::MappedSegment& memory_;
  os::UnixConnection connection_;
  StagedWriteBatches staged_;
  bool inside_ = false;      // an answer of the collective
  bool hold_waits_ = false;  // for the end of that
  bool resumes_ = false;     // held, and not written since: it goes on when the connection ends
};

}  // namespace lockstep::engine
