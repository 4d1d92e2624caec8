#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>

#include "common/base/backoff.h"
#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/base/worker_pool.h"

namespace lockstep {
namespace {

Result<int> Half(int x) {
  if (x % 2 != 0) return Status(ErrorCode::kBadData, "odd");
  return x / 2;
}
Result<int> Quarter(int x) {
  LS_ASSIGN_OR_RETURN(const int half, Half(x));
  LS_RETURN_IF_ERROR(Half(half));
  return half / 2;
}

TEST_CASE("A context is put before a message once") {
  const Status failed(ErrorCode::kIo, "rank 1 (process 7): gone");
  CHECK(failed.WithContext("engine a").WithContext("engine a").message() == "engine a: rank 1 (process 7): gone");
  const Status named(ErrorCode::kIo, "engine a, rank 1: gone");
  CHECK(named.WithContext("engine a").message() == named.message());
  CHECK(named.WithContext("engine").message() == "engine: engine a, rank 1: gone");
}

TEST_CASE("An error passes up unchanged and a value passes through") {
  CHECK(*Quarter(8) == 2);
  CHECK_THAT(Quarter(6), FailsWith(ErrorCode::kBadData, "odd"));
  CHECK(Quarter(6).status().WithContext("six").ToString() == "bad_data: six: odd");
}

TEST_CASE("Every error code has a label and a sysexits status of its own kind") {
  std::set<std::string_view> labels;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code) {
    labels.insert(Label(static_cast<ErrorCode>(code)));
    const int exit_code = ExitCode(static_cast<ErrorCode>(code));
    CHECK((exit_code == 0 || (exit_code >= 64 && exit_code <= 78)));
  }
  CHECK(labels.size() == static_cast<size_t>(ErrorCode::kInternal) + 1);
  CHECK_THAT(ErrnoStatus(ENOSPC, "write x"), FailsWith(ErrorCode::kResourceExhausted, "write x: "));
  CHECK_THAT(ErrnoStatus(EADDRINUSE, "bind"), FailsWith(ErrorCode::kUnavailable, "bind: "));
}

TEST_CASE("Ids round-trip through hex and refuse anything else") {
  const auto run = RandomId<RunId>();
  CHECK(RunId{*HexDecode16(ToHex(run))} == run);
  CHECK(RunId{*Bytes16(ToBytes(run))} == run);
  CHECK_THAT(HexDecode16("12"), FailsWith(ErrorCode::kBadData, "expected 32 hex digits, got \"12\""));
  CHECK_THAT(HexDecode16(std::string(31, 'a') + "g"), FailsWith(ErrorCode::kBadData, "expected 32 hex digits"));
  CHECK_THAT(Bytes16("short"), FailsWith(ErrorCode::kProtocol, "expected a 16-byte id, got 5 bytes"));
  CHECK(RandomId<RunId>() != run);
}

TEST_CASE("Varints round-trip and a truncated or oversized one is refused") {
  for (const uint64_t value : {uint64_t{0}, uint64_t{127}, uint64_t{128}, uint64_t{1} << 35, ~uint64_t{0}}) {
    Bytes out;
    AppendVarint(out, value);
    uint64_t read = 1;
    ByteReader reader(out);
    REQUIRE(reader.TakeVarint(read));
    CHECK(read == value);
    CHECK(reader.empty());
    for (size_t cut = 0; cut < out.size(); ++cut) {
      ByteReader truncated(ByteView(out).first(cut));
      CHECK_FALSE(truncated.TakeVarint(read));
    }
  }
  const Bytes too_long(11, std::byte{0xff});
  uint64_t ignored = 0;
  CHECK_FALSE(ByteReader(too_long).TakeVarint(ignored));
}

TEST_CASE("ParallelFor runs every item exactly once, from several callers at a time") {
  WorkerPool pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&pool] {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{1000}}) {
        std::vector<std::atomic<int>> hits(count);
        pool.ParallelFor(count, [&](size_t i) { hits[i]++; });
        for (auto& hit : hits) {
          if (hit != 1) std::abort();
        }
      }
    });
  }
  for (auto& caller : callers) caller.join();
}

TEST_CASE("ParallelTry answers the first item's error, and begins no more items after one") {
  WorkerPool pool(3);
  std::atomic<int> runs = 0;
  const auto fail_at = [&](size_t i) {
    runs++;
    return i == 7 || i == 30 ? Status(ErrorCode::kBadData, std::to_string(i)) : OkStatus();
  };
  CHECK(pool.ParallelTry(7, fail_at).ok());
  CHECK(runs == 7);
  CHECK(pool.ParallelTry(100, fail_at).message() == "7");
  CHECK(runs < 107);
}

TEST_CASE("What an item throws reaches the caller after all threads have left the items, whichever thread ran it") {
  WorkerPool pool(3);
  const std::thread::id caller = std::this_thread::get_id();
  for (const bool caller_throws : {true, false}) {
    std::atomic<size_t> begun = 0, ended = 0;  // by threads that throw nothing
    const auto body = [&](size_t) {
      if ((std::this_thread::get_id() == caller) == caller_throws) {
        while (begun == 0) std::this_thread::yield();
        throw std::runtime_error("thrown");
      }
      begun++;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ended++;
    };
    CHECK_THROWS_WITH(pool.ParallelFor(100'000, body), "thrown");
    CHECK(begun > 0);
    CHECK(ended == begun);
  }
  std::atomic<int> hits = 0;
  pool.ParallelFor(100, [&](size_t) { hits++; });
  CHECK(hits == 100);
}

TEST_CASE("A pool that gets too few threads throws, and ends those that it has") {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const rlimit few{uint64_t{1} << 30, uint64_t{1} << 30};  // address space; a thread's stack takes 8 MiB
    if (::setrlimit(RLIMIT_AS, &few) != 0) ::_exit(2);
    try {
      const WorkerPool pool(10'000);
    } catch (const std::exception&) {
      ::_exit(0);
    }
    ::_exit(1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("In a forked process its parent's pool goes at once, and the parent's works on") {
  auto pool = std::make_unique<WorkerPool>(2);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    pool.reset();
    ::_exit(0);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  std::atomic<int> hits = 0;
  pool->ParallelFor(100, [&](size_t) { hits++; });
  CHECK(hits == 100);
}

TEST_CASE("A backoff doubles up to its longest wait, and gives at least half of it") {
  using std::chrono::milliseconds;
  Backoff backoff(milliseconds(1000), milliseconds(100));
  for (const milliseconds most : {milliseconds(100), milliseconds(200), milliseconds(400), milliseconds(800),
                                  milliseconds(1000), milliseconds(1000)}) {
    const milliseconds wait = backoff.Next();
    CHECK(wait >= most / 2);
    CHECK(wait <= most);
  }
  backoff.Reset();
  CHECK(backoff.Next() <= milliseconds(100));
}

TEST_CASE("What others say is made fit to be shown") {
  CHECK(CleanText("caf\xc3\xa9\n") == "caf\xc3\xa9\n");
  CHECK(CleanText("caf\xe9 \x1b[31m\x7f") == "caf? ?[31m?");
  CHECK(CleanText("\xed\xa0\x80\xc0\x80\xf4\x90\x80\x80") == "?????????");
  CHECK(CleanText("\xc3\xa9\xc3\xa9", 3) == "\xc3\xa9");
  CHECK(CleanText(std::string("a\0b", 3)) == "a?b");
}

TEST_CASE("A user and a password in a URL are not shown, and other uses of an '@' are") {
  CHECK(WithoutPasswords("http://admin:s3cr3t@host:1/path") == "http://***@host:1/path");
  CHECK(WithoutPasswords("a=vllm:https://token@host") == "a=vllm:https://***@host");
  CHECK(WithoutPasswords("http://admin:p@s/s://@host is no URL") == "http://***@host is no URL");
  CHECK(WithoutPasswords("hook:curl 'http://a:b@c'\thttp://d:e@f") == "hook:curl 'http://***@c'\thttp://***@f");
  CHECK(WithoutPasswords("vllm:admin:s3cr3t@host:1") == "***@host:1");
  CHECK(WithoutPasswords("http://***@host") == "http://***@host");
  for (const char* kept :
       {"", " ", "hook:ssh user@host:x", "unix:/run/receiver@actor/s", "file:///a@b", "http://host"}) {
    CHECK(WithoutPasswords(kept) == kept);
  }
}

TEST_CASE("Byte counts read well") {
  CHECK(HumanBytes(12) == "12 B");
  CHECK(HumanBytes(1536) == "1.5 KiB");
}

}  // namespace
}  // namespace lockstep
