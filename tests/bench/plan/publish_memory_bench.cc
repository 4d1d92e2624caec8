// What a publish takes in addition to the trainer's own tensors and the shared slots: the growth of a rank's anonymous
// memory while it publishes, sampled, with two ranks as processes and a real agent.
//
//   publish_memory_bench [--quick]      run in the repository's root, where bazel-bin/ has the agent
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "export_plugin/exporter/exporter.h"
#include "tests/bench/common/report.h"
#include "tests/bench/plan/sharded_model.h"

namespace lockstep::bench {
namespace {

constexpr char kAgent[] = "bazel-bin/trainer_agent/agent/trainer_agent";
constexpr uint32_t kRanks = 2;
constexpr double kBoundMiB = 16;

uint64_t AnonymousKiB() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == "RssAnon:" && status >> kib) return kib;
  }
  Fail({ErrorCode::kIo, "/proc/self/status has no RssAnon"});
}

// The peak of anonymous memory while `body` runs, above what it was before.
template <typename Body>
double GrowthMiB(Body body) {
  const uint64_t before = AnonymousKiB();
  std::atomic<bool> done{false};
  uint64_t peak = before;
  std::thread sampler([&] {
    while (!done) {
      peak = std::max(peak, AnonymousKiB());
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  body();
  done = true;
  sampler.join();
  return static_cast<double>(std::max(peak, AnonymousKiB()) - before) / 1024;
}

// One rank's process: its growth at each publish goes to `output`.
[[noreturn]] void RunRank(const std::vector<plan::ShardDescription>& descriptions, uint32_t rank,
                          const std::string& socket, int publishes, int output) {
  const RankMemory memory = MemoryOf(descriptions[rank], static_cast<uint8_t>(rank));
  exporter::ExporterOptions options{.socket_path = socket, .model = "bench", .rank = rank, .locals = memory.locals};
  for (const plan::ShardDescription& description : descriptions)
    options.descriptions.push_back(plan::ToJson(description));
  const auto exporter = OrDie(exporter::Exporter::Open(options));
  for (int version = 1; version <= publishes; ++version) {
    memory.memory[static_cast<uint64_t>(version) * 4096] ^= std::byte{1};
    const double growth = GrowthMiB([&] { OrDie(exporter->Publish(static_cast<Version>(version))); });
    if (write(output, &growth, sizeof growth) != sizeof growth) std::_Exit(1);
  }
  std::_Exit(0);
}

pid_t StartAgent(const std::filesystem::path& directory, const std::string& socket) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const std::string segments = directory / "segments";
  const int log = open((directory / "agent.log").c_str(), O_CREAT | O_WRONLY, 0600);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execl(kAgent, kAgent, "--socket", socket.c_str(), "--segment-dir", segments.c_str(), "--listen", "127.0.0.1:0",
        "--lane-listen", "127.0.0.1:0", nullptr);
  std::_Exit(127);
}

void Run(bool quick) {
  const std::filesystem::path shared = "/dev/shm";
  std::string pattern = (std::filesystem::is_directory(shared) ? shared : "/tmp") / "lockstep-bench-XXXXXX";
  const std::filesystem::path directory = mkdtemp(pattern.data());
  const std::string socket = directory / "export.sock";
  const int publishes = quick ? 2 : 6;
  const auto descriptions = OrDie(plan::ExpectedDescriptions(
      LlamaConfig(quick, /*copies=*/3), {.world = kRanks, .tensor = kRanks, .expert_tensor = kRanks}, 0, true));
  const pid_t agent = StartAgent(directory, socket);
  std::vector<int> outputs;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) Fail(ErrnoStatus(errno, "pipe"));
    if (fork() == 0) RunRank(descriptions, rank, socket, publishes, ends[1]);
    close(ends[1]);
    outputs.push_back(ends[0]);
  }
  std::vector<double> growths;
  for (int version = 0; version < publishes; ++version) {
    double largest = 0;
    for (const int output : outputs) {
      double growth = 0;
      if (read(output, &growth, sizeof growth) != sizeof growth) {
        kill(agent, SIGKILL);
        Fail({ErrorCode::kInternal, "a rank ended early; see " + (directory / "agent.log").string()});
      }
      largest = std::max(largest, growth);
    }
    growths.push_back(largest);
  }
  kill(agent, SIGKILL);
  while (wait(nullptr) > 0) {
  }
  std::filesystem::remove_all(directory);
  const layout::CopyPlan plan =
      OrDie(layout::CompileExport(OrDie(plan::BuildTrainingModel(descriptions)), plan::OnAgentHost(descriptions)));
  PrintResult("publish_extra_memory", "MiB", plan.bytes, growths, {kBoundMiB});
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::bench::Run(lockstep::bench::IsQuick(argc, argv));
}
