#include "export_plugin/exporter/host_only_engine.h"

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <vector>

namespace lockstep::exporter {
namespace {

TEST_CASE("Memory that the CPU cannot read is an error that says why, on either side") {
  void* const unreadable = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(unreadable != MAP_FAILED);
  auto* const memory = static_cast<std::byte*>(unreadable);
  auto engine = NewHostOnlyEngine(nullptr, {ErrorCode::kNotFound, "CUDA finds no GPU"});
  REQUIRE(engine.ok());
  std::vector<std::byte> source(100, std::byte{7});
  std::vector<std::byte> target(100);
  const PlacedCopy copies[] = {{source.data(), target.data(), {.row_bytes = 100}},
                               {memory, target.data(), {.row_bytes = 100}},
                               {source.data(), memory, {.row_bytes = 100}}};
  CHECK((*engine)->Run({copies, 1}).ok());
  CHECK(target == source);
  for (const size_t bad : {1, 2}) {
    const Status status = (*engine)->Run({copies + bad, 1});
    CHECK(status.code() == ErrorCode::kNotFound);
    CHECK(status.message().find("cannot be read by the CPU, as a GPU's cannot, and CUDA finds no GPU") !=
          std::string::npos);
  }
  REQUIRE(munmap(unreadable, 4096) == 0);
}

}  // namespace
}  // namespace lockstep::exporter
