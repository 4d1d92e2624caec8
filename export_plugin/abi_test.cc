#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "export_plugin/lockstep.h"

namespace {

int Open(const lockstep_options* options, std::string& error) {
  lockstep_publisher* publisher = nullptr;
  const int code = lockstep_open(options, &publisher);
  CHECK(publisher == nullptr);
  error = lockstep_last_error(nullptr);
  return code;
}

// Of a model of one tensor, whose agent is not there.
lockstep_options OptionsThatAsk(int (*interrupted)(void*)) {
  static const lockstep_tensor tensor{.name = "w", .dtype = "F32"};
  return {.abi_version = LOCKSTEP_ABI_VERSION,
          .socket_path = "/no/such/socket",
          .model = "m",
          .ranks = 1,
          .threads = 1,
          .interrupted = interrupted,
          .tensors = &tensor,
          .tensor_count = 1};
}

TEST_CASE("Nothing that a callback throws passes the C ABI") {
  std::string error;
  const lockstep_options throws = OptionsThatAsk([](void*) -> int { throw std::runtime_error("the trainer's own"); });
  CHECK(Open(&throws, error) == LOCKSTEP_INTERNAL);
  CHECK(error == "the trainer's own");
  const lockstep_options throws_a_number = OptionsThatAsk([](void*) -> int { throw 7; });
  CHECK(Open(&throws_a_number, error) == LOCKSTEP_INTERNAL);
  CHECK(error == "something was thrown that is no std::exception");
}

TEST_CASE("A thread may end in a callback, as Python's threads do at its end") {
  std::atomic<bool> returned = false;
  std::thread([&] {
    const lockstep_options ends = OptionsThatAsk([](void*) -> int { ::pthread_exit(nullptr); });
    lockstep_publisher* publisher = nullptr;
    (void)lockstep_open(&ends, &publisher);
    returned = true;
  }).join();
  CHECK_FALSE(returned);
}

TEST_CASE("A wait for a fleet says that no agent answers, and ends with its caller") {
  lockstep_served_query query{.abi_version = LOCKSTEP_ABI_VERSION, .socket_path = "/no/such/socket", .model = "m"};
  char* json = nullptr;
  CHECK(lockstep_wait_served(&query, &json) == LOCKSTEP_UNAVAILABLE);
  CHECK(json == nullptr);
  CHECK(std::string(lockstep_last_error(nullptr)).starts_with("not within 0 s: no agent answers on /no/such/socket: "));
  query.timeout_ms = UINT32_MAX;
  query.interrupted = [](void*) { return 1; };
  CHECK(lockstep_wait_served(&query, &json) == LOCKSTEP_DEADLINE);
  query.names = nullptr;
  query.name_count = 1;
  CHECK(lockstep_wait_served(&query, &json) == LOCKSTEP_BAD_DATA);
  query.abi_version = LOCKSTEP_ABI_VERSION + 1;
  CHECK(lockstep_wait_served(&query, &json) == LOCKSTEP_PROTOCOL);
  const lockstep_changes_query changes{
      .abi_version = LOCKSTEP_ABI_VERSION, .socket_path = "/no/such/socket", .model = "m"};
  CHECK(lockstep_wait_changes(&changes, &json) == LOCKSTEP_UNAVAILABLE);
  CHECK(json == nullptr);
  CHECK(lockstep_wait_changes(nullptr, &json) == LOCKSTEP_BAD_DATA);
}

TEST_CASE("Of options of another ABI version nothing but the version is read") {
  const auto page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const pages = ::mmap(nullptr, 2 * page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(pages != MAP_FAILED);
  REQUIRE(::mprotect(static_cast<char*>(pages) + page_bytes, page_bytes, PROT_NONE) == 0);
  const uint32_t version = LOCKSTEP_ABI_VERSION + 1;
  char* const last = static_cast<char*>(pages) + page_bytes - 8;  // room for the version, as a struct is aligned
  std::memcpy(last, &version, sizeof version);
  std::string error;
  CHECK(Open(reinterpret_cast<const lockstep_options*>(last), error) == LOCKSTEP_PROTOCOL);
  CHECK(error.starts_with("built against ABI version"));
  ::munmap(pages, 2 * page_bytes);
}

}  // namespace
