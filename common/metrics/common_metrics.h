// The metrics that both daemons have: how long each stage took and what it carried, what was logged as a warning or
// error, and what the process takes of its host.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/histogram.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/telemetry/timeline.h"

namespace lockstep::metrics {

// Thread-safe.
class CommonMetrics {
 public:
  // `daemon`: "trainer_agent", the prefix of names.
  explicit CommonMetrics(std::string_view daemon);

  // A stage has ended.
  void Observe(const telemetry::Span& span);

  std::vector<Definition> Definitions() const;
  void Collect(Families& families) const;

 private:
  struct Stage {
    Stage();
    prometheus::Histogram seconds;
    prometheus::Counter bytes;
  };
  using Key = std::pair<std::string, std::string_view>;  // model, stage

  const std::vector<std::string> names_;
  mutable Mutex mutex_;
  std::map<Key, Stage> stages_ LS_GUARDED_BY(mutex_);
};

}  // namespace lockstep::metrics
