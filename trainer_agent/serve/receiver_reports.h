// ReceiverReports: what each receiver last reported about each model, for status.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/ids.h"

namespace lockstep::serve {

struct ReceiverReport {
  std::string receiver;
  Held held;
  std::string outcome;  // of its last pull; empty: none has ended
  std::chrono::steady_clock::time_point at;
};

// Thread-safe. Keeps a fleet's worth of receivers for each model; then the stalest make room.
class ReceiverReports {
 public:
  // A report without an outcome, as of a pull that begins, leaves the last one's in place.
  void Add(const std::string& model, ReceiverReport report);
  std::vector<ReceiverReport> Of(const std::string& model) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, ReceiverReport>> reports_;  // model -> receiver
};

}  // namespace lockstep::serve
