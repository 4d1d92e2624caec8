// What the control plane does with the layout and the manifest of a very large model, on one core: each thing once, as
// it happens between a trainer that opens its model and a replica that is ready for it. 100,000 tensors and 1 TB in 4 M
// blocks. The figure layout_100k is all steps together; the series has each.
#include <string>
#include <string_view>

#include "common/base/text.h"
#include "common/model/manifest.h"
#include "common/model/safetensors.h"
#include "common/os/segment.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/status_mapping.h"
#include "proto/lockstep/v1/agent.grpc.pb.h"
#include "raas_receiver/replica/state_file.h"
#include "tests/bench/common/bench.h"
#include "tests/bench/common/models.h"
#include "trainer_agent/run/control_segment.h"
#include "trainer_agent/run/shares.h"

namespace lockstep::bench {
namespace {

constexpr uint64_t kColumnParts = 4;
constexpr std::string_view kNotOnTheWay = "parse_header";  // no part of the figure

// The samples of each step, in the order of their first run, and of all together.
class Steps {
 public:
  template <typename Body>
  void Time(std::string_view name, Body body) {
    const double seconds = TimeOnce(body);
    if (name != kNotOnTheWay) total_ += seconds;
    for (auto& [known, samples] : steps_) {
      if (known == name) return samples.push_back(seconds);
    }
    steps_.push_back({name, {seconds}});
  }
  void EndRound() { totals_.push_back(std::exchange(total_, 0)); }

  void Print(size_t tensors, uint64_t bytes) const {
    for (const auto& [name, samples] : steps_) {
      PrintRow("layout_steps", "s", {{"tensors", tensors}, {"step", name}, {"seconds", Median(samples)}});
    }
    PrintResult("layout_100k", "s", bytes, totals_, {1.0});
  }

 private:
  std::vector<std::pair<std::string_view, std::vector<double>>> steps_;
  std::vector<double> totals_;
  double total_ = 0;
};

// The agent's answer, in the real message.
class LayoutService : public v1::TrainerAgent::Service {
 public:
  explicit LayoutService(std::shared_ptr<const model::ModelLayout> layout) : layout_(std::move(layout)) {}
  grpc::Status GetLayout(grpc::ServerContext*, const v1::GetLayoutRequest*, v1::Layout* answer) override {
    answer->set_digest(ToBytes(layout_->digest()));
    answer->set_encoded(std::string(AsText(layout_->encoded())));
    return grpc::Status::OK;
  }

 private:
  const std::shared_ptr<const model::ModelLayout> layout_;
};

// As a receiver asks for it: on a new connection, checked against its digest.
void GetLayout(int port) {
  const auto stub = v1::TrainerAgent::NewStub(rpc::MakeChannel(Cat("127.0.0.1:", port)));
  grpc::ClientContext context;
  v1::Layout answer;
  OrDie(rpc::FromGrpc(stub->GetLayout(&context, v1::GetLayoutRequest(), &answer)));
  const auto layout = OrDie(model::ModelLayout::Decode(AsBytes(std::string_view(answer.encoded()))));
  Require(ToBytes(layout->digest()) == answer.digest(), "the layout is not the one it is named");
}

// Shares of four ranks, with a batch for each tensor: a quarter of the columns of matrices, the rest whole by the
// first.
std::vector<wire::Share> SharesOf(const model::ModelLayout& layout) {
  std::vector<wire::Share> shares(kColumnParts);
  for (uint64_t part = 0; part < kColumnParts; ++part) {
    for (size_t i = 0; i < layout.tensors().size(); ++i) {
      const model::TensorMeta& tensor = layout.tensors()[i];
      const uint64_t bytes = layout.tensor_bytes(i);
      StridedRange range = StridedRange::Plain({tensor.offset, bytes});
      if (tensor.shape.size() >= 2) {
        const uint64_t pitch = bytes / tensor.shape[0];
        const uint64_t columns = pitch / kColumnParts;
        range = {tensor.offset + part * columns, columns, tensor.shape[0], pitch};
      } else if (part > 0) {
        continue;
      }
      shares[part].Add({&range, 1});
    }
  }
  return shares;
}

void ReportAll(const std::shared_ptr<const model::ModelLayout>& layout, Steps& steps) {
  std::vector<wire::Share> given = SharesOf(*layout);
  run::Shares shares(layout, kColumnParts);
  steps.Time("prove_shares", [&] {
    for (uint32_t rank = 0; rank < kColumnParts; ++rank) OrDie(shares.Set(rank, std::move(given[rank])));
  });
  size_t completed = 0;
  steps.Time("report_batches", [&] {
    run::DraftProgress progress(&shares);
    for (uint32_t rank = 0; rank < kColumnParts; ++rank) {
      for (uint32_t batch = 0; batch < shares.Find(rank)->batch_ends.size(); ++batch) {
        completed += OrDie(progress.Report(rank, {&batch, 1}, run::Content::kNew)).changed.size();
      }
    }
  });
  Require(completed == layout->block_count(), "a block was not completed");
}

void Segments(const model::ModelLayout& layout, Steps& steps) {
  os::MappedSegment memory = OrDie(os::CreateMemfdSegment("layout_bench", run::ControlSegment::BytesFor(layout)));
  os::MappedSegment again =
      OrDie(os::AdoptSegment(os::UniqueFd(::dup(memory.fd())), memory.bytes(), os::Access::kReadWrite, "again"));
  steps.Time("control_segment",
             [&] { run::ControlSegment::Format(std::move(memory), "model", RandomId<RunId>(), layout, 64); });
  steps.Time("recover_segment", [&] { OrDie(run::ControlSegment::Open(std::move(again))); });
}

void Manifests(const std::shared_ptr<const model::ModelLayout>& layout, Steps& steps) {
  const std::vector<BlockIndex> blocks = layout->AllBlocks();
  model::Manifest manifest{
      .held = {RandomId<RunId>(), 7}, .block_hashes = std::vector<uint64_t>(blocks.size()), .digest = {}};
  for (const BlockIndex block : blocks) manifest.block_hashes[block] = block * 0x9e3779b97f4a7c15;
  steps.Time("manifest_digest",
             [&] { manifest.digest = model::ComputeManifestDigest(layout->digest(), manifest.block_hashes); });
  steps.Time("bad_tensors", [&] {
    Require(model::TensorsInBlocks(*layout, blocks).size() == layout->tensors().size(), "a tensor was not named");
  });
  Bytes state;
  steps.Time("encode_state", [&] { state = replica::EncodeReplicaState({layout, manifest, 1}); });
  steps.Time("decode_state", [&] { OrDie(replica::DecodeReplicaState(state)); });
}

void Round(const std::vector<model::TensorMeta>& tensors, Steps& steps) {
  std::shared_ptr<const model::ModelLayout> layout;
  Bytes header;
  steps.Time("create", [&] { layout = OrDie(model::ModelLayout::Create(tensors)); });
  steps.Time("decode", [&] { OrDie(model::ModelLayout::Decode(layout->encoded())); });
  steps.Time("header", [&] { header = model::SafetensorsHeader(*layout); });
  steps.Time(kNotOnTheWay, [&] {
    const auto file = OrDie(model::ParseSafetensors(header, header.size() + layout->data_bytes()));
    Require(file.tensors.size() == tensors.size(), "a tensor got lost");
  });
  Segments(*layout, steps);
  LayoutService service(layout);
  const auto server =
      OrDie(rpc::RpcServer::Create({.address = "127.0.0.1:0", .services = {&service}, .health_services = {}}));
  steps.Time("get_layout", [&] { GetLayout(server->bound_port()); });
  ReportAll(layout, steps);
  Manifests(layout, steps);
  steps.EndRound();
}

}  // namespace

void Run(bool quick) {
  Json config = Json::parse(kDeepSeekV3);
  config["num_hidden_layers"] = 130;
  config["moe_intermediate_size"] = 704;
  const std::vector<model::TensorMeta> tensors = TensorsOf(config.dump());
  Steps steps;
  for (int i = 0; i < (quick ? 1 : 7); ++i) Round(tensors, steps);
  steps.Print(tensors.size(), tensors.back().offset + OrDie(model::TensorBytes(tensors.back())));
}

}  // namespace lockstep::bench
