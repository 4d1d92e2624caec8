// For tests: a receiver's replicas, and the archiver that writes their versions to a log.
#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/eventually.h"
#include "common/objects/test_store.h"
#include "common/versionlog/head.h"
#include "common/versionlog/history.h"
#include "common/versionlog/log_reader.h"
#include "raas_receiver/archive/archiver.h"
#include "raas_receiver/replica/replica_fixture.h"

namespace lockstep::archive {

// What a log has of `version`, by its own data and its `head`; an error says what is wrong with it.
inline Result<Bytes> MakeFromLog(versionlog::LogReader& reader, const versionlog::Head& head, Version version) {
  LS_ASSIGN_OR_RETURN(const auto layout, reader.ReadLayout(head->history(), true, {}));
  Bytes bytes(layout->data_bytes());
  std::vector<uint64_t> hashes(layout->block_count());
  const versionlog::BlocksToMake wanted{.blocks = layout->AllBlocks(),
                                        .place_of =
                                            [&](BlockIndex block) {
                                              const ByteRange range = layout->block_range(block);
                                              return std::span(bytes).subspan(range.offset, range.bytes);
                                            },
                                        .on_made =
                                            [&](BlockIndex block, uint64_t hash) {
                                              hashes[block] = hash;
                                              return OkStatus();
                                            }};
  LS_RETURN_IF_ERROR(reader.MakeBlocks(head->history(), *layout, version, wanted, {}));
  const auto digest = versionlog::FindDigest(head->history(), version);
  if (digest != model::ComputeManifestDigest(layout->digest(), hashes)) {
    return Status(ErrorCode::kCorrupt, "the blocks do not give the version's digest");
  }
  return bytes;
}

// Every version that the log says it has is what it was.
inline void CheckLogOf(const replica::TestModel& model, const std::shared_ptr<objects::ObjectStore>& store,
                       WorkerPool& transfers, WorkerPool& pool) {
  versionlog::LogReader reader(store, "actor", {}, transfers, pool);
  const versionlog::Head head = *reader.ReadHead({});  // its objects stay for the grace time, whatever the writer does
  const v1::LogHistory& history = head->history();
  for (Version version = history.oldest(); version <= history.newest().version(); ++version) {
    if (!versionlog::FindDigest(history, version)) continue;
    const auto made = MakeFromLog(reader, head, version);
    INFO("version " << version << ": " << made.status().ToString());
    REQUIRE(made.ok());
    CHECK(*made == model.data(version));
  }
}

struct LogFixture : replica::ReplicaFixture {
  objects::TestStore log;
  std::shared_ptr<objects::ObjectStore> store = log.store();
  ArchiverOptions archiving{
      .store = store, .model = "actor", .receiver = "archiving", .grace = std::chrono::minutes(15)};
  std::unique_ptr<Archiver> archiver;
  WorkerPool transfers{4};

  void StartArchiver() {
    auto made = Archiver::Create(archiving, pair());
    REQUIRE(made.ok());
    archiver = *std::move(made);
  }
  // As a receiver that is stopped, and one that is started again.
  void StopArchiver() { archiver.reset(); }
  void RestartArchiver() {
    StopArchiver();
    Reopen();
    StartArchiver();
    archiver->InStep();
  }

  // Commits `version` as a session does: by a full pull, or by the deltas from what is held.
  void Pull(Version version, bool full = false) {
    while (!model.has(version)) model.Advance();
    if (full || pair().current().held.nothing()) {
      PullFull(version);
    } else {
      payload::DeltaChain steps;
      for (Version base = pair().current().held.version; base < version; ++base) {
        steps.push_back(model.Delta(base, base + 1, static_cast<int64_t>(base + 1)));
      }
      archiver->Keep(steps, "step " + std::to_string(version));
      PullDelta(version);
    }
    archiver->InStep();
  }
  // And waits until the log has it, and everything is done that it makes due.
  void Publish(Version version) {
    Pull(version);
    Await(version);
    const uint64_t bytes = model.layout()->data_bytes();
    const uint64_t most = archiving.keep_bytes == 0 ? 2 * bytes : archiving.keep_bytes;
    CHECK(Eventually([&] {
      const v1::LogHistory history = History();
      const bool short_enough = versionlog::StoredBytes(history, bytes) <= most || history.oldest() == version;
      return short_enough && versionlog::DueChunks(history, bytes).empty();
    }));
  }
  void Await(Version version) {
    const bool came = Eventually([&] {
      const v1::Archive shown = archiver->Describe();
      return shown.newest().version() == version && shown.newest().run() == ToBytes(model.run()) &&
             shown.state() == v1::ARCHIVE_STATE_FOLLOWING;
    });
    INFO(archiver->Describe().ShortDebugString());
    REQUIRE(came);
  }

  versionlog::LogReader Reader(const versionlog::TrustedKeys& trusted = {}) {
    return {store, "actor", trusted, transfers, pool};
  }
  v1::LogHistory History() { return (*Reader().ReadHead({}))->history(); }

  Result<Bytes> Make(Version version) {
    versionlog::LogReader reader = Reader();
    LS_ASSIGN_OR_RETURN(const versionlog::Head head, reader.ReadHead({}));
    return MakeFromLog(reader, head, version);
  }
  void CheckLog() { CheckLogOf(model, store, transfers, pool); }
  std::vector<std::string> Objects() {
    std::vector<std::string> names;
    const auto listed = store->List("actor/", {});
    for (const objects::ListedObject& object : *listed) names.push_back(object.name);
    return names;
  }
};

}  // namespace lockstep::archive
