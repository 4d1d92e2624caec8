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
      {{"raas_receiver_build_info", MetricType::Gauge, {"version", "revision"}, "1, of the build that runs"},
       [](const ReceiverFacts& facts, Samples& samples) {
         samples.Add(1, {facts.status.build().version(), facts.status.build().revision()});
       }},
      {{"raas_receiver_draining", MetricType::Gauge, {}, "1 once it was told to end"},
       [](const ReceiverFacts& facts, Samples& samples) { samples.Add(facts.status.draining() ? 1 : 0, {}); }},
      {{"raas_receiver_newest_version",
        MetricType::Gauge,
        {"model"},
        "newest version that its source is known to have"},
       EachModel(&v1::ReceiverModel::newest_version)},
      {{"raas_receiver_held_version",
        MetricType::Gauge,
        {"model"},
        "version that is verified and published under `current`"},
       EachModel([](const v1::ReceiverModel& model) { return static_cast<double>(model.held().version()); })},
      {{"raas_receiver_served_version",
        MetricType::Gauge,
        {"model"},
        "version that the engine last took; the one that is held where no engine is notified; 0: none, or not known"},
       EachModel(&v1::ReceiverModel::served_version)},
      {{"raas_receiver_held_lag_versions", MetricType::Gauge, {"model"}, "how far what is held is behind its source"},
       EachModel([](const v1::ReceiverModel& model) { return Lag(model.newest_version(), model.held().version()); })},
      {{"raas_receiver_served_lag_versions",
        MetricType::Gauge,
        {"model"},
        "how far what the engine took is behind its source"},
       EachModel([](const v1::ReceiverModel& model) { return Lag(model.newest_version(), model.served_version()); })},
      {{"raas_receiver_held_commit_timestamp_seconds",
        MetricType::Gauge,
        {"model"},
        "when the trainer committed what is held; 0: nothing is"},
       EachModel([](const v1::ReceiverModel& model) { return Seconds(model.held_committed_unix_ns()); })},
      {{"raas_receiver_last_sync_timestamp_seconds",
        MetricType::Gauge,
        {"model"},
        "the last sync that succeeded, also one that found nothing newer; 0: none since the start"},
       EachModel([](const v1::ReceiverModel& model) { return Seconds(model.last_sync_unix_ns()); })},
      {{"raas_receiver_held_by_rollback",
        MetricType::Gauge,
        {"model"},
        "1 while a rollback keeps it from newer versions"},
       EachModel([](const v1::ReceiverModel& model) {
         return model.state() == v1::SESSION_STATE_HELD || model.skipped_version() != 0 ? 1.0 : 0.0;
       })},
      {{"raas_receiver_failing", MetricType::Gauge, {"model"}, "1 while the last error is not followed by a success"},
       EachModel([](const v1::ReceiverModel& model) { return model.last_error().empty() ? 0.0 : 1.0; })},
      {{"raas_receiver_syncs_total", MetricType::Counter, {"model"}, "versions that were committed"},
       EachModel(&v1::ReceiverModel::syncs)},
      {{"raas_receiver_sync_failures_total", MetricType::Counter, {"model"}, "syncs that failed"},
       EachModel(&v1::ReceiverModel::failures)},
      {{"raas_receiver_lane_retries_total", MetricType::Counter, {"model"}, "lanes that were opened again"},
       EachModel(&v1::ReceiverModel::lane_retries)},
      {{"raas_receiver_plaintext_bytes_total", MetricType::Counter, {"model"}, "what came over a network in plaintext"},
       EachModel(&v1::ReceiverModel::plain_bytes)},
      {{"raas_receiver_repaired_blocks_total",
        MetricType::Counter,
        {"model"},
        "blocks that came out wrong and were fetched again"},
       EachModel(&v1::ReceiverModel::repaired_blocks)},
      {{"raas_receiver_damaged_blocks_total",
        MetricType::Counter,
        {"model"},
        "blocks whose memory had changed, found by hashing it again"},
       EachModel(&v1::ReceiverModel::damaged_blocks)},
      {{"raas_receiver_scrubbed_bytes_total", MetricType::Counter, {"model"}, "what was hashed again to find such"},
       EachModel(&v1::ReceiverModel::scrubbed_bytes)},
      {{"raas_receiver_replicas_replaced_total",
        MetricType::Counter,
        {"model"},
        "replicas that were abandoned because a reader still had the old file mapped"},
       EachModel(&v1::ReceiverModel::replicas_replaced)},
      {{"raas_receiver_engine_failures_total",
        MetricType::Counter,
        {"model"},
        "attempts to make an engine take a version that failed"},
       EachModel(&v1::ReceiverModel::engine_failures)},
      {{"raas_receiver_model_bytes", MetricType::Gauge, {"model"}, "one version; two are held"},
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
        "version that an engine took; the one that is held where no engine is notified; 0: none, or not known"},
       EachEngine([](const v1::Engine& engine) { return static_cast<double>(engine.served().version()); })},
      {{"raas_receiver_engine_late",
        MetricType::Gauge,
        {"model", "engine"},
        "1 while an engine lacks a version for longer than it may, and is waited for no more"},
       EachEngine([](const v1::Engine& engine) { return engine.late() ? 1.0 : 0.0; })},
      {{"raas_receiver_engine_pause_seconds",
        MetricType::Gauge,
        {"model", "engine"},
        "how long its last version paused it; by the directory, the whole load"},
       EachEngine([](const v1::Engine& engine) { return static_cast<double>(engine.last_pause_us()) / 1e6; })},
      {{"raas_receiver_engine_ranks_expected",
        MetricType::Gauge,
        {"model", "engine"},
        "ranks of an engine that attach"},
       EachRankGroup(&v1::RankGroup::world)},
      {{"raas_receiver_engine_ranks_attached", MetricType::Gauge, {"model", "engine"}, "those that are there"},
       EachRankGroup(&v1::RankGroup::attached)},
      {{"raas_receiver_engine_ranks_waiting",
        MetricType::Gauge,
        {"model", "engine"},
        "those that are there and read nothing until a whole version is written"},
       EachRankGroup(&v1::RankGroup::waiting)},
      {{"raas_receiver_engine_ranks_asleep",
        MetricType::Gauge,
        {"model", "engine"},
        "those that are there and have no weights in memory until they wake"},
       EachRankGroup(&v1::RankGroup::asleep)},
      {{"raas_receiver_engine_commits_total",
        MetricType::Counter,
        {"model", "engine"},
        "versions that were written into it"},
       EachRankGroup(&v1::RankGroup::commits)},
      {{"raas_receiver_engine_write_failures_total", MetricType::Counter, {"model", "engine"}, "those that failed"},
       EachRankGroup(&v1::RankGroup::failures)},
      {{"raas_receiver_log_written_timestamp_seconds",
        MetricType::Gauge,
        {"model"},
        "when the writer of the log that it reads wrote its head; 0: it reads none, or has read no head"},
       EachModel([](const v1::ReceiverModel& model) { return Seconds(model.log_written_unix_ns()); })},
      {{"raas_receiver_log_stale", MetricType::Gauge, {"model"}, "1 while that was longer ago than --log-max-age"},
       EachModel([](const v1::ReceiverModel& model) { return model.log_stale() ? 1.0 : 0.0; })},
      {{"raas_receiver_archive_version",
        MetricType::Gauge,
        {"model"},
        "newest version in the log that it writes; 0: readers have none yet"},
       EachArchive([](const v1::Archive& archive) { return archive.newest().version(); })},
      {{"raas_receiver_archive_commit_timestamp_seconds",
        MetricType::Gauge,
        {"model"},
        "when the trainer committed that version"},
       EachArchive([](const v1::Archive& archive) { return Seconds(archive.newest_committed_unix_ns()); })},
      {{"raas_receiver_archive_waiting_bytes", MetricType::Gauge, {"model"}, "deltas that are not in the log yet"},
       EachArchive(&v1::Archive::waiting_bytes)},
      {{"raas_receiver_archive_written_bytes_total", MetricType::Counter, {"model"}, "written to the log's store"},
       EachArchive(&v1::Archive::written_bytes)},
      {{"raas_receiver_archive_failures_total", MetricType::Counter, {"model"}, "attempts to write to it that failed"},
       EachArchive(&v1::Archive::failures)},
      {{"raas_receiver_archive_taken_over",
        MetricType::Gauge,
        {"model"},
        "1 once another writer has taken the log over: this one writes no more until it is started again"},
       EachArchive([](const v1::Archive& archive) { return archive.state() == v1::ARCHIVE_STATE_TAKEN_OVER ? 1 : 0; })},
      {{"raas_receiver_certificate_expiry_timestamp_seconds",
        MetricType::Gauge,
        {},
        "when the own certificate ends; none without TLS"},
       [](const ReceiverFacts& facts, Samples& samples) {
         if (!facts.certificate_end) return;
         samples.Add(std::chrono::duration<double>(facts.certificate_end->time_since_epoch()).count(), {});
       }},
  };
  return table;
}

}  // namespace lockstep::receiver
