// A ReplicaPair in a directory of its own, and the syncs a session would run on it. For tests.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>

#include "common/model/safetensors.h"
#include "common/model/version_files.h"
#include "common/os/temp_dir.h"
#include "raas_receiver/replica/replica_pair.h"
#include "raas_receiver/replica/test_model.h"

namespace lockstep::replica {

struct ReplicaFixture {
  os::TempDir root{"/dev/shm"};
  TestModel model;
  WorkerPool pool{2};
  ReplicaOptions options{.root = root.path(),
                         .model = "actor",
                         .assets = "",
                         .keep_delta_bytes = 1 << 20,
                         .reader_grace = std::chrono::milliseconds(0),
                         .at_edge = {}};
  std::unique_ptr<ReplicaPair> opened;

  void Open() {
    auto pair = ReplicaPair::Open(options, pool);
    INFO(pair.status().ToString());
    REQUIRE(pair.ok());
    opened = *std::move(pair);
  }
  void Close() { opened.reset(); }
  void Reopen() {
    Close();
    Open();
  }
  ReplicaPair& pair() { return *opened; }
  std::string ModelPath(const std::string& name) const { return options.root + "/actor/" + name; }

  // What Sync does for a full pull and for a delta pull. No checks: also run in forked children.
  static Status TryFull(ReplicaPair& pair, const TestModel& of, Version version) {
    LS_RETURN_IF_ERROR(pair.BeginFull(of.layout()));
    for (BlockIndex block = 0; block < of.layout()->block_count(); ++block) {
      const ByteView bytes = of.block_of(version, block);
      std::copy(bytes.begin(), bytes.end(), pair.target_block(block).begin());
    }
    return pair.Commit(of.manifest(version), static_cast<int64_t>(version), {});
  }
  static Status TryDelta(ReplicaPair& pair, const TestModel& of, Version version) {
    const payload::DeltaChain chain = of.Chain(pair.current().held.version, version);
    LS_ASSIGN_OR_RETURN(const auto damaged, pair.BringForward(chain));
    if (!damaged.empty()) return {ErrorCode::kCorrupt, "damaged"};
    return pair.Commit(of.manifest(version), static_cast<int64_t>(version), chain);
  }

  // Hashes all that both replicas hold.
  void Scrub() {
    for (const size_t replica : {0, 1}) {
      for (BlockIndex next = opened->Check(replica, 0, 4096).next; next != 0;) {
        next = opened->Check(replica, next, 4096).next;
      }
    }
  }

  void PullFull(Version version) { PullFull(version, model); }
  void PullFull(Version version, const TestModel& of) {
    const Status status = TryFull(pair(), of, version);
    INFO(status.ToString());
    REQUIRE(status.ok());
  }
  void PullDelta(Version version) {
    const Status status = TryDelta(pair(), model, version);
    INFO(status.ToString());
    REQUIRE(status.ok());
  }

  // The current version is `version` in every respect: what is said, what the file holds, what its hashes are.
  void CheckCurrent(Version version) { CheckCurrent(version, model); }
  void CheckCurrent(Version version, const TestModel& of) {
    REQUIRE(pair().current().held == of.held(version));
    CHECK(FileBytes(ModelPath("current/" + std::string(model::WeightsFile(*of.layout())))) == Image(of, version));
    for (const auto& [name, text] : of.layout()->attachments()) CHECK(FileText(ModelPath("current/" + name)) == text);
    const auto report = pair().Verify();
    REQUIRE(report.ok());
    CHECK(report->bad_blocks.empty());
    CHECK(report->computed == of.manifest(version).digest);
  }

  static Bytes Image(const TestModel& of, Version version) {
    Bytes image = model::SafetensorsHeader(*of.layout());
    AppendBytes(image, of.data(version));
    return image;
  }
  static std::string FileText(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static Bytes FileBytes(const std::string& path) {
    const std::string text = FileText(path);
    const ByteView bytes = AsBytes(std::string_view(text));
    return Bytes(bytes.begin(), bytes.end());
  }
  // By default in the last block.
  static void FlipByte(const std::string& path, int from_end = 100) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(-from_end, std::ios::end);
    const auto at = file.tellg();
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(at);
    file.put(byte);
    REQUIRE(file.good());
  }
  std::set<std::string> FileNames(const std::string& directory) const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(ModelPath(directory))) {
      names.insert(entry.path().filename());
    }
    return names;
  }
  std::set<std::string> Directories() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(ModelPath(""))) {
      const std::string name = entry.path().filename();
      if (name != "current" && name != ".lockstep") names.insert(name);
    }
    return names;
  }
};

}  // namespace lockstep::replica
