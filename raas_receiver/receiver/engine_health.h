// Which engines may be sent requests: what health tells of each by a name of its own, so that no router sends requests
// to weights of before the run, or to those that are too old.
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

  // What is to be told now. An engine that is there no more is told as not serving, for good. gRPC forgets no service,
  // and engines that join choose their names: after kMostServices a new engine counts for its model alone.
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
