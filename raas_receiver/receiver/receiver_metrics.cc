#include "raas_receiver/receiver/receiver_metrics.h"

#include <algorithm>
#include <functional>

namespace lockstep::receiver {
namespace {

using metrics::Samples;
using prometheus::MetricType;
using Read = std::function<void(const ReceiverFacts& facts, Samples& samples)>;

// `value` is a getter of v1::ReceiverModel, or what takes one; of v1::RankGroup or v1::Engine below.
template <typename Value>
Read EachModel(Value value) {
  return [value](const ReceiverFacts& facts, Samples& samples) {
    for (const v1::ReceiverModel& model : facts.status.models()) {
      samples.Add(static_cast<double>(std::invoke(value, model)), {model.name()});
    }
  };
}

template <typename Value>
Read EachRankGroup(Value value) {
  return [value](const ReceiverFacts& facts, Samples& samples) {
    for (const v1::ReceiverModel& model : facts.status.models()) {
      for (const v1::RankGroup& group : model.rank_groups()) {
        samples.Add(static_cast<double>(std::invoke(value, group)), {model.name(), group.name()});
      }
    }
  };
}

template <typename Value>
Read EachEngine(Value value) {
  return [value](const ReceiverFacts& facts, Samples& samples) {
    for (const v1::ReceiverModel& model : facts.status.models()) {
      for (const v1::Engine& engine : model.engines()) {
        samples.Add(static_cast<double>(value(engine)), {model.name(), engine.name()});
      }
    }
  };
}

// Of the logs that are written; `value` takes a v1::Archive.
template <typename Value>
Read EachArchive(Value value) {
  return [value](const ReceiverFacts& facts, Samples& samples) {
    for (const v1::ReceiverModel& model : facts.status.models()) {
      if (model.has_archive()) samples.Add(static_cast<double>(std::invoke(value, model.archive())), {model.name()});
    }
  };
}

// "serving"
std::string StateName(v1::EngineState state) {
  std::string name = v1::EngineState_Name(state).substr(std::string_view("ENGINE_STATE_").size());
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

double Lag(uint64_t newest, uint64_t version) {
  return static_cast<double>(newest - std::min(version, newest));
}

double Seconds(int64_t unix_ns) {
  return static_cast<double>(unix_ns) / 1e9;
}

}  // namespace

const std::vector<metrics::Row<ReceiverFacts>>& ReceiverTable() {
  static const std::vector<metrics::Row<ReceiverFacts>> table = {
      {{"raas_receiver_build_info",
        MetricType::Gauge,
        {"version", "revision"},
        "always 1; the labels name the running build"},
       [](const ReceiverFacts& facts, Samples& samples) {
         samples.Add(1, {facts.status.build().version(), facts.status.build().revision()});
       }},
      {{"raas_receiver_draining", MetricType::Gauge, {}, "1 after the daemon was told to end"},
       [](const ReceiverFacts& facts, Samples& samples) { samples.Add(facts.status.draining() ? 1 : 0, {}); }},
      {{"raas_receiver_newest_version", MetricType::Gauge, {"model"}, "newest known version of the source"},
       EachModel(&v1::ReceiverModel::newest_version)},
      {{"raas_receiver_held_version", MetricType::Gauge, {"model"}, "verified version under `current`"},
       EachModel([](const v1::ReceiverModel& model) { return static_cast<double>(model.held().version()); })},
      {{"raas_receiver_served_version",
        MetricType::Gauge,
        {"model"},
        "version that the engine last took, or the held version if no engine is notified; 0: none, or not known"},
       EachModel(&v1::ReceiverModel::served_version)},
      {{"raas_receiver_held_lag_versions",
        MetricType::Gauge,
        {"model"},
        "versions by which the held version is behind the source"},
       EachModel([](const v1::ReceiverModel& model) { return Lag(model.newest_version(), model.held().version()); })},
      {{"raas_receiver_served_lag_versions",
        MetricType::Gauge,
        {"model"},
        "versions by which the engine is behind the source"},
       EachModel([](const v1::ReceiverModel& model) { return Lag(model.newest_version(), model.served_version()); })},
      {{"raas_receiver_held_commit_timestamp_seconds",
        MetricType::Gauge,
        {"model"},
        "when the trainer committed the held version; 0: none is held"},
       EachModel([](const v1::ReceiverModel& model) { return Seconds(model.held_committed_unix_ns()); })},
      {{"raas_receiver_last_sync_timestamp_seconds",
        MetricType::Gauge,
        {"model"},
        "when a sync last succeeded, with or without a newer version; 0: never since the start"},
       EachModel([](const v1::ReceiverModel& model) { return Seconds(model.last_sync_unix_ns()); })},
      {{"raas_receiver_held_by_rollback",
        MetricType::Gauge,
        {"model"},
        "1 while a rollback keeps the receiver from newer versions"},
       EachModel([](const v1::ReceiverModel& model) {
         return model.state() == v1::SESSION_STATE_HELD || model.skipped_version() != 0 ? 1.0 : 0.0;
       })},
      {{"raas_receiver_failing", MetricType::Gauge, {"model"}, "1 from an error until the next success"},
       EachModel([](const v1::ReceiverModel& model) { return model.last_error().empty() ? 0.0 : 1.0; })},
      {{"raas_receiver_syncs_total", MetricType::Counter, {"model"}, "versions that were committed"},
       EachModel(&v1::ReceiverModel::syncs)},
      {{"raas_receiver_sync_failures_total", MetricType::Counter, {"model"}, "syncs that failed"},
       EachModel(&v1::ReceiverModel::failures)},
      {{"raas_receiver_lane_retries_total", MetricType::Counter, {"model"}, "lanes that were opened again"},
       EachModel(&v1::ReceiverModel::lane_retries)},
      {{"raas_receiver_plaintext_bytes_total",
        MetricType::Counter,
        {"model"},
        "bytes that came over a network in plaintext"},
       EachModel(&v1::ReceiverModel::plain_bytes)},
      {{"raas_receiver_repaired_blocks_total",
        MetricType::Counter,
        {"model"},
        "blocks that were wrong after a pull and were fetched again"},
       EachModel(&v1::ReceiverModel::repaired_blocks)},
      {{"raas_receiver_damaged_blocks_total",
        MetricType::Counter,
        {"model"},
        "blocks of replicas that hashing again found damaged"},
       EachModel(&v1::ReceiverModel::damaged_blocks)},
      {{"raas_receiver_scrubbed_bytes_total",
        MetricType::Counter,
        {"model"},
        "bytes of replicas that were hashed again"},
       EachModel(&v1::ReceiverModel::scrubbed_bytes)},
      {{"raas_receiver_replicas_replaced_total",
        MetricType::Counter,
        {"model"},
        "replicas that got a new file because a reader still had the old one mapped"},
       EachModel(&v1::ReceiverModel::replicas_replaced)},
      {{"raas_receiver_engine_failures_total",
        MetricType::Counter,
        {"model"},
        "failed attempts to bring a version to an engine"},
       EachModel(&v1::ReceiverModel::engine_failures)},
      {{"raas_receiver_model_bytes", MetricType::Gauge, {"model"}, "bytes of one version; the receiver holds two"},
       EachModel(&v1::ReceiverModel::model_bytes)},
      {{"raas_receiver_root_free_bytes", MetricType::Gauge, {}, "room on the file system of --root"},
       [](const ReceiverFacts& facts, Samples& samples) {
         if (facts.root_free_bytes) samples.Add(static_cast<double>(*facts.root_free_bytes), {});
       }},
      {{"raas_receiver_engine_state",
        MetricType::Gauge,
        {"model", "engine", "state"},
        "1 for the state that an engine is in: waiting, serving, preparing, writing, loading, asleep or failing"},
       [](const ReceiverFacts& facts, Samples& samples) {
         for (const v1::ReceiverModel& model : facts.status.models()) {
           for (const v1::Engine& engine : model.engines()) {
             samples.Add(1, {model.name(), engine.name(), StateName(engine.state())});
           }
         }
       }},
      {{"raas_receiver_engine_served_version",
        MetricType::Gauge,
        {"model", "engine"},
        "version that an engine took, or the held version if no engine is notified; 0: none, or not known"},
       EachEngine([](const v1::Engine& engine) { return static_cast<double>(engine.served().version()); })},
      {{"raas_receiver_engine_late",
        MetricType::Gauge,
        {"model", "engine"},
        "1 while an engine is late: the receiver no longer waits for it"},
       EachEngine([](const v1::Engine& engine) { return engine.late() ? 1.0 : 0.0; })},
      {{"raas_receiver_engine_pause_seconds",
        MetricType::Gauge,
        {"model", "engine"},
        "pause of an engine for its last version; with the directory, time of the load"},
       EachEngine([](const v1::Engine& engine) { return static_cast<double>(engine.last_pause_us()) / 1e6; })},
      {{"raas_receiver_engine_ranks_expected",
        MetricType::Gauge,
        {"model", "engine"},
        "ranks that a group of an engine has"},
       EachRankGroup(&v1::RankGroup::world)},
      {{"raas_receiver_engine_ranks_attached", MetricType::Gauge, {"model", "engine"}, "ranks that are attached"},
       EachRankGroup(&v1::RankGroup::attached)},
      {{"raas_receiver_engine_ranks_waiting",
        MetricType::Gauge,
        {"model", "engine"},
        "attached ranks that wait until a whole version is written"},
       EachRankGroup(&v1::RankGroup::waiting)},
      {{"raas_receiver_engine_ranks_asleep",
        MetricType::Gauge,
        {"model", "engine"},
        "attached ranks that are asleep, without weights in memory"},
       EachRankGroup(&v1::RankGroup::asleep)},
      {{"raas_receiver_engine_commits_total",
        MetricType::Counter,
        {"model", "engine"},
        "versions that were written into an engine in place"},
       EachRankGroup(&v1::RankGroup::commits)},
      {{"raas_receiver_engine_write_failures_total",
        MetricType::Counter,
        {"model", "engine"},
        "writes of a version into an engine that failed"},
       EachRankGroup(&v1::RankGroup::failures)},
      {{"raas_receiver_log_written_timestamp_seconds",
        MetricType::Gauge,
        {"model"},
        "when the writer of the source log wrote the head that was read last; 0: no log, or no head read yet"},
       EachModel([](const v1::ReceiverModel& model) { return Seconds(model.log_written_unix_ns()); })},
      {{"raas_receiver_log_stale",
        MetricType::Gauge,
        {"model"},
        "1 while the head of the source log is older than --log-max-age"},
       EachModel([](const v1::ReceiverModel& model) { return model.log_stale() ? 1.0 : 0.0; })},
      {{"raas_receiver_archive_version",
        MetricType::Gauge,
        {"model"},
        "newest version in the log that the receiver writes; 0: none yet"},
       EachArchive([](const v1::Archive& archive) { return archive.newest().version(); })},
      {{"raas_receiver_archive_commit_timestamp_seconds",
        MetricType::Gauge,
        {"model"},
        "when the trainer committed the newest version in the log that the receiver writes"},
       EachArchive([](const v1::Archive& archive) { return Seconds(archive.newest_committed_unix_ns()); })},
      {{"raas_receiver_archive_waiting_bytes", MetricType::Gauge, {"model"}, "deltas that are not in the log yet"},
       EachArchive(&v1::Archive::waiting_bytes)},
      {{"raas_receiver_archive_written_bytes_total",
        MetricType::Counter,
        {"model"},
        "bytes that were written to the log's store"},
       EachArchive(&v1::Archive::written_bytes)},
      {{"raas_receiver_archive_failures_total", MetricType::Counter, {"model"}, "failed attempts to write to the log"},
       EachArchive(&v1::Archive::failures)},
      {{"raas_receiver_archive_taken_over",
        MetricType::Gauge,
        {"model"},
        "1 after another writer has taken over the log: this receiver writes it again only after a restart"},
       EachArchive([](const v1::Archive& archive) { return archive.state() == v1::ARCHIVE_STATE_TAKEN_OVER ? 1 : 0; })},
      {{"raas_receiver_certificate_expiry_timestamp_seconds",
        MetricType::Gauge,
        {},
        "when the daemon's certificate expires; no value without TLS"},
       [](const ReceiverFacts& facts, Samples& samples) {
         if (!facts.certificate_end) return;
         samples.Add(std::chrono::duration<double>(facts.certificate_end->time_since_epoch()).count(), {});
       }},
  };
  return table;
}

}  // namespace lockstep::receiver
