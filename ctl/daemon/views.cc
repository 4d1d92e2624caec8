#include "ctl/daemon/views.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "common/base/text.h"
#include "ctl/output/table.h"

namespace lockstep::ctl {
namespace {

// Enough of an id to tell it from its neighbours.
std::string ShortHex(const std::string& bytes) {
  return bytes.empty() ? "-" : Hex(bytes).substr(0, 12);
}

std::string VersionOrDash(uint64_t version) {
  return version == 0 ? "-" : std::to_string(version);
}

std::string RunOrDash(const v1::VersionRef& held) {
  return held.version() == 0 ? "-" : ShortHex(held.run());
}

std::string TextOrDash(const std::string& text) {
  return text.empty() ? "-" : text;
}

std::string Milliseconds(uint64_t microseconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f ms", static_cast<double>(microseconds) / 1000);
  return text.data();
}

// "pulling", or "state 17" where this build does not know the value.
std::string ValueText(const google::protobuf::EnumDescriptor& kind, int value, const char* what) {
  const auto* known = kind.FindValueByNumber(value);
  return known == nullptr ? Cat(what, " ", value) : EnumText(*known);
}

// How the bytes of a sync came, as far as that says something: how many were streamed, at what rate.
std::string WayOf(const v1::SyncRecord& record) {
  std::string way;
  if (record.streamed_bytes() > 0) way += Cat(", ", HumanBytes(record.streamed_bytes()), " streamed");
  if (record.local_bytes() > 0) way += Cat(", ", HumanBytes(record.local_bytes()), " from memory");
  if (record.plain_bytes() > 0) way += Cat(", ", HumanBytes(record.plain_bytes()), " in plaintext");
  if (record.link_bytes_per_s() > 0) way += Cat(", at ", HumanBytes(record.link_bytes_per_s()), "/s");
  return way;
}

std::string ErrorText(const std::string& error, int64_t unix_ns, int64_t now_unix_ns) {
  if (error.empty() || unix_ns == 0 || now_unix_ns == 0) return TextOrDash(error);
  return Cat(error, " (", AgeText(unix_ns, now_unix_ns), " ago)");
}

// What tells a receiver from others of its name.
std::string WhichText(const v1::ReceiverState& receiver) {
  const std::string instance = ShortHex(receiver.instance());
  return receiver.identity().empty() ? instance : Cat(instance, " of ", receiver.identity());
}

// Whether a receiver is there; for one that does not say, when it was last heard of.
std::string PresenceText(const v1::ReceiverState& receiver) {
  switch (receiver.presence()) {
    case v1::RECEIVER_PRESENCE_CONNECTED:
      return receiver.name_shared() ? Cat("connected, one of several: ", WhichText(receiver)) : "connected";
    case v1::RECEIVER_PRESENCE_GONE:
      return Cat("gone for ", SpanText(receiver.gone_seconds()));
    default:
      return Cat("seen ", SpanText(receiver.seconds_ago()), " ago");
  }
}

std::string Headline(std::string_view daemon, const v1::BuildInfo& build, bool draining) {
  return Cat(daemon, " ", build.version(), " (", TextOrDash(build.revision()), ")", draining ? ", draining" : "", "\n");
}

std::string ReceiversText(const v1::AgentStatus& status) {
  Table table({"RECEIVER", "MODEL", "IS", ">VERSION", ">SERVED", "LAST PULL", "LAST ERROR"});
  const auto add = [&](const std::string& model, const v1::ReceiverState& receiver) {
    table.AddRow({receiver.receiver(), model, PresenceText(receiver), VersionOrDash(receiver.held().version()),
                  VersionOrDash(receiver.served_version()), TextOrDash(receiver.last_outcome()),
                  TextOrDash(receiver.last_error())});
  };
  std::string unopened;
  for (const v1::AgentModel& model : status.models()) {
    for (const v1::ReceiverState& receiver : model.receivers()) add(model.name(), receiver);
  }
  for (const v1::UnopenedModel& model : status.unopened()) {
    unopened += Cat("no trainer has opened ", model.name(), ", which receivers follow\n");
    for (const v1::ReceiverState& receiver : model.receivers()) add(model.name(), receiver);
  }
  return unopened + (table.empty() ? "" : "\n" + table.ToString());
}

std::string ServingText(const v1::RankGroup& group) {
  if (group.asleep() > 0) return Cat(group.asleep(), " asleep");
  if (group.waiting() > 0) return Cat(group.waiting(), " wait");
  if (group.comparing() > 0) return Cat(group.comparing(), " compare");
  return VersionOrDash(group.serving().version());
}

std::string StateText(const v1::Engine& engine) {
  return ValueText(*v1::EngineState_descriptor(), engine.state(), "state") + (engine.late() ? ", late" : "");
}

// Engines that are notified of versions or have ranks, then the groups of their ranks; nothing when there are none.
std::string EnginesText(const v1::ReceiverStatus& status) {
  Table engines({"MODEL", "ENGINE", "KIND", "URL", "GETS VERSIONS", "STATE", ">SERVED", ">SINCE", ">PAUSE", ">WRITTEN",
                 ">FAILURES", "LAST ERROR"});
  std::string unused;
  Table groups({"MODEL", "GROUP", ">RANKS", ">SERVING", ">SIZE", ">COMMITS", ">FAILURES", ">PREPARE", ">PAUSE",
                ">WRITTEN", "LAST ERROR"});
  for (const v1::ReceiverModel& model : status.models()) {
    for (const v1::Engine& engine : model.engines()) {
      if (engine.kind() == "none" && !engine.in_place()) continue;
      engines.AddRow(
          {model.name(), engine.name(), engine.kind(), TextOrDash(engine.url()),
           engine.in_place() ? "in place" : "by directory", StateText(engine), VersionOrDash(engine.served().version()),
           AgeText(engine.served_since_unix_ns(), status.now_unix_ns()), Milliseconds(engine.last_pause_us()),
           HumanBytes(engine.last_written_bytes()), Cat(engine.failures()),
           ErrorText(engine.last_error(), engine.last_error_unix_ns(), status.now_unix_ns())});
    }
    for (const v1::RankGroup& group : model.rank_groups()) {
      groups.AddRow({model.name(), group.name(), Cat(group.attached(), "/", group.world()), ServingText(group),
                     HumanBytes(group.target_bytes()), Cat(group.commits()), Cat(group.failures()),
                     Milliseconds(group.last_prepare_us()), Milliseconds(group.last_pause_us()),
                     HumanBytes(group.last_written_bytes()), TextOrDash(group.last_error())});
      if (group.unused() == 0) continue;
      unused += Cat("group ", group.name(), " takes ", group.unused(), " tensors of ", model.name(),
                    " nowhere: ", group.unused_tensors(0), group.unused() > 1 ? ", ...\n" : "\n");
    }
  }
  return (engines.empty() ? "" : "engines:\n" + engines.ToString()) +
         (groups.empty() ? "" : "rank groups:\n" + groups.ToString()) + unused;
}

// The logs that are written.
std::string ArchivesText(const v1::ReceiverStatus& status) {
  Table table(
      {"MODEL", "LOG", "STATE", ">NEWEST", ">AGE", ">OLDEST", ">WAITING", ">WRITTEN", ">FAILURES", "LAST ERROR"});
  for (const v1::ReceiverModel& model : status.models()) {
    if (!model.has_archive()) continue;
    const v1::Archive& archive = model.archive();
    std::string state = ValueText(*v1::ArchiveState_descriptor(), archive.state(), "state");
    if (archive.chunks_wanted() > 0) state += Cat(", ", archive.chunks(), " of ", archive.chunks_wanted(), " chunks");
    table.AddRow({model.name(), archive.url(), state, VersionOrDash(archive.newest().version()),
                  AgeText(archive.newest_committed_unix_ns(), status.now_unix_ns()),
                  VersionOrDash(archive.oldest_version()), HumanBytes(archive.waiting_bytes()),
                  HumanBytes(archive.written_bytes()), Cat(archive.failures()),
                  ErrorText(archive.last_error(), archive.last_error_unix_ns(), status.now_unix_ns())});
  }
  return table.empty() ? "" : "logs:\n" + table.ToString();
}

// A derived model has no ranks, but a source.
std::string RanksText(const v1::AgentModel& model) {
  if (!model.derived_from().empty()) return Cat(model.derived_format(), " of ", model.derived_from());
  return Cat(model.ranks_connected(), "/", model.ranks_expected());
}

}  // namespace

std::string StatusText(const v1::AgentStatus& status) {
  std::string text = Headline("trainer_agent", status.build(), status.draining());
  if (status.models().empty()) return text + "no model: no trainer has opened one yet\n" + ReceiversText(status);
  Table table({"MODEL", ">VERSION", "LABEL", ">SIZE", ">AGE", ">TENSORS", ">RANKS", ">WRITING", ">COMMITTED",
               ">ABORTED", ">RETAINED", ">PULLS", "RUN", "LAST ERROR"});
  for (const v1::AgentModel& model : status.models()) {
    table.AddRow({model.name(), VersionOrDash(model.newest_version()), TextOrDash(model.newest_label()),
                  HumanBytes(model.model_bytes()), AgeText(model.newest_committed_unix_ns(), status.now_unix_ns()),
                  Cat(model.tensors()), RanksText(model), VersionOrDash(model.writing_version()),
                  Cat(model.versions_committed()), Cat(model.versions_aborted()), HumanBytes(model.retained_bytes()),
                  Cat(model.open_pulls()), ShortHex(model.run()),
                  ErrorText(model.last_error(), model.last_error_unix_ns(), status.now_unix_ns())});
  }
  return text + table.ToString() + ReceiversText(status);
}

std::string StatusText(const v1::ReceiverStatus& status) {
  std::string text = Headline(Cat("raas_receiver ", status.name(), ","), status.build(), status.draining());
  Table table({"MODEL", "STATE", ">VERSION", "LABEL", ">AGE", ">NEWEST", ">SERVED", ">SIZE", ">LAST SYNC", ">SYNCS",
               ">FAILURES", ">REPAIRED", ">ENGINE FAILURES", "SOURCE", "LAST ERROR"});
  for (const v1::ReceiverModel& model : status.models()) {
    std::string state = ValueText(*v1::SessionState_descriptor(), model.state(), "state");
    if (model.skipped_version() != 0) state += Cat(", not ", model.skipped_version());
    const std::string share = model.share().empty() ? "" : Cat(" (", model.share(), ")");
    table.AddRow({model.name(), state, VersionOrDash(model.held().version()), TextOrDash(model.held_label()),
                  AgeText(model.held_committed_unix_ns(), status.now_unix_ns()), VersionOrDash(model.newest_version()),
                  VersionOrDash(model.served_version()), HumanBytes(model.model_bytes()),
                  AgeText(model.last_sync_unix_ns(), status.now_unix_ns()), Cat(model.syncs()), Cat(model.failures()),
                  Cat(model.repaired_blocks()), Cat(model.engine_failures()), model.source() + share,
                  ErrorText(model.last_error(), model.last_error_unix_ns(), status.now_unix_ns())});
  }
  return text + table.ToString() + EnginesText(status) + ArchivesText(status);
}

std::string VersionsText(const v1::AgentStatus& status) {
  Table table({"MODEL", ">VERSION", ">FROM", "KIND", ">PAYLOAD", ">CHANGED", ">BLOCKS", "DIGEST"});
  for (const v1::AgentModel& model : status.models()) {
    table.AddRow({model.name(), VersionOrDash(model.newest_version()), "-", "full", HumanBytes(model.model_bytes()),
                  "-", "-", ShortHex(model.newest_digest())});
    for (const v1::RetainedDelta& delta : model.deltas()) {
      table.AddRow({model.name(), Cat(delta.target()), Cat(delta.base()), "delta", HumanBytes(delta.payload_bytes()),
                    Cat(delta.changed_elements()), Cat(delta.changed_blocks()),
                    delta.target() == model.newest_version() ? ShortHex(model.newest_digest()) : "-"});
    }
  }
  return table.ToString();
}

std::string VersionsText(const v1::ReceiverStatus& status) {
  Table table({"MODEL", ">VERSION", "IS", "RUN", "DIGEST", "PATH"});
  for (const v1::ReceiverModel& model : status.models()) {
    table.AddRow({model.name(), VersionOrDash(model.newest_version()), "newest", "-", "-", "-"});
    table.AddRow({model.name(), VersionOrDash(model.held().version()), "current", RunOrDash(model.held()),
                  TextOrDash(ShortHex(model.held_digest())), TextOrDash(model.current_path())});
    table.AddRow(
        {model.name(), VersionOrDash(model.previous().version()), "previous", RunOrDash(model.previous()), "-", "-"});
  }
  return table.ToString();
}

Json VersionsJson(const v1::AgentStatus& status) {
  Json models = Json::array();
  for (const v1::AgentModel& model : status.models()) {
    Json deltas = Json::array();
    for (const v1::RetainedDelta& delta : model.deltas()) deltas.push_back(ToJson(delta));
    models.push_back({{"model", model.name()},
                      {"run", Hex(model.run())},
                      {"version", model.newest_version()},
                      {"digest", Hex(model.newest_digest())},
                      {"deltas", std::move(deltas)}});
  }
  return models;
}

Json VersionsJson(const v1::ReceiverStatus& status) {
  Json models = Json::array();
  for (const v1::ReceiverModel& model : status.models()) {
    models.push_back({{"model", model.name()},
                      {"newest_version", model.newest_version()},
                      {"current", ToJson(model.held())},
                      {"digest", Hex(model.held_digest())},
                      {"previous", ToJson(model.previous())}});
  }
  return models;
}

std::string LayoutText(const model::ModelLayout& layout) {
  Table table({"TENSOR", "DTYPE", "SHAPE", ">OFFSET", ">BYTES"});
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    const model::TensorMeta& tensor = layout.tensors()[i];
    std::string shape;
    for (const uint64_t extent : tensor.shape) shape += Cat(shape.empty() ? "" : ", ", extent);
    table.AddRow({tensor.name, std::string(model::FindDType(tensor.dtype)->name), "[" + shape + "]", Cat(tensor.offset),
                  Cat(layout.tensor_bytes(i))});
  }
  std::string attachments;
  for (const auto& [name, text] : layout.attachments()) {
    attachments += Cat("with ", name, ", ", HumanBytes(text.size()), "\n");
  }
  return Cat(table.ToString(), layout.tensors().size(), " tensors, ", HumanBytes(layout.data_bytes()), " in ",
             layout.block_count(), " blocks of ", HumanBytes(layout.block_bytes()), ", digest ", ToHex(layout.digest()),
             "\n", attachments);
}

std::string LineOf(const v1::VersionEvent& event) {
  if (event.newest().version() == 0) {
    return Cat(event.model(), " open, no version yet, run ", ShortHex(event.newest().run()), "\n");
  }
  return Cat(event.model(), " version ", event.newest().version(), " digest ", ShortHex(event.manifest_digest()),
             " run ", ShortHex(event.newest().run()), "\n");
}

std::string LineOf(const v1::SyncRecord& record) {
  if (!record.error().empty()) return Cat(record.model(), " failed: ", record.error(), "\n");
  if (record.mode() == "up_to_date") {
    return Cat(record.model(), " is at version ", record.to().version(), " already, the agent's newest\n");
  }
  std::string line = Cat(record.model(), " version ", record.to().version(), " from ",
                         VersionOrDash(record.from().version()), " ", record.mode(), ", ");
  if (record.changed_elements() > 0) line += Cat(record.changed_elements(), " changed, ");
  line += Cat(HumanBytes(record.payload_bytes()), " of ", HumanBytes(record.model_bytes()), WayOf(record),
              ", publish to commit ", Milliseconds(record.publish_to_commit_us()), " (pull ",
              Milliseconds(record.pull_us()), ", apply ", Milliseconds(record.apply_us()), ")");
  if (record.repaired_blocks() > 0) line += Cat(", ", record.repaired_blocks(), " blocks repaired");
  line += record.verified() ? ", verified" : ", NOT verified";
  if (record.pause_us() > 0) {
    line += Cat(", engine paused ", Milliseconds(record.pause_us()), " for ", HumanBytes(record.written_bytes()));
  }
  if (!record.engine_error().empty()) line += Cat(", engine failed: ", record.engine_error());
  return line + "\n";
}

}  // namespace lockstep::ctl
