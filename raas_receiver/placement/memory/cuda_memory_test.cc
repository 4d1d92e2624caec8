// Needs a GPU: bazel test --config=gpu //raas_receiver/placement/memory:cuda_memory_test
//
// CUDA's handles are for other processes, and a process that has used CUDA cannot fork: children are made before this
// one does anything with a GPU.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/worker_pool.h"
#include "common/os/segment.h"
#include "raas_receiver/placement/memory/target_memory.h"

namespace lockstep::placement {
namespace {

constexpr uint64_t kAllocated = uint64_t{40} << 20;
constexpr uint64_t kOffset = 512;  // of the memory in its allocation
constexpr uint64_t kBytes = kAllocated - 1024;

Bytes Noise(size_t bytes, uint32_t seed) {
  std::mt19937 generator(seed);
  Bytes noise(bytes);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(generator());
  return noise;
}

struct Lent {
  cudaIpcMemHandle_t handle;
  cudaUUID_t uuid;
};

bool ReadAll(int fd, void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = read(fd, static_cast<char*>(data) + done, bytes - done);
    if (got <= 0) return false;
    done += static_cast<size_t>(got);
  }
  return true;
}
bool WriteAll(int fd, const void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t put = write(fd, static_cast<const char*>(data) + done, bytes - done);
    if (put <= 0) return false;
    done += static_cast<size_t>(put);
  }
  return true;
}

// What the owner does: lends memory, and, for every byte that it is sent, fills it with noise ('!') or gives its
// content
// ('?').
int Own(int in, int out) {
  void* memory = nullptr;
  Lent lent{};
  cudaDeviceProp properties{};
  if (cudaMalloc(&memory, kAllocated) != cudaSuccess) return 1;
  if (cudaIpcGetMemHandle(&lent.handle, memory) != cudaSuccess) return 1;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return 1;
  lent.uuid = properties.uuid;
  if (!WriteAll(out, &lent, sizeof lent)) return 1;
  Bytes content = Noise(kAllocated, 1);
  for (char asked = 0; read(in, &asked, 1) == 1;) {
    if (asked == '!') {
      content = Noise(kAllocated, 1);
      if (cudaMemcpy(memory, content.data(), kAllocated, cudaMemcpyHostToDevice) != cudaSuccess) return 1;
      if (cudaDeviceSynchronize() != cudaSuccess || !WriteAll(out, "!", 1)) return 1;
    } else {
      if (cudaMemcpy(content.data(), memory, kAllocated, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
      if (!WriteAll(out, content.data(), content.size())) return 1;
    }
  }
  return 0;
}

class Owner {
 public:
  // The only one; its memory is noise again.
  static const Owner& Fresh() {
    static const Owner owner;
    char done = 0;
    REQUIRE((WriteAll(owner.ask_, "!", 1) && ReadAll(owner.answer_, &done, 1)));
    return owner;
  }

  ~Owner() {
    close(ask_);
    close(answer_);
    (void)waitpid(child_, nullptr, 0);
  }

  MemoryDescription description() const {
    MemoryDescription memory{.kind = MemoryKind::kCuda, .bytes = kBytes, .device = "GPU-", .offset = kOffset};
    constexpr char kDigits[] = "0123456789abcdef";
    for (size_t i = 0; i < 16; ++i) {
      if (i == 4 || i == 6 || i == 8 || i == 10) memory.device += '-';
      const auto byte = static_cast<uint8_t>(lent_.uuid.bytes[i]);
      memory.device += kDigits[byte >> 4];
      memory.device += kDigits[byte & 15];
    }
    std::memcpy(memory.handle.data(), &lent_.handle, memory.handle.size());
    return memory;
  }
  Bytes Content() const {
    Bytes content(kAllocated);
    REQUIRE(WriteAll(ask_, "?", 1));
    REQUIRE(ReadAll(answer_, content.data(), content.size()));
    return content;
  }

 private:
  Owner() {
    int to[2], from[2];
    REQUIRE((pipe(to) == 0 && pipe(from) == 0));
    child_ = fork();
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      close(to[1]);
      close(from[0]);
      _exit(Own(to[0], from[1]));
    }
    close(to[0]);
    close(from[1]);
    ask_ = to[1];
    answer_ = from[0];
    REQUIRE(ReadAll(answer_, &lent_, sizeof lent_));
  }

  pid_t child_ = -1;
  int ask_ = -1;
  int answer_ = -1;
  Lent lent_{};
};

// The same memory on the host, written by the host's kernels.
struct Oracle {
  os::MappedSegment segment;
  std::unique_ptr<TargetMemory> memory;

  Oracle() {
    segment = *os::CreateMemfdSegment("oracle", kBytes);
    const Bytes noise = Noise(kAllocated, 1);
    std::memcpy(segment.data(), noise.data() + kOffset, kBytes);
    memory = NewHostMemory(*os::AdoptSegment(os::UniqueFd(fcntl(segment.fd(), F_DUPFD_CLOEXEC, 0)), kBytes,
                                             os::Access::kReadWrite, "oracle"));
  }
  // The allocation, with what is around the memory.
  Bytes Allocation() const {
    Bytes bytes = Noise(kAllocated, 1);
    std::memcpy(bytes.data() + kOffset, segment.data(), kBytes);
    return bytes;
  }
};

struct Units {
  std::vector<uint32_t> offsets;
  Bytes values;
};

// Rising places of any alignment, over much of the memory.
Units SomeUnits(uint32_t unit, uint64_t base, uint32_t most_apart, uint32_t seed) {
  std::mt19937 random(seed);
  Units units;
  for (uint64_t at = random() % most_apart; base + at + unit <= kBytes; at += unit + random() % most_apart) {
    units.offsets.push_back(static_cast<uint32_t>(at));
  }
  units.values = Noise(units.offsets.size() * unit, seed + 1);
  return units;
}

TEST_CASE("What is written through a handle is what the host's kernels write, in the owner's own process") {
  const Owner& owner = Owner::Fresh();
  const Oracle oracle;
  auto opened = OpenCudaMemory(owner.description());
  INFO(opened.status().ToString());
  REQUIRE(opened.ok());
  TargetMemory& memory = **opened;
  CHECK(memory.bytes() == kBytes);
  SECTION("units of every size, more than staging memory holds") {
    for (const uint32_t unit : {1u, 2u, 4u, 8u}) {
      for (const uint32_t most_apart : {9u, 400u}) {
        const Units units = SomeUnits(unit, 24, most_apart, unit + most_apart);
        const ScatterRun run{24, unit, units.offsets, units.values.data()};
        REQUIRE(oracle.memory->Scatter({&run, 1}).ok());
        REQUIRE(memory.Scatter({&run, 1}).ok());
        REQUIRE(memory.Finish().ok());
        CHECK(owner.Content() == oracle.Allocation());
      }
    }
  }
  SECTION("rows, narrow and wide, more than staging memory holds") {
    const Bytes source = Noise(kBytes, 7);
    const std::vector<layout::StridedCopy> copies{{.source_offset = 3, .target_offset = 5, .row_bytes = 20'000'001},
                                                  {1, 21'000'000, 700, 510, 1022, 512},
                                                  {0, 22'000'000, 3000, 2, 64, 128},
                                                  {9, 23'000'001, 40, 100'000, 200'000, 100'004}};
    CHECK_FALSE(*memory.Equal(copies, source.data()));
    REQUIRE(oracle.memory->Copy(copies, source.data()).ok());
    REQUIRE(memory.Copy(copies, source.data()).ok());
    REQUIRE(memory.Finish().ok());
    CHECK(owner.Content() == oracle.Allocation());
    CHECK(*memory.Equal(copies, source.data()));
  }
  SECTION("zeros, in rows and in one piece") {
    const std::vector<StridedRange> zeros{{.offset = 7, .row_bytes = 9'000'001}, {10'000'000, 2, 5000, 4}};
    CHECK_FALSE(*memory.IsZero(zeros));
    REQUIRE(oracle.memory->Zero(zeros).ok());
    REQUIRE(memory.Zero(zeros).ok());
    REQUIRE(memory.Finish().ok());
    CHECK(owner.Content() == oracle.Allocation());
    CHECK(*memory.IsZero(zeros));
  }
  SECTION("by several threads at once") {
    constexpr size_t kThreads = 6;
    std::vector<Units> units;
    for (size_t i = 0; i < kThreads; ++i) {
      Units& part = units.emplace_back(SomeUnits(2, kBytes - (4 << 20), 200, static_cast<uint32_t>(i)));
      for (uint32_t& offset : part.offsets) offset += static_cast<uint32_t>(i) * (6 << 20);
    }
    WorkerPool pool(kThreads);
    pool.ParallelFor(kThreads, [&](size_t i) {
      const ScatterRun run{0, 2, units[i].offsets, units[i].values.data()};
      (void)memory.Scatter({&run, 1});
    });
    REQUIRE(memory.Finish().ok());
    for (const Units& part : units) {
      const ScatterRun run{0, 2, part.offsets, part.values.data()};
      REQUIRE(oracle.memory->Scatter({&run, 1}).ok());
    }
    CHECK(owner.Content() == oracle.Allocation());
  }
}

TEST_CASE("Several memories of one allocation, a device by its bare UUID; and what cannot be opened is refused") {
  const Owner& owner = Owner::Fresh();
  const MemoryDescription good = owner.description();
  auto first = OpenCudaMemory(good);
  REQUIRE(first.ok());
  MemoryDescription other = good;
  other.device.erase(0, 4);
  other.offset = 0;
  other.bytes = kAllocated;
  CHECK(OpenCudaMemory(other).ok());

  MemoryDescription bad = good;
  bad.device = "GPU-00000000-0000-0000-0000-000000000000";
  CHECK(OpenCudaMemory(bad).status().code() == ErrorCode::kUnavailable);
  bad = good;
  bad.bytes = uint64_t{1} << 40;
  CHECK(OpenCudaMemory(bad).status().code() == ErrorCode::kBadData);
  bad.bytes = 1;
  bad.offset = UINT64_MAX;
  CHECK(OpenCudaMemory(bad).status().code() == ErrorCode::kBadData);
  bad = good;
  bad.handle.fill(0);
  CHECK(OpenCudaMemory(bad).status().code() == ErrorCode::kBadData);
}

}  // namespace
}  // namespace lockstep::placement
