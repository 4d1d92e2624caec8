#include "ctl/log/command.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>

#include "common/base/text.h"
#include "common/model/manifest.h"
#include "common/model/model_name.h"
#include "common/model/safetensors.h"
#include "common/model/version_files.h"
#include "common/objects/object_store.h"
#include "common/os/file.h"
#include "common/os/segment.h"
#include "common/versionlog/head.h"
#include "common/versionlog/history.h"
#include "common/versionlog/log_reader.h"
#include "ctl/log/proof.h"
#include "ctl/output/table.h"

namespace lockstep::ctl {
namespace {

namespace fs = std::filesystem;

int64_t Now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::string AgeText(int64_t unix_ns) {
  const int64_t seconds = std::max<int64_t>(0, Now() - unix_ns) / 1'000'000'000;
  return seconds < 7200 ? Cat(seconds, " s") : Cat(seconds / 3600, " h");
}

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
    for (const std::string& model : models) {
      versionlog::LogReader reader = Reader(model);
      LS_ASSIGN_OR_RETURN(const versionlog::Head head, reader.ReadHead({}));
      const v1::LogHistory& history = head->history();
      document.push_back(ToJson(*head));
      logs.AddRow(
          {model, Hex(head->id()).substr(0, 12), history.run().empty() ? "-" : Hex(history.run()).substr(0, 12),
           Cat(history.newest().version(), history.has_current() ? Cat(", offers ", history.current().version()) : ""),
           Cat(history.oldest()), history.run().empty() ? "-" : AgeText(history.newest().committed_unix_ns()),
           HumanBytes(versionlog::StepBytes(history, 0)), Cat(history.chunks_size()), CleanText(head->writer(), 128),
           Cat(head->epoch()), AgeText(head->written_unix_ns())});
      if (options_.model.empty()) continue;
      for (const v1::LogStep& step : history.steps()) {
        versions.AddRow(
            {model, Cat(step.target().version()), step.target().label().empty() ? "-" : step.target().label(),
             AgeText(step.target().committed_unix_ns()), Cat(step.base()), HumanBytes(step.payload().bytes()),
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
    std::vector<uint64_t> hashes(layout->block_count());
    const versionlog::BlocksToMake wanted{.blocks = layout->AllBlocks(),
                                          .place_of =
                                              [&](BlockIndex block) {
                                                const ByteRange range = layout->block_range(block);
                                                return file.span().subspan(header.size() + range.offset, range.bytes);
                                              },
                                          .on_made =
                                              [&](BlockIndex block, uint64_t hash) {
                                                hashes[block] = hash;
                                                return OkStatus();
                                              }};
    LS_RETURN_IF_ERROR(reader.MakeBlocks(history, *layout, version, wanted, {}));
    if (model::ComputeManifestDigest(layout->digest(), hashes) != digest) {
      return {ErrorCode::kCorrupt, Cat("version ", version, " does not have the digest that the head names")};
    }
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

  Status Prune() {
    LS_ASSIGN_OR_RETURN(const std::string model, Model());
    versionlog::LogReader reader = Reader(model);
    // Listed before the head is read: what is written in between is young.
    LS_ASSIGN_OR_RETURN(const auto listed, store_->List(model + "/", {}));
    const int64_t before = Now() - static_cast<int64_t>(options_.grace_s) * 1'000'000'000;
    LS_ASSIGN_OR_RETURN(versionlog::Head head, reader.ReadHead({}));
    if (head->written_unix_ns() > before) {
      return {ErrorCode::kState, Cat(CleanText(head->writer(), 128), " has written to the log ",
                                     AgeText(head->written_unix_ns()), " ago, and removes what it has left by itself; ",
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

Status RunLogCommand(const LogOptions& options, const Output& output) {
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
