// ReceiverReports: what each receiver last said about each model, and whether it is there, for status and for callers
// that wait until a version is served.
//
// A receiver is there while it holds a stream of versions (Connect). One whose streams have ended stays listed for an
// hour, unless another process of its name is there. A pull says no process: it counts for the receiver of its name.
// A report of one peer never counts as another peer's, even under the same name.
#pragma once

#include <chrono>
#include <compare>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/telemetry/log_limit.h"

namespace lockstep::serve {

// In place of a receiver's name: every receiver that is connected.
inline constexpr const char* kEveryReceiver = "*";

// A receiver of a model: as it says itself, but for the owner.
struct ReceiverKey {
  std::string model;
  std::string name;
  std::string owner;     // the peer's identity (common/access/identity.h); empty: peers have none
  std::string instance;  // 16 bytes, of the process; empty: not known

  auto operator<=>(const ReceiverKey&) const = default;
};

// kBadData: a receiver's name is too long to be one, or has control characters.
Status CheckReceiverName(const std::string& name);

// Numbers as v1::ReceiverPresence has them.
enum class Presence : uint8_t {
  kUnknown,  // it holds no stream of versions, and never did, as far as is known
  kConnected,
  kGone,
};

// One of a receiver's engines.
struct EngineReport {
  std::string name;
  VersionRef served;       // version 0: the engine serves none, or it is not known
  std::string last_error;  // empty after a success
};

struct ReceiverReport {
  using Clock = std::chrono::steady_clock;

  ReceiverKey receiver;
  VersionRef held;
  VersionRef served;                  // by its engine; version 0: none, or not known
  std::string outcome;                // of its last pull; empty: none has ended
  std::string last_error;             // its own, of syncs and engine
  std::vector<EngineReport> engines;  // of one that has several
  Clock::time_point at;               // when it last said something
  Presence presence = Presence::kUnknown;
  Clock::time_point gone_at;  // while kGone: when its last stream ended
  bool name_shared = false;   // with another process that is connected, of any owner
};

// Thread-safe. Keeps a fleet's worth of receivers, a quarter of that of one owner that has a name; then the stalest of
// those that are not connected make room.
class ReceiverReports {
 public:
  using Clock = ReceiverReport::Clock;

  // Records that a pull of `receiver` began (empty outcome) or ended. A pull names no instance: OfPull does nothing
  // when several processes of the owner have the name, because each of them reports for itself.
  void OfPull(const ReceiverKey& receiver, const VersionRef& held, const std::string& outcome);
  // Replaces the receiver's last report. kBadData: the model's or receiver's name, or the instance, is malformed.
  Status Report(const ReceiverKey& receiver, const VersionRef& held, const VersionRef& served,
                const std::string& last_error, std::vector<EngineReport> engines = {});

  // A stream of versions: its receiver is connected as long as this lives.
  class Connection {
   public:
    Connection(ReceiverReports* reports, ReceiverKey receiver) : reports_(reports), receiver_(std::move(receiver)) {}
    ~Connection() {
      if (reports_ != nullptr) reports_->Disconnect(receiver_);
    }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

   private:
    ReceiverReports* const reports_;  // null: there was no room for it
    const ReceiverKey receiver_;
  };
  // Errors as Report's. Another process of that name that is connected is logged. REQUIRES this to outlive the answer.
  Result<std::unique_ptr<Connection>> Connect(const ReceiverKey& receiver);

  std::vector<ReceiverReport> Of(const std::string& model, Clock::time_point now = Clock::now());
  std::vector<std::string> Models() const;  // that have a receiver here

 private:
  struct Entry {
    ReceiverReport report;
    int streams = 0;
  };
  using Entries = std::map<ReceiverKey, Entry>;
  struct Range {
    Entries::iterator begin;
    Entries::iterator end;

    size_t connected() const;  // how many of these processes are
  };

  void Disconnect(const ReceiverKey& receiver);
  // The entry of `receiver`, a new one if need be; null when there is no room.
  Entry* Find(const ReceiverKey& receiver) LS_REQUIRES(mutex_);
  // The entry for a pull, without an instance: the only connected namesake, else the only namesake, else a new entry.
  // Null: there are several, or no room.
  Entry* FindPuller(const ReceiverKey& receiver) LS_REQUIRES(mutex_);
  size_t CountOf(const std::string& owner) const LS_REQUIRES(mutex_);
  // Drops the stalest entry that is not connected, of `owner` alone if it is not empty. False: every one is connected.
  bool MakeRoom(const std::string& owner) LS_REQUIRES(mutex_);
  // The entries of the receiver's model and name, of any process and owner.
  Range OfName(const ReceiverKey& receiver) LS_REQUIRES(mutex_);
  // The entries of the receiver's model, name and owner, of any process.
  Range Namesakes(const ReceiverKey& receiver) LS_REQUIRES(mutex_);
  // Drops the gone namesakes of one that is there.
  void DropReplaced(const ReceiverKey& receiver) LS_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Entries entries_ LS_GUARDED_BY(mutex_);
  telemetry::LogLimit shared_names_;
};

}  // namespace lockstep::serve
