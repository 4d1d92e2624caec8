#include "trainer_agent/agent/agent_metrics.h"

#include <algorithm>
#include <functional>

namespace lockstep::agent {
namespace {

using metrics::Samples;
using prometheus::MetricType;
using Read = std::function<void(const AgentFacts& facts, Samples& samples)>;

// Of each model that a trainer has opened; `value` is a getter of v1::AgentModel, or what takes one.
template <typename Value>
Read EachModel(Value value) {
  return [value](const AgentFacts& facts, Samples& samples) {
    for (const v1::AgentModel& model : facts.status.models()) {
      samples.Add(static_cast<double>(std::invoke(value, model)), {model.name()});
    }
  };
}

bool IsConnected(const v1::ReceiverState& receiver) {
  return receiver.presence() == v1::RECEIVER_PRESENCE_CONNECTED;
}

// In versions; one of another run is as far behind as one that holds nothing.
uint64_t Behind(const v1::AgentModel& model, const v1::ReceiverState& receiver, uint64_t version) {
  const bool same_run = receiver.held().run() == model.run();
  return same_run ? model.newest_version() - std::min(version, model.newest_version()) : model.newest_version();
}

double MostBehind(const v1::AgentModel& model, uint64_t (*version)(const v1::ReceiverState& receiver)) {
  uint64_t most = 0;
  for (const v1::ReceiverState& receiver : model.receivers()) {
    if (IsConnected(receiver)) most = std::max(most, Behind(model, receiver, version(receiver)));
  }
  return static_cast<double>(most);
}

// Of a presence, by every model that is followed, open or not.
void CountReceivers(const AgentFacts& facts, Samples& samples) {
  const auto count = [&](const auto& model) {
    const auto connected = std::ranges::count_if(model.receivers(), IsConnected);
    const auto gone = std::ranges::count_if(model.receivers(), [](const v1::ReceiverState& receiver) {
      return receiver.presence() == v1::RECEIVER_PRESENCE_GONE;
    });
    samples.Add(static_cast<double>(connected), {model.name(), "connected"});
    samples.Add(static_cast<double>(gone), {model.name(), "gone"});
  };
  for (const v1::AgentModel& model : facts.status.models()) count(model);
  for (const v1::UnopenedModel& model : facts.status.unopened()) count(model);
}

// The delta that led to the newest version; null where none is kept.
const v1::RetainedDelta* NewestDelta(const v1::AgentModel& model) {
  for (const v1::RetainedDelta& delta : model.deltas()) {
    if (delta.target() == model.newest_version()) return &delta;
  }
  return nullptr;
}

Read OfNewestDelta(uint64_t (v1::RetainedDelta::*value)() const) {
  return [value](const AgentFacts& facts, Samples& samples) {
    for (const v1::AgentModel& model : facts.status.models()) {
      const v1::RetainedDelta* const delta = NewestDelta(model);
      if (delta != nullptr) samples.Add(static_cast<double>((delta->*value)()), {model.name()});
    }
  };
}

double Seconds(int64_t unix_ns) {
  return static_cast<double>(unix_ns) / 1e9;
}

}  // namespace

const std::vector<metrics::Row<AgentFacts>>& AgentTable() {
  static const std::vector<metrics::Row<AgentFacts>> table = {
      {{"trainer_agent_build_info",
        MetricType::Gauge,
        {"version", "revision"},
        "always 1; the labels name the running build"},
       [](const AgentFacts& facts, Samples& samples) {
         samples.Add(1, {facts.status.build().version(), facts.status.build().revision()});
       }},
      {{"trainer_agent_draining", MetricType::Gauge, {}, "1 after the daemon was told to end"},
       [](const AgentFacts& facts, Samples& samples) { samples.Add(facts.status.draining() ? 1 : 0, {}); }},
      {{"trainer_agent_newest_version",
        MetricType::Gauge,
        {"model"},
        "newest version that the agent serves; 0 before the first"},
       EachModel(&v1::AgentModel::newest_version)},
      {{"trainer_agent_newest_commit_timestamp_seconds",
        MetricType::Gauge,
        {"model"},
        "when the trainer committed the newest version; 0 before the first"},
       EachModel([](const v1::AgentModel& model) { return Seconds(model.newest_committed_unix_ns()); })},
      {{"trainer_agent_versions_committed_total",
        MetricType::Counter,
        {"model"},
        "versions that were committed since the agent started"},
       EachModel(&v1::AgentModel::versions_committed)},
      {{"trainer_agent_versions_aborted_total", MetricType::Counter, {"model"}, "versions that were aborted"},
       EachModel(&v1::AgentModel::versions_aborted)},
      {{"trainer_agent_ranks_expected", MetricType::Gauge, {"model"}, "the trainer's ranks"},
       EachModel(&v1::AgentModel::ranks_expected)},
      {{"trainer_agent_ranks_connected", MetricType::Gauge, {"model"}, "ranks of the trainer that are connected"},
       EachModel(&v1::AgentModel::ranks_connected)},
      {{"trainer_agent_receivers",
        MetricType::Gauge,
        {"model", "presence"},
        "receivers that are connected, or gone within the last hour"},
       &CountReceivers},
      {{"trainer_agent_receivers_behind",
        MetricType::Gauge,
        {"model"},
        "connected receivers that do not hold the newest version"},
       EachModel([](const v1::AgentModel& model) {
         return static_cast<double>(std::ranges::count_if(model.receivers(), [&](const v1::ReceiverState& receiver) {
           return IsConnected(receiver) && Behind(model, receiver, receiver.held().version()) > 0;
         }));
       })},
      {{"trainer_agent_held_lag_versions",
        MetricType::Gauge,
        {"model"},
        "versions between the newest and the oldest that a connected receiver holds"},
       EachModel([](const v1::AgentModel& model) {
         return MostBehind(model, [](const v1::ReceiverState& receiver) { return receiver.held().version(); });
       })},
      {{"trainer_agent_served_lag_versions",
        MetricType::Gauge,
        {"model"},
        "versions between the newest and the oldest that an engine of a connected receiver serves"},
       EachModel([](const v1::AgentModel& model) {
         return MostBehind(model, [](const v1::ReceiverState& receiver) { return receiver.served_version(); });
       })},
      {{"trainer_agent_receiver_errors",
        MetricType::Gauge,
        {"model"},
        "connected receivers whose last sync or load failed"},
       EachModel([](const v1::AgentModel& model) {
         return static_cast<double>(std::ranges::count_if(model.receivers(), [](const v1::ReceiverState& receiver) {
           return IsConnected(receiver) && !receiver.last_error().empty();
         }));
       })},
      {{"trainer_agent_open_pulls", MetricType::Gauge, {"model"}, "open pulls without standing pulls"},
       EachModel(&v1::AgentModel::open_pulls)},
      {{"trainer_agent_model_bytes", MetricType::Gauge, {"model"}, "bytes of one version; the agent holds two"},
       EachModel(&v1::AgentModel::model_bytes)},
      {{"trainer_agent_retained_deltas", MetricType::Gauge, {"model"}, "retained deltas"},
       EachModel(&v1::AgentModel::deltas_size)},
      {{"trainer_agent_retained_bytes", MetricType::Gauge, {"model"}, "memory of the retained deltas"},
       EachModel(&v1::AgentModel::retained_bytes)},
      {{"trainer_agent_pinned_bytes", MetricType::Gauge, {"model"}, "memory of dropped deltas that pulls still hold"},
       EachModel(&v1::AgentModel::pinned_bytes)},
      {{"trainer_agent_newest_delta_bytes",
        MetricType::Gauge,
        {"model"},
        "encoded size of the delta to the newest version"},
       OfNewestDelta(&v1::RetainedDelta::payload_bytes)},
      {{"trainer_agent_newest_delta_changed_elements",
        MetricType::Gauge,
        {"model"},
        "elements that the newest delta changes"},
       OfNewestDelta(&v1::RetainedDelta::changed_elements)},
      {{"trainer_agent_newest_nonfinite_elements",
        MetricType::Gauge,
        {"model"},
        "elements of the newest version that are NaN or Inf"},
       EachModel([](const v1::AgentModel& model) { return model.newest_change().nonfinite(); })},
      {{"trainer_agent_newest_change_norm",
        MetricType::Gauge,
        {"model"},
        "Euclidean norm of what the newest version changed"},
       EachModel([](const v1::AgentModel& model) { return model.newest_change().norm(); })},
      {{"trainer_agent_newest_largest_change",
        MetricType::Gauge,
        {"model"},
        "the most that the newest version changed an element by"},
       EachModel([](const v1::AgentModel& model) { return model.newest_change().largest(); })},
      {{"trainer_agent_newest_unchanged_tensors",
        MetricType::Gauge,
        {"model"},
        "tensors of which the newest version changed no element"},
       EachModel(&v1::AgentModel::newest_unchanged_tensors)},
      {{"trainer_agent_segments_free_bytes", MetricType::Gauge, {}, "room on the file system of --segment-dir"},
       [](const AgentFacts& facts, Samples& samples) {
         if (facts.segments_free_bytes) samples.Add(static_cast<double>(*facts.segments_free_bytes), {});
       }},
      {{"trainer_agent_certificate_expiry_timestamp_seconds",
        MetricType::Gauge,
        {},
        "when the daemon's certificate expires; no value without TLS"},
       [](const AgentFacts& facts, Samples& samples) {
         if (!facts.certificate_end) return;
         samples.Add(std::chrono::duration<double>(facts.certificate_end->time_since_epoch()).count(), {});
       }},
  };
  return table;
}

}  // namespace lockstep::agent
