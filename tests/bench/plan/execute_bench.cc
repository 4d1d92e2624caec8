// How fast a plan runs: the shards of four tensor-parallel ranks (fused QKV, gate and up, columns and rows) into the
// data section of a slot, against memcpy of as many bytes by as many threads.
//
//   execute_bench [--quick]
#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "common/base/worker_pool.h"
#include "export_plugin/exporter/lowering.h"
#include "tests/bench/common/report.h"
#include "tests/bench/plan/sharded_model.h"

namespace lockstep::bench {
namespace {

constexpr uint32_t kRanks = 4;
constexpr size_t kThreads = 2;

// Shared memory, as a slot is.
std::byte* SharedMemory(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail(ErrnoStatus(errno, "mmap"));
  std::memset(memory, 1, bytes);
  return static_cast<std::byte*>(memory);
}

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

void Run(bool quick) {
  const auto descriptions = OrDie(plan::ExpectedDescriptions(
      LlamaConfig(quick, /*copies=*/2), {.world = kRanks, .tensor = kRanks, .expert_tensor = kRanks}, 0, true));
  const layout::TrainingModel model = OrDie(plan::BuildTrainingModel(descriptions));
  const layout::CopyPlan plan = OrDie(layout::CompileExport(model, plan::OnAgentHost(descriptions)));
  std::vector<RankMemory> ranks;
  std::vector<exporter::CopyList> lists;
  uint64_t held = 0;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    ranks.push_back(MemoryOf(descriptions[rank], static_cast<uint8_t>(rank)));
    held += ranks.back().bytes;
    const exporter::LocalsBySource by_source = exporter::LocalsOfRank(model, rank);
    lists.push_back(
        OrDie(exporter::LowerCopies(model, exporter::ChunksOf(model, plan.ranks[rank]), ranks[rank].locals, by_source))
            .changing);
  }
  std::byte* const slot = SharedMemory(std::max(held, plan.bytes));
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
  std::vector<double> ours;
  std::vector<double> plain;
  for (int turn = 0; turn < (quick ? 1 : 7); ++turn) {
    ours.push_back(TimeRepeated(1, execute).front());
    plain.push_back(TimeRepeated(1, [&] { CopyPlainly(ranks, slot); }).front());
  }
  PrintResult("plan_execute", "GB/s", plan.bytes, Throughput(ours, plan.bytes), Throughput(plain, held));
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Run(lockstep::bench::IsQuick(argc, argv));
}
