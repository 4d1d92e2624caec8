// Reporter: tells the origin what a session holds, what its engines serve, and its last error, when that changes and
// now and then; and finds out whether the origin has the model at all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "proto/lockstep/v1/agent.pb.h"
#include "raas_receiver/origin/origin.h"
#include "raas_receiver/session/change_signal.h"

namespace lockstep::session {

class Reporter {
 public:
  using Snapshot = std::function<v1::ReportRequest()>;
  // How often the origin was met so far: one that was restarted has to be told again.
  using Meetings = std::function<uint64_t()>;

  // `changed` is notified whenever `snapshot` or `meetings`, called on the reporter's thread, may answer otherwise. All
  // of them outlive this.
  Reporter(origin::Origin& origin, ChangeSignal& changed, Snapshot snapshot, Meetings meetings);

  // Reports on a thread of its own, until a stop is requested and `changed` notified of it. An origin that does not
  // answer is tried again. It is to be joined before the destruction.
  void Start(std::stop_token stop);
  void Join();

  struct Refusal {
    std::string text;  // empty: there is none
    int64_t unix_ns = 0;
  };
  // Why no version will come, as far as the origin's last answer says, and when that came. Any thread.
  Refusal refusal() const;

 private:
  void Loop(const std::stop_token& stop);
  bool Send(const v1::ReportRequest& report, const std::stop_token& stop);
  bool SetRefusal(const std::string& text);  // whether it is another than before

  origin::Origin& origin_;
  ChangeSignal& changed_;
  const Snapshot snapshot_;
  const Meetings meetings_;
  mutable Mutex mutex_;
  Refusal refusal_ LS_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace lockstep::session
