// How fast a plan runs: the shards of four tensor-parallel ranks of a Llama (fused QKV, gate and up, columns and rows)
// into the data section of a slot, against memcpy of as many bytes by as many threads.
#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "common/base/worker_pool.h"
#include "common/layout/copy_plan.h"
#include "export_plugin/exporter/local_tensor.h"
#include "export_plugin/exporter/lowering.h"
#include "export_plugin/plan/shard_description.h"
#include "tests/bench/common/bench.h"

namespace lockstep::bench {
namespace {

constexpr uint32_t kRanks = 4;
constexpr size_t kThreads = 2;
constexpr uint64_t kLlamaBytes = 1'400'000'000;
constexpr char kLlama[] = R"({"model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 2,
  "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
  "intermediate_size": 14336, "vocab_size": 32000, "tie_word_embeddings": false})";
constexpr char kSmallLlama[] = R"({"model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 2,
  "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
  "intermediate_size": 1792, "vocab_size": 4000, "tie_word_embeddings": false})";

// Every page was written, with bytes that differ.
std::byte* FilledMemory(uint64_t bytes, int sharing) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail(ErrnoStatus(errno, "mmap"));
  auto* first = static_cast<std::byte*>(memory);
  for (uint64_t i = 0; i < bytes; ++i) first[i] = static_cast<std::byte>(i * 31 + (i >> 12));
  return first;
}

// The tensors of one rank, one after the other in memory of their own.
struct RankMemory {
  std::vector<exporter::LocalTensor> locals;
  std::byte* memory = nullptr;
  uint64_t bytes = 0;

  explicit RankMemory(const plan::ShardDescription& description) {
    std::vector<uint64_t> offsets;
    for (const plan::DescribedLocal& local : plan::LocalsOf(description)) {
      const layout::TensorView view = layout::TensorView::Contiguous(local.shape, 2, 0);
      locals.push_back(
          {.name = local.name, .dtype = model::DType::kBF16, .shape = view.shape, .strides = view.strides});
      offsets.push_back(bytes);
      bytes += layout::ElementCount(local.shape) * 2;
    }
    memory = FilledMemory(bytes, MAP_PRIVATE);
    for (size_t i = 0; i < offsets.size(); ++i) locals[i].address = memory + offsets[i];
  }
};

void CopyPlainly(const std::vector<RankMemory>& ranks, std::byte* slot) {
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      uint64_t offset = 0;
      for (const RankMemory& rank : ranks) {
        const uint64_t part = rank.bytes / kThreads;
        std::memcpy(slot + offset + thread * part, rank.memory + thread * part, part);
        offset += rank.bytes;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void Run(bool quick) {
  const bool small = quick || FittingBytes(kLlamaBytes, /*copies=*/2) < kLlamaBytes;
  const auto descriptions = OrDie(plan::ExpectedDescriptions(
      small ? kSmallLlama : kLlama, {.world = kRanks, .tensor = kRanks, .expert_tensor = kRanks}, 0, true));
  const layout::TrainingModel model = OrDie(plan::BuildTrainingModel(descriptions));
  const layout::CopyPlan plan = OrDie(layout::CompileExport(model, plan::OnAgentHost(descriptions)));
  std::vector<RankMemory> ranks;
  std::vector<exporter::CopyList> lists;
  uint64_t held = 0;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back(descriptions[rank]);
    held += ranks.back().bytes;
    const exporter::LocalsBySource by_source = exporter::LocalsOfRank(model, rank);
    lists.push_back(
        OrDie(exporter::LowerCopies(model, exporter::ChunksOf(model, plan.ranks[rank]), ranks[rank].locals, by_source))
            .changing);
  }
  std::byte* const slot = FilledMemory(std::max(held, plan.bytes), MAP_SHARED);
  WorkerPool pool(kThreads - 1);
  const auto engine = exporter::NewHostCopyEngine(&pool);
  std::vector<exporter::PlacedCopy> placed;
  const auto execute = [&] {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      OrDie(exporter::Place(lists[rank].copies, ranks[rank].locals, slot, placed));
      OrDie(engine->Run(placed));
    }
  };
  // In turn, so that both meet the same neighbours on the machine.
  std::vector<double> ours, plain;
  for (int turn = 0; turn < (quick ? 1 : 7); ++turn) {
    ours.push_back(TimeRepeated(1, execute).front());
    plain.push_back(TimeRepeated(1, [&] { CopyPlainly(ranks, slot); }).front());
  }
  PrintResult("plan_execute", "GB/s", plan.bytes, Throughput(ours, plan.bytes), Throughput(plain, held));
}

}  // namespace lockstep::bench
