#include "ctl/log/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <thread>

#include "common/base/text.h"
#include "common/model/model_name.h"
#include "common/model/safetensors.h"
#include "common/model/version_files.h"
#include "common/objects/object_store.h"
#include "common/os/file.h"
#include "common/os/segment.h"
#include "common/telemetry/timeline.h"
#include "common/versionlog/head.h"
#include "common/versionlog/history.h"
#include "common/versionlog/log_reader.h"
#include "ctl/log/proof.h"
#include "ctl/output/table.h"

namespace lockstep::ctl {
namespace {

namespace fs = std::filesystem;

using telemetry::UnixNanos;

// One log command, with what it reads by.
class LogCommand {
 public:
  LogCommand(const LogOptions& options, const Output& output, std::shared_ptr<objects::ObjectStore> store,
             versionlog::TrustedKeys trusted)
      : options_(options),
        output_(output),
        store_(std::move(store)),
        trusted_(std::move(trusted)),
        transfers_(options.connections),
        workers_(std::max(1U, std::thread::hardware_concurrency())) {}

  Status Run() {
    switch (options_.command) {
      case LogOptions::Command::kList:
        return List();
      case LogOptions::Command::kVerify:
        return Verify();
      case LogOptions::Command::kFetch:
        return Fetch();
      case LogOptions::Command::kDiff:
        return Diff();
      case LogOptions::Command::kPrune:
        return Prune();
    }
    return OkStatus();
  }

 private:
  versionlog::LogReader Reader(const std::string& model) { return {store_, model, trusted_, transfers_, workers_}; }

  Result<std::vector<std::string>> Models() {
    if (!options_.model.empty()) return std::vector{options_.model};
    LS_ASSIGN_OR_RETURN(const auto listed, store_->List("", {}));
    std::vector<std::string> models;
    for (const objects::ListedObject& object : listed) {
      const std::string model = object.name.substr(0, object.name.find('/'));
      if (object.name == versionlog::HeadName(model)) models.push_back(model);
    }
    std::ranges::sort(models);
    if (models.empty()) return Status(ErrorCode::kNotFound, Cat(store_->url(), " has no log of a model"));
    return models;
  }

  Result<std::string> Model() {
    LS_ASSIGN_OR_RETURN(const std::vector<std::string> models, Models());
    if (models.size() == 1) return models[0];
    std::string names;
    for (const std::string& model : models) names += Cat(names.empty() ? "" : ", ", model);
    return Status(ErrorCode::kUsage, Cat(store_->url(), " has several models, name one: ", names));
  }

  // Of a log that readers can read.
  Result<versionlog::Head> WholeHead(versionlog::LogReader& reader, const std::string& model) {
    LS_ASSIGN_OR_RETURN(versionlog::Head head, reader.ReadHead({}));
    if (head->has_history()) return head;
    return Status(ErrorCode::kNotFound, Cat(store_->url(), ": the first version of ", model, " is not whole yet"));
  }

  Status List() {
    LS_ASSIGN_OR_RETURN(const std::vector<std::string> models, Models());
    Json document = Json::array();
    Table logs(
        {"MODEL", "LOG", "RUN", ">NEWEST", ">OLDEST", ">AGE", ">DELTAS", ">CHUNKS", "WRITER", ">EPOCH", ">WRITTEN"});
    Table versions({"MODEL", ">VERSION", "LABEL", ">AGE", ">FROM", ">DELTA", ">CHANGED", "DIGEST"});
    const int64_t now = UnixNanos();
    for (const std::string& model : models) {
      versionlog::LogReader reader = Reader(model);
      LS_ASSIGN_OR_RETURN(const versionlog::Head head, reader.ReadHead({}));
      const v1::LogHistory& history = head->history();
      document.push_back(ToJson(*head));
      logs.AddRow(
          {model, Hex(head->id()).substr(0, 12), history.run().empty() ? "-" : Hex(history.run()).substr(0, 12),
           Cat(history.newest().version(), history.has_current() ? Cat(", offers ", history.current().version()) : ""),
           Cat(history.oldest()), AgeText(history.newest().committed_unix_ns(), now),
           HumanBytes(versionlog::StepBytes(history, 0)), Cat(history.chunks_size()), CleanText(head->writer(), 128),
           Cat(head->epoch()), AgeText(head->written_unix_ns(), now)});
      if (options_.model.empty()) continue;
      for (const v1::LogStep& step : history.steps()) {
        versions.AddRow(
            {model, Cat(step.target().version()), step.target().label().empty() ? "-" : step.target().label(),
             AgeText(step.target().committed_unix_ns(), now), Cat(step.base()), HumanBytes(step.payload().bytes()),
             Cat(step.changed_elements()), Hex(step.target().manifest_digest()).substr(0, 12)});
      }
    }
    output_.Print(document, logs.ToString() + (versions.empty() ? "" : versions.ToString()));
    return OkStatus();
  }

  Status Verify() {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    versionlog::LogReader reader = Reader(model);
    LS_ASSIGN_OR_RETURN(const versionlog::Head head, reader.ReadHead({}));
    LS_ASSIGN_OR_RETURN(const LogProof proof, ProveLog(reader, *head, transfers_, workers_));
    const Json document = {{"model", model},
                           {"objects", proof.objects},
                           {"bytes", proof.bytes},
                           {"versions", proof.versions},
                           {"newest", head->history().newest().version()},
                           {"damaged", proof.damaged}};
    std::string text;
    for (const std::string& error : proof.damaged) text += error + "\n";
    if (proof.damaged.empty()) {
      text = Cat(model, ": ", proof.objects, " objects, ", HumanBytes(proof.bytes), ", are what their names say; ",
                 proof.versions, " versions, to ", head->history().newest().version(),
                 ", come out as their digests say\n");
    }
    output_.Print(document, text);
    if (proof.damaged.empty()) return OkStatus();
    return {ErrorCode::kCorrupt, Cat(store_->url(), ": ", proof.damaged.size(), " objects of ", model, " are damaged")};
  }

  // Under another name until it is whole.
  Status Fetch() {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    versionlog::LogReader reader = Reader(model);
    LS_ASSIGN_OR_RETURN(const versionlog::Head head, WholeHead(reader, model));
    const v1::LogHistory& history = head->history();
    const Version version = options_.version == 0 ? versionlog::Offered(history).version() : options_.version;
    const auto digest = versionlog::FindDigest(history, version);
    if (version < history.oldest() || !digest) {
      return {ErrorCode::kNotFound, Cat(store_->url(), ": model ", model, " has versions ", history.oldest(), " to ",
                                        history.newest().version(), ", and not ", version)};
    }
    if (fs::exists(options_.out))
      return {ErrorCode::kState, Cat(options_.out, " is there already; name another --out")};
    fs::path out = fs::path(options_.out).lexically_normal();
    if (!out.has_filename()) out = out.parent_path();  // "dir/"
    const std::string building = out.string() + ".part";
    LS_RETURN_IF_ERROR(os::RemoveTree(building));
    LS_RETURN_IF_ERROR(os::MakeDirs(building, 0750));  // weights are for this user and its group
    Status status = Make(reader, history, version, *digest, building);
    if (status.ok() && ::rename(building.c_str(), out.c_str()) != 0) {
      status = ErrnoStatus(errno, Cat("rename ", building, " to ", options_.out));
    }
    if (!status.ok()) {
      (void)os::RemoveTree(building);
      return status;
    }
    output_.Print({{"model", model}, {"version", version}, {"path", options_.out}, {"bytes_read", reader.bytes_read()}},
                  Cat("version ", version, " of ", model, " is in ", options_.out, "\n"));
    return OkStatus();
  }

  Status Make(versionlog::LogReader& reader, const v1::LogHistory& history, Version version,
              const ManifestDigest& digest, const std::string& directory) {
    LS_ASSIGN_OR_RETURN(const auto layout, reader.ReadLayout(history, /*whole=*/true, {}));
    const std::string path = Cat(directory, "/", model::WeightsFile(*layout));
    const Bytes header = model::SafetensorsHeader(*layout);
    LS_ASSIGN_OR_RETURN(const os::MappedSegment file, os::CreateTmpfsSegment(path, model::ImageBytes(*layout)));
    std::ranges::copy(header, file.data());
    LS_RETURN_IF_ERROR(MakeVersion(reader, history, *layout, version, file.span().subspan(header.size())));
    std::error_code error;
    fs::permissions(path, fs::perms(0640), error);
    const auto described = std::ranges::find_if(
        history.steps(), [&](const v1::LogStep& step) { return step.target().version() == version; });
    const bool newest = version == history.newest().version();
    const v1::LogVersion about = newest                               ? history.newest()
                                 : described == history.steps().end() ? v1::LogVersion()
                                                                      : described->target();
    const VersionRef held{{*Bytes16(history.run())}, version};
    for (const auto& [name, text] :
         model::SmallFiles(*layout, held, digest, about.committed_unix_ns(), about.label())) {
      LS_RETURN_IF_ERROR(os::WriteFileAtomic(Cat(directory, "/", name), text, 0640));
    }
    return OkStatus();
  }

  Status Diff() {
    LS_RETURN_IF_ERROR(CheckDiff(options_.diff));
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    versionlog::LogReader reader = Reader(model);
    LS_ASSIGN_OR_RETURN(const versionlog::Head head, WholeHead(reader, model));
    const v1::LogHistory& history = head->history();
    const Version last = Last(options_.diff) == 0 ? history.newest().version() : Last(options_.diff);
    const auto& steps = history.steps();
    const auto end = std::ranges::find_if(steps, [&](const auto& step) { return step.target().version() == last; });
    auto begin = end;
    if (After(options_.diff) != 0) {  // which may be a number that was skipped
      begin =
          std::ranges::find_if(steps, [&](const auto& step) { return step.target().version() > After(options_.diff); });
    }
    if (end == steps.end() || begin->base() < history.oldest()) {
      return {ErrorCode::kNotFound, Cat(store_->url(), ": model ", model, " has versions ", history.oldest(), " to ",
                                        history.newest().version(), ", and not the changes that lead to ", last)};
    }
    LS_ASSIGN_OR_RETURN(const auto layout, reader.ReadLayout(history, /*whole=*/true, {}));
    LS_ASSIGN_OR_RETURN(const auto changes, CountSteps(reader, history, layout, begin->base(), last, workers_));
    return PrintChanges(model, changes, options_.diff, output_);
  }

  Status Prune() {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    versionlog::LogReader reader = Reader(model);
    // Listed before the head is read: what is written in between is young.
    LS_ASSIGN_OR_RETURN(const auto listed, store_->List(model + "/", {}));
    const int64_t before = UnixNanos() - static_cast<int64_t>(options_.grace_s) * 1'000'000'000;
    LS_ASSIGN_OR_RETURN(versionlog::Head head, reader.ReadHead({}));
    if (head->written_unix_ns() > before) {
      return {ErrorCode::kState,
              Cat(CleanText(head->writer(), 128), " has written to the log ",
                  AgeText(head->written_unix_ns(), UnixNanos()), " ago, and removes what it has left by itself; ",
                  "--grace 0 removes all that the head does not name now")};
    }
    std::set<std::string> named = versionlog::ObjectNames(*head);
    uint64_t removed = 0;
    uint64_t bytes = 0;
    for (const objects::ListedObject& object : listed) {
      if (object.written_unix_ns > before || !versionlog::IsObjectName(model, object.name)) continue;
      // Its writer goes on meanwhile, and may name again what it did not.
      LS_ASSIGN_OR_RETURN(const versionlog::Head now, reader.AwaitHead(head, {}, {}));
      if (now != nullptr) {
        head = now;
        named = versionlog::ObjectNames(*head);
      }
      if (named.contains(object.name)) continue;
      LS_RETURN_IF_ERROR(store_->Remove(object.name, {}));
      ++removed;
      bytes += object.bytes;
    }
    output_.Print({{"model", model}, {"removed", removed}, {"bytes", bytes}},
                  Cat(model, ": ", removed, " objects removed, ", HumanBytes(bytes), "\n"));
    return OkStatus();
  }

  const LogOptions& options_;
  const Output& output_;
  const std::shared_ptr<objects::ObjectStore> store_;
  const versionlog::TrustedKeys trusted_;
  WorkerPool transfers_;
  WorkerPool workers_;
};

}  // namespace

void AddLogOptions(CLI::App& command, LogOptions& options) {
  const auto add = [&](LogOptions::Command which, const char* name, const char* about,
                       const char* model = "model,--model") {
    CLI::App* added = command.add_subcommand(name, about)->fallthrough();
    added->callback([&options, which] { options.command = which; });
    added->add_option("url", options.url, "Where the log is: file:///DIRECTORY or s3://BUCKET/PREFIX")->required();
    added->add_option(model, options.model, "The model; may be left out when there is only one");
    added->add_option("--keys", options.keys, "Read only what one of these Ed25519 public keys (PEM) has signed")
        ->type_name("FILE");
    added
        ->add_option("--allow-insecure-network", options.plain,
                     "Networks whose http:// stores may be read, 10.0.0.0/8 say; else only this host's")
        ->type_name("CIDR");
    return added;
  };
  command.require_subcommand(1);
  add(LogOptions::Command::kList, "ls", "Models, and the versions of one");
  add(LogOptions::Command::kVerify, "verify",
      "Read all of it, and make every version; takes memory for one version of the model");
  CLI::App* fetch = add(LogOptions::Command::kFetch, "fetch", "Write one version as a HuggingFace directory");
  fetch->add_option("--version", options.version, "Which [the newest]")->type_name("N")->check(CLI::PositiveNumber);
  fetch->add_option("--out", options.out, "The directory, which is made")->required()->type_name("DIR");
  AddDiffOptions(
      *add(LogOptions::Command::kDiff, "diff",
           "What versions changed, as lockstepctl diff; takes memory for one version of the model", "--model"),
      options.diff);
  CLI::App* prune = add(LogOptions::Command::kPrune, "prune", "Remove what a writer that was killed has left");
  prune->add_option("--grace", options.grace_s, "Keep what was written in the last so many seconds [900]")
      ->type_name("S");
  for (CLI::App* reading : command.get_subcommands({})) {
    reading->add_option("--connections", options.connections, "Objects that are read side by side [8]")
        ->type_name("N")
        ->check(CLI::Range(1, 256).description(""));
  }
}

Status Run(const LogOptions& options, const Output& output) {
  if (!options.model.empty()) LS_RETURN_IF_ERROR(model::CheckModelName(options.model));
  LS_ASSIGN_OR_RETURN(net::Networks plain, net::Networks::Parse(options.plain));
  LS_ASSIGN_OR_RETURN(auto store, objects::OpenObjectStore(options.url, std::move(plain)));
  versionlog::TrustedKeys trusted;
  if (!options.keys.empty()) {
    LS_ASSIGN_OR_RETURN(trusted, versionlog::TrustedKeys::Read(options.keys));
  }
  return LogCommand(options, output, std::move(store), std::move(trusted)).Run();
}

}  // namespace lockstep::ctl
