// What every object store must do, over each of them.
#include "common/objects/object_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "common/base/ids.h"
#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/http/test_http_server.h"
#include "common/objects/sha256.h"
#include "common/objects/test_store.h"
#include "common/os/child.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "common/os/unique_fd.h"

namespace lockstep::objects {
namespace {

using namespace std::string_view_literals;

using std::chrono::milliseconds;

constexpr milliseconds kNow{0};

struct Host {
  TestStore store;
};

TEST_CASE("What is written under a name is read under it, whole, and listed; what is removed is gone") {
  Host host;
  Bytes big(3 << 20);
  for (size_t i = 0; i < big.size(); ++i) big[i] = static_cast<std::byte>(i * 7 % 251);
  REQUIRE(host.store->Write("m/chunk/a", big, {}).ok());
  REQUIRE(host.store->Write("m/chunk/b", AsBytes("b"sv), {}).ok());
  REQUIRE(host.store->Write("m/chunk/b", AsBytes("bb"sv), {}).ok());
  REQUIRE(host.store->Write("n/empty", {}, {}).ok());
  CHECK(*ReadWhole(*host.store.store(), "m/chunk/a", big.size(), {}) == big);
  CHECK(AsText(*ReadWhole(*host.store.store(), "m/chunk/b", 10, {})) == "bb");
  CHECK(ReadWhole(*host.store.store(), "n/empty", 10, {})->empty());
  CHECK_THAT(ReadWhole(*host.store.store(), "m/chunk/a", 10, {}), FailsWith(ErrorCode::kResourceExhausted, "10 bytes"));
  CHECK(ReadWhole(*host.store.store(), "m/chunk/c", 10, {}).status().code() == ErrorCode::kNotFound);
  auto listed = *host.store->List("m/", {});
  std::ranges::sort(listed, {}, &ListedObject::name);
  REQUIRE(listed.size() == 2);
  CHECK(listed[0].name == "m/chunk/a");
  CHECK(listed[0].bytes == big.size());
  CHECK(listed[1].bytes == 2);
  const int64_t now = std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  CHECK(std::abs(now - listed[1].written_unix_ns) < int64_t{60} * 1'000'000'000);
  CHECK(host.store->List("m/chunk/b", {})->size() == 1);
  CHECK(host.store->List("nothing/", {})->empty());
  REQUIRE(host.store->Remove("m/chunk/a", {}).ok());
  REQUIRE(host.store->Remove("m/chunk/a", {}).ok());
  CHECK(host.store->List("m/", {})->size() == 1);
}

TEST_CASE("An error of the bytes' taker ends the reading, and is its answer") {
  Host host;
  REQUIRE(host.store->Write("a", Bytes(5 << 20), {}).ok());
  size_t taken = 0;
  const auto take = [&](ByteView bytes) -> Status {
    taken += bytes.size();
    return {ErrorCode::kCorrupt, "not what it was"};
  };
  CHECK_THAT(host.store->Read("a", take, {}), FailsWith(ErrorCode::kCorrupt, "not what it was"));
  CHECK(taken < 5 << 20);
}

TEST_CASE("What changes is written only over what its writer has seen") {
  Host host;
  CHECK(host.store->ReadChanged("head", "", kNow, {}).status().code() == ErrorCode::kNotFound);
  const auto first = host.store->Replace("head", "", AsBytes("one"sv), {});
  REQUIRE(first.ok());
  CHECK_THAT(host.store->Replace("head", "", AsBytes("other"sv), {}),
             FailsWith(ErrorCode::kAborted, "written by another"));
  const auto read = *host.store->ReadChanged("head", "", kNow, {});
  REQUIRE(read.has_value());
  CHECK(AsText(read->bytes) == "one");
  CHECK(read->tag == *first);
  CHECK_FALSE(host.store->ReadChanged("head", *first, kNow, {})->has_value());
  const auto second = host.store->Replace("head", *first, AsBytes("two"sv), {});
  REQUIRE(second.ok());
  CHECK(*second != *first);
  CHECK(host.store->Replace("head", *first, AsBytes("late"sv), {}).status().code() == ErrorCode::kAborted);
  CHECK(AsText((*host.store->ReadChanged("head", *first, kNow, {}))->bytes) == "two");
  const Bytes long_one(kMaxTaggedBytes + 1);
  REQUIRE(host.store->Write("head", long_one, {}).ok());
  CHECK(host.store->ReadChanged("head", *first, kNow, {}).status().code() == ErrorCode::kResourceExhausted);
}

TEST_CASE("Of several that write at once over the same, one does") {
  Host host;
  const std::string seen = *host.store->Replace("head", "", AsBytes("seen"sv), {});
  std::atomic<int> written = 0;
  std::vector<std::jthread> writers;
  for (int i = 0; i < 8; ++i) {
    writers.emplace_back([&, text = Cat("writer ", i)] {
      written += host.store->Replace("head", seen, AsBytes(std::string_view(text)), {}).ok() ? 1 : 0;
    });
  }
  writers.clear();
  CHECK(written == 1);
}

TEST_CASE("A change that is waited for is seen soon; without one the wait ends") {
  Host host;
  for (const std::string before : {"", "one"}) {
    const std::string tag = before.empty() ? "" : (*host.store->ReadChanged("m/head", "", kNow, {}))->tag;
    Status written;
    std::jthread writer([&] {
      std::this_thread::sleep_for(milliseconds(50));
      written = host.store->Replace("m/head", tag, AsBytes(std::string_view(Cat(before, "one"))), {}).status();
    });
    const auto read = host.store->ReadChanged("m/head", tag, std::chrono::seconds(2), {});
    writer.join();
    REQUIRE(written.ok());
    INFO(read.status().ToString());
    REQUIRE((read.ok() && read->has_value()));
    CHECK(AsText((*read)->bytes) == before + "one");
  }
  const std::string tag = (*host.store->ReadChanged("m/head", "", kNow, {}))->tag;
  CHECK_FALSE(host.store->ReadChanged("m/head", tag, milliseconds(30), {})->has_value());
}

TEST_CASE("A stop ends every call, also one that waits") {
  Host host;
  REQUIRE(host.store->Replace("head", "", AsBytes("one"sv), {}).ok());
  const std::string tag = (*host.store->ReadChanged("head", "", kNow, {}))->tag;
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(milliseconds(50));
    stop.request_stop();
  });
  const auto begun = std::chrono::steady_clock::now();
  const auto read = host.store->ReadChanged("head", tag, std::chrono::minutes(5), stop.get_token());
  CHECK(read.status().code() == ErrorCode::kCancelled);
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::minutes(1));
  const std::stop_token stopped = stop.get_token();
  CHECK(host.store->Write("a", AsBytes("a"sv), stopped).code() == ErrorCode::kCancelled);
  CHECK(host.store->Replace("head", tag, AsBytes("a"sv), stopped).status().code() == ErrorCode::kCancelled);
  CHECK(host.store->List("", stopped).status().code() == ErrorCode::kCancelled);
  CHECK(host.store->Remove("head", stopped).code() == ErrorCode::kCancelled);
  CHECK(host.store
            ->Read(
                "head", [](ByteView) { return OkStatus(); }, stopped)
            .code() == ErrorCode::kCancelled);
}

TEST_CASE("What others put into a directory is not waited for") {
  const os::TempDir directory;
  const auto store = *OpenObjectStore("file://" + directory.path());
  REQUIRE(::mkfifo((directory.path() + "/head").c_str(), 0600) == 0);
  REQUIRE(::mkfifo((directory.path() + "/other.lock").c_str(), 0600) == 0);
  CHECK_THAT(store->ReadChanged("head", "", kNow, {}), FailsWith(ErrorCode::kBadData, "no file"));
  CHECK_THAT(store->Replace("head", "", AsBytes("one"sv), {}), FailsWith(ErrorCode::kBadData, "no file"));
  const os::UniqueFd lock(::open((directory.path() + "/m.lock").c_str(), O_RDWR | O_CREAT, 0600));
  REQUIRE(::flock(lock.get(), LOCK_EX) == 0);
  std::stop_source stop;
  std::jthread stopper([&] {
    std::this_thread::sleep_for(milliseconds(50));
    stop.request_stop();
  });
  const auto waited = store->Replace("m", "", AsBytes("one"sv), stop.get_token());
  CHECK(waited.status().code() == ErrorCode::kCancelled);
}

TEST_CASE("What is put into a directory is for its user and the directory's group, whatever the umask") {
  const os::TempDir directory;
  const auto store = *OpenObjectStore("file://" + directory.path());
  const bool root = ::geteuid() == 0;  // who may name a group that it is not in
  const gid_t readers = root ? 65534 : ::getegid();
  REQUIRE(::chown(directory.path().c_str(), ::geteuid(), readers) == 0);
  REQUIRE(::chmod(directory.path().c_str(), 02750) == 0);
  const mode_t before = ::umask(GENERATE(0, 077));
  const Status written = store->Write("m/chunk/a", AsBytes("a"sv), {});
  const Status headed = store->Replace("m/head", "", AsBytes("h"sv), {}).status();
  ::umask(before);
  REQUIRE((written.ok() && headed.ok()));
  const auto is = [&](const std::string& name, mode_t mode) {
    struct stat info {};
    REQUIRE(::stat((directory.path() + name).c_str(), &info) == 0);
    CHECK((info.st_mode & 07777) == mode);
    CHECK(info.st_gid == readers);
  };
  is("/m", 02750);
  is("/m/chunk", 02750);
  is("/m/chunk/a", 0640);
  is("/m/head", 0640);
}

TEST_CASE("A user who may only read a directory does not keep its writer from writing") {
  if (::geteuid() != 0) return;  // only root has other users at hand
  const os::TempDir directory;
  const auto store = *OpenObjectStore("file://" + directory.path());
  REQUIRE(::chmod(directory.path().c_str(), 0755) == 0);
  const std::string tag = *store->Replace("head", "", AsBytes("one"sv), {});
  std::array<int, 2> held;
  REQUIRE(::pipe(held.data()) == 0);
  const os::Child reader(::fork, [&] {  // it stays in the writer's group
    if (::setuid(65534) != 0) ::_exit(2);
    const int lock = ::open((directory.path() + "/head.lock").c_str(), O_RDONLY);
    (void)::flock(lock, LOCK_EX);
    struct flock reading {};
    reading.l_type = F_RDLCK;
    (void)::fcntl(lock, F_OFD_SETLK, &reading);
    (void)!::write(held[1], "h", 1);
  });
  char told = 0;
  REQUIRE(::read(held[0], &told, 1) == 1);
  const auto written = store->Replace("head", tag, AsBytes("two"sv), {});
  INFO(written.status().ToString());
  CHECK(written.ok());
}

TEST_CASE("A store is spoken to in plaintext only on this host and in networks that are named, whatever its name") {
  for (const std::string host : {"192.0.2.7", "192.0.2.7.nip.io"}) {
    const auto store = *OpenObjectStore(Cat("s3://weights/x?endpoint=http://", host, ":9000"));
    CHECK(store->plain_host() == host);
  }
  CHECK((*OpenObjectStore("s3://weights/x?endpoint=http://127.0.0.1:9000"))->plain_host() == "");
  CHECK((*OpenObjectStore("s3://weights/x?endpoint=https://192.0.2.7"))->plain_host() == "");
}

TEST_CASE("A store that says that nothing has changed, where it was not asked that, is refused") {
  http::TestHttpServer server([](int connection) { http::TestHttpServer::Reply(connection, "304 Not Modified", ""); });
  const os::TempDir keys;
  REQUIRE(os::WriteFileAtomic(keys.File("keys"), "[default]\naws_access_key_id = a\naws_secret_access_key = b\n", 0600)
              .ok());
  const auto store =
      *OpenObjectStore(Cat("s3://weights/x?endpoint=", server.url(), "&credentials=", keys.File("keys")));
  CHECK_THAT(store->ReadChanged("head", "", kNow, {}), FailsWith(ErrorCode::kProtocol, "304"));
  CHECK_FALSE(store->ReadChanged("head", "tag", kNow, {})->has_value());
}

TEST_CASE("A URL that names no store is refused with what is meant") {
  CHECK_THAT(OpenObjectStore("mnt/weights"), FailsWith(ErrorCode::kConfig, "file:///"));
  CHECK_THAT(OpenObjectStore("file://relative"), FailsWith(ErrorCode::kConfig, "file:///"));
  CHECK_THAT(OpenObjectStore("file:///no/such/directory"), FailsWith(ErrorCode::kNotFound, "make it"));
}

TEST_CASE("A SHA-256 is what the world takes it for, in one piece or several") {
  const std::string abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  CHECK(HexEncode(Sha256Of(AsBytes("abc"sv))) == abc);
  Sha256Stream stream;
  stream.Add(AsBytes("other"sv));
  (void)stream.Finish();
  stream.Add(AsBytes("a"sv));
  stream.Add(AsBytes("bc"sv));
  CHECK(HexEncode(stream.Finish()) == abc);
}

}  // namespace
}  // namespace lockstep::objects
