// What the control plane does with the layout and the manifest of a very large model, on one core: each thing once, as
// it happens between a trainer that opens its model and a replica that is ready for it.
//
//   layout_bench [--quick]
//
// Figure layout_100k: all of them, for 100,000 tensors and 1 TB in 4 M blocks. What each takes is printed in addition,
// and for 20,000 tensors too.
#include <string>
#include <string_view>

#include "common/base/text.h"
#include "common/model/layout.h"
#include "common/model/manifest.h"
#include "common/model/safetensors.h"
#include "common/os/segment.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/status_mapping.h"
#include "proto/lockstep/v1/agent.grpc.pb.h"
#include "raas_receiver/replica/state_file.h"
#include "tests/bench/common/model_layouts.h"
#include "tests/bench/common/or_die.h"
#include "tests/bench/common/report.h"
#include "trainer_agent/buffer/control_segment.h"
#include "trainer_agent/buffer/coverage.h"

namespace lockstep::bench {
namespace {

constexpr uint64_t kColumnParts = 4;
constexpr char kImport[] = "parse_header";

ModelShape DeepSeekLike(uint64_t layers, uint64_t expert_ffn) {
  ModelShape model = DeepSeekV3();
  model.layers = layers;
  model.expert_ffn = expert_ffn;
  return model;
}

void Require(bool fact, const char* what) {
  if (!fact) Fail({ErrorCode::kInternal, what});
}

// The samples of each step, in the order of their first run, and of all together.
class Steps {
 public:
  explicit Steps(uint64_t model_bytes) : model_bytes_(model_bytes) {}

  template <typename Body>
  void Time(const std::string& name, Body body) {
    const double seconds = TimeOnce(body);
    if (name != kImport) total_ += seconds;
    for (auto& [known, samples] : steps_) {
      if (known == name) return samples.push_back(seconds);
    }
    steps_.push_back({name, {seconds}});
  }
  void EndRound() { totals_.push_back(std::exchange(total_, 0)); }

  // Of all steps together.
  void PrintFigure(std::string_view figure) const { PrintResult(figure, "s", model_bytes_, totals_, {1.0}); }
  // A row for each step, with its median.
  void PrintSteps(size_t tensors) const {
    for (const auto& [name, samples] : steps_) {
      PrintRow("layout_steps", "s",
               {{"tensors", tensors},
                {"gigabytes", static_cast<double>(model_bytes_) / 1e9},
                {"step", name},
                {"seconds", Median(samples)}});
    }
  }

 private:
  std::vector<std::pair<std::string, std::vector<double>>> steps_;
  uint64_t model_bytes_;
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

// Every tensor reported by four ranks: matrices as a quarter of their columns each, the rest whole by the first.
void ReportAll(const model::ModelLayout& layout) {
  buffer::Coverage coverage(layout);
  buffer::CompletedBlocks completed;
  for (uint64_t part = 0; part < kColumnParts; ++part) {
    for (size_t i = 0; i < layout.tensors().size(); ++i) {
      const model::TensorMeta& tensor = layout.tensors()[i];
      const uint64_t bytes = layout.tensor_bytes(i);
      if (tensor.shape.size() < 2) {
        if (part == 0)
          OrDie(coverage.Add(StridedRange::Plain({tensor.offset, bytes}), buffer::Content::kNew, completed));
        continue;
      }
      const uint64_t pitch = bytes / tensor.shape[0];
      const uint64_t columns = pitch / kColumnParts;
      OrDie(coverage.Add({tensor.offset + part * columns, columns, tensor.shape[0], pitch}, buffer::Content::kNew,
                         completed));
    }
  }
  Require(coverage.complete(), "a byte was not reported");
  Require(completed.changed.size() == layout.block_count(), "a block was not completed");
}

class Round {
 public:
  Round(const std::vector<model::TensorMeta>& tensors, Steps& steps) : tensors_(tensors), steps_(steps) {}

  void Run() {
    steps_.Time("create", [&] { layout_ = OrDie(model::ModelLayout::Create(tensors_)); });
    steps_.Time("decode", [&] { OrDie(model::ModelLayout::Decode(layout_->encoded())); });
    steps_.Time("header", [&] { header_ = model::SafetensorsHeader(*layout_); });
    steps_.Time(kImport, [&] {
      const model::SafetensorsFile file =
          OrDie(model::ParseSafetensors(header_, header_.size() + layout_->data_bytes()));
      Require(file.tensors.size() == tensors_.size(), "a tensor got lost");
    });
    Segments();
    GetLayout();
    steps_.Time("coverage", [&] { ReportAll(*layout_); });
    Manifests();
    steps_.EndRound();
  }

 private:
  void Segments() {
    os::MappedSegment memory =
        OrDie(os::CreateMemfdSegment("layout_bench", buffer::ControlSegment::BytesFor(*layout_)));
    os::MappedSegment again =
        OrDie(os::AdoptSegment(os::UniqueFd(::dup(memory.fd())), memory.bytes(), os::Access::kReadWrite, "again"));
    steps_.Time("control_segment",
                [&] { buffer::ControlSegment::Format(std::move(memory), "model", RandomId<RunId>(), *layout_, 64); });
    steps_.Time("recover_segment", [&] { OrDie(buffer::ControlSegment::Open(std::move(again))); });
  }

  // As a receiver asks for it: on a new connection, checked against its digest.
  void GetLayout() {
    LayoutService service(layout_);
    const auto server =
        OrDie(rpc::RpcServer::Create({.address = "127.0.0.1:0", .services = {&service}, .health_services = {}}));
    steps_.Time("get_layout", [&] {
      const auto stub = v1::TrainerAgent::NewStub(rpc::MakeChannel(Cat("127.0.0.1:", server->bound_port())));
      grpc::ClientContext context;
      v1::Layout answer;
      OrDie(rpc::FromGrpc(stub->GetLayout(&context, v1::GetLayoutRequest(), &answer)));
      const auto layout = OrDie(model::ModelLayout::Decode(AsBytes(std::string_view(answer.encoded()))));
      Require(ToBytes(layout->digest()) == answer.digest(), "the layout is not the one it is named");
    });
  }

  void Manifests() {
    std::vector<BlockIndex> blocks(layout_->block_count());
    model::Manifest manifest{
        .held = {RandomId<RunId>(), 7}, .block_hashes = std::vector<uint64_t>(blocks.size()), .digest = {}};
    for (BlockIndex block = 0; block < blocks.size(); ++block) {
      blocks[block] = block;
      manifest.block_hashes[block] = block * 0x9e3779b97f4a7c15;
    }
    steps_.Time("manifest_digest",
                [&] { manifest.digest = model::ComputeManifestDigest(layout_->digest(), manifest.block_hashes); });
    steps_.Time("bad_tensors", [&] {
      Require(model::TensorsInBlocks(*layout_, blocks).size() == tensors_.size(), "a tensor was not named");
    });
    Bytes state;
    steps_.Time("encode_state", [&] { state = replica::EncodeReplicaState({layout_, manifest, 1}); });
    steps_.Time("decode_state", [&] { OrDie(replica::DecodeReplicaState(state)); });
  }

  const std::vector<model::TensorMeta>& tensors_;
  Steps& steps_;
  std::shared_ptr<const model::ModelLayout> layout_;
  Bytes header_;
};

Steps Measure(const ModelShape& model, int repeats) {
  std::vector<model::TensorMeta> tensors = HuggingFaceTensors(model).Make();
  OrDie(model::AssignOffsets(tensors));
  Steps steps(tensors.back().offset + OrDie(model::TensorBytes(tensors.back())));
  for (int i = 0; i < repeats; ++i) Round(tensors, steps).Run();
  steps.PrintSteps(tensors.size());
  return steps;
}

void Run(bool quick) {
  const int repeats = quick ? 1 : 7;
  Measure(DeepSeekLike(28, 704), repeats);
  Measure(DeepSeekLike(130, 704), repeats).PrintFigure("layout_100k");
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Run(lockstep::bench::IsQuick(argc, argv));
}
