// EngineHealth: decides which engines may be sent requests. Each engine has a health service of its own, so that no
// router sends requests to weights from before the run, or to weights that are too old.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "proto/lockstep/v1/receiver.pb.h"
#include "raas_receiver/session/freshness.h"

namespace lockstep::receiver {

// Of one receiver. Used by one thread.
class EngineHealth {
 public:
  // By service: "raas-receiver-engine/MODEL/ENGINE" for each engine, and each group of ranks of another name, and
  // "raas-receiver-engine/MODEL" for all of them.
  using Serving = std::map<std::string, bool>;

  // `follows`: the receiver takes new versions by itself, so that one that it does not take makes an engine old.
  EngineHealth(bool follows, std::chrono::milliseconds unready_after)
      : follows_(follows), unready_after_(unready_after) {}

  // Returns what each service must report now. An engine that is gone is reported as not serving, for good. gRPC
  // forgets no service, and joining engines choose names: beyond kMostServices an engine counts for its model alone.
  static constexpr size_t kMostServices = 1024;
  Serving Update(const v1::ReceiverModel& model);

 private:
  bool Named(const std::string& service);
  bool Serves(const std::string& service, const v1::ReceiverModel& model, const VersionRef& serving);

  const bool follows_;
  const std::chrono::milliseconds unready_after_;
  std::map<std::string, session::Freshness> known_;
  bool full_ = false;  // some engine has no service; it was logged
};

}  // namespace lockstep::receiver
