// An agent's real serving side, on this host and over TCP, and sinks that keep what comes. For tests.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "raas_receiver/pull/block_source.h"
#include "raas_receiver/pull/lane_set.h"
#include "raas_receiver/pull/local_source.h"
#include "trainer_agent/serve/lane_server.h"
#include "trainer_agent/serve/local_server.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep::pull {

inline std::vector<BlockIndex> AllBlocks() {
  std::vector<BlockIndex> blocks(serve::kBlocks);
  for (BlockIndex block = 0; block < serve::kBlocks; ++block) blocks[block] = block;
  return blocks;
}

// Keeps blocks, and of which version each was said to be; 0: it did not come.
struct KeptBlocks : BlockSink {
  Bytes memory = Bytes(serve::kBlocks * serve::kBlock);
  std::vector<Version> versions = std::vector<Version>(serve::kBlocks);
  std::function<void(BlockIndex)> before_copy = [](BlockIndex) {};

  std::span<std::byte> Destination(const wire::FrameHeader& frame) override {
    before_copy(frame.block);
    return std::span(memory).subspan(frame.block * serve::kBlock, serve::kBlock);
  }
  Status Put(const wire::FrameHeader& frame, ByteView payload) override {
    if (model::BlockHash(payload) != frame.block_hash) return {ErrorCode::kInternal, "not what its hash says"};
    versions[frame.block] = frame.version;
    return OkStatus();
  }
  Bytes block(BlockIndex block) const {
    return {memory.begin() + block * serve::kBlock, memory.begin() + (block + 1) * serve::kBlock};
  }
  std::vector<BlockIndex> missing() const {
    std::vector<BlockIndex> missing;
    for (BlockIndex block = 0; block < serve::kBlocks; ++block) {
      if (versions[block] == 0) missing.push_back(block);
    }
    return missing;
  }
};

// Keeps the entries of deltas, however they came.
struct KeptDeltas : DeltaSink {
  std::mutex mutex;
  std::map<uint64_t, std::map<BlockIndex, Bytes>> entries;  // by payload
  Status payload_answer;                                    // what PutPayload returns

  Status PutEntry(uint64_t payload_id, payload::DeltaBlock entry) override {
    std::lock_guard lock(mutex);
    const bool first = entries[payload_id].emplace(entry.block, std::move(entry.data)).second;
    return first ? OkStatus() : Status(ErrorCode::kInternal, "an entry came twice");
  }
  Status PutPayload(uint64_t payload_id, std::shared_ptr<const payload::Payload> payload) override {
    if (payload_answer.ok()) entries[payload_id] = EntriesOf(*payload);
    return payload_answer;
  }
  static std::map<BlockIndex, Bytes> EntriesOf(const payload::Payload& payload) {
    std::map<BlockIndex, Bytes> entries;
    for (const payload::PayloadEntry& entry : payload.entries()) {
      const ByteView data = payload.data(entry);
      entries[entry.block] = Bytes(data.begin(), data.end());
    }
    return entries;
  }
};

// An agent that serves one run by both ways, and sources that are connected to it.
struct SourceHost : serve::Served {
  os::TempDir dir;
  std::unique_ptr<os::UnixServer> local_server = *serve::StartLocalServer({.path = dir.File("pull.sock")}, &pulls);
  std::unique_ptr<serve::LaneServer> lane_server = *serve::LaneServer::Start({.address = {"127.0.0.1", 0}}, &pulls);
  std::unique_ptr<serve::LaneServer> encrypted_server =
      *serve::LaneServer::Start({.address = {"127.0.0.1", 0}, .encrypted = true}, &pulls);
  net::IoThreads io{2, [](std::string_view what) { throw std::logic_error(std::string(what)); }};

  // The plan of a receiver that holds version `held`; 0: nothing.
  serve::PullPlan Open(Version held = 0) { return *pulls.Open(Request(held)); }

  LocalOptions Options(const serve::PullPlan& plan) const {
    return {.path = dir.File("pull.sock"),
            .pull_id = plan.pull_id,
            .ticket = plan.local_ticket,
            .layout = layout,
            .connect_timeout = std::chrono::minutes(1),
            .answer_timeout = std::chrono::minutes(1)};
  }
  std::unique_ptr<LocalSource> Connect(const serve::PullPlan& plan) {
    auto source = LocalSource::Connect(Options(plan), pool);
    INFO(source.status().ToString());
    REQUIRE(source.ok());
    return *std::move(source);
  }
  std::unique_ptr<LaneSet> OpenLanes(const serve::PullPlan& plan, bool encrypted = false) {
    LaneOptions options{.peer = {.agent = {"127.0.0.1", (encrypted ? encrypted_server : lane_server)->port()},
                                 .pull_id = plan.pull_id,
                                 .layout = layout,
                                 .tickets = plan.tickets,
                                 .connect_timeout = std::chrono::minutes(1)}};
    if (encrypted) options.peer.tls = *net::TlsContext::Create(net::TlsContext::Side::kConnects);
    const uint64_t pull_id = plan.pull_id;
    return std::make_unique<LaneSet>(io, std::move(options), [this, pull_id](size_t lanes) {
      return pulls.RenewTickets(pull_id, static_cast<uint32_t>(lanes));
    });
  }

  static std::vector<DeltaStep> StepsOf(const serve::PullPlan& plan) {
    std::vector<DeltaStep> steps;
    for (const serve::PlannedStep& step : plan.steps) {
      const payload::PayloadHeader& header = step.payload->header();
      steps.push_back({.payload_id = step.payload_id,
                       .base = header.base,
                       .target = header.target,
                       .target_digest = header.target_digest,
                       .entries = header.entries,
                       .data_bytes = header.data_bytes});
    }
    return steps;
  }
  void Overwrite(Version version, BlockIndex block) {
    std::memset(serve::MadeUpBlocks::DataOf(blocks->MemoryOf(version), block), 0xee, serve::kBlock);
  }
};

}  // namespace lockstep::pull
