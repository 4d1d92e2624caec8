#include "raas_receiver/archive/archiver.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "common/telemetry/timeline.h"
#include "common/versionlog/keys.h"
#include "raas_receiver/archive/log_fixture.h"

namespace lockstep::archive {
namespace {

using std::chrono::milliseconds;

versionlog::SigningKey TestKey(const os::TempDir& keys) {
  REQUIRE(std::system(Cat("umask 077; openssl genpkey -algorithm ed25519 -out ", keys.File("log.pem"), " 2>/dev/null")
                          .c_str()) == 0);
  auto key = versionlog::SigningKey::Read(keys.File("log.pem"));
  REQUIRE(key.ok());
  return *std::move(key);
}

struct Archived : LogFixture {
  Archived() {
    Open();
    StartArchiver();
  }
};

TEST_CASE("Nothing is written before what is held is in step with the origin") {
  Archived host;
  host.PullFull(host.model.Advance());
  std::this_thread::sleep_for(milliseconds(100));
  CHECK(host.Objects().empty());
  CHECK(host.archiver->Describe().state() == v1::ARCHIVE_STATE_WAITING);
  host.archiver->InStep();
  host.Await(1);
}

TEST_CASE("Every version goes to the log, and can be made from it, bit for bit") {
  Archived host;
  host.StopArchiver();
  host.archiving.keep_bytes = 1 << 30;
  host.StartArchiver();
  for (Version version = 1; version <= 12; ++version) host.Publish(version);
  const v1::LogHistory history = host.History();
  CHECK(history.newest().label() == "step 12");
  CHECK(history.steps().rbegin()->target().committed_unix_ns() == 12);
  CHECK(history.oldest() == 1);
  host.CheckLog();
  const v1::Archive shown = host.archiver->Describe();
  CHECK(shown.waiting_bytes() == 0);
  CHECK(shown.newest_committed_unix_ns() == 12);
  CHECK(shown.failures() == 0);
  CHECK(shown.written_bytes() > host.model.layout()->data_bytes());
}

TEST_CASE(
    "A writer that has nothing to write signs its head again, so that readers see that the log does not stand still") {
  Archived host;
  host.StopArchiver();
  host.archiving.sign_every = milliseconds(100);
  host.StartArchiver();
  host.Publish(1);
  if (GENERATE(false, true)) {
    host.Publish(2);
    REQUIRE(host.pair().RollBack({.version = {host.model.run(), 1}}).ok());
    host.archiver->InStep();
    REQUIRE(Eventually([&] { return (*host.Reader().ReadHead({}))->history().has_current(); }));
  }
  const v1::LogHead before = **host.Reader().ReadHead({});
  v1::LogHead after;
  REQUIRE(Eventually([&] {
    host.archiver->InStep();
    after = **host.Reader().ReadHead({});
    return after.written_unix_ns() > before.written_unix_ns();
  }));
  CHECK(after.serial() > before.serial());
  CHECK(after.epoch() == before.epoch());
  CHECK(after.history().SerializeAsString() == before.history().SerializeAsString());
}

TEST_CASE("Versions that come faster than they are written are all written") {
  Archived host;
  for (Version version = 1; version <= 10; ++version) host.Pull(version);
  host.Await(10);
  host.CheckLog();
}

TEST_CASE("Chunks are renewed one after another: a reader needs half a model of deltas at most, and old versions go") {
  Archived host;
  const uint64_t model_bytes = host.model.layout()->data_bytes();
  host.model.Advance();
  uint64_t most = 0;  // written for one version
  for (Version version = 1; version <= 60; ++version) {
    if (version > 1) host.model.Advance(300);
    const uint64_t before = host.archiver->Describe().written_bytes();
    host.Publish(version);
    if (version > 1) most = std::max(most, host.archiver->Describe().written_bytes() - before);
    const v1::LogHistory history = host.History();
    const uint32_t count = history.chunks().rbegin()->index() + 1;
    for (uint32_t index = 0; index < count; ++index) {
      const v1::LogChunk* chunk = versionlog::FindChunk(history, index, version);
      REQUIRE(chunk != nullptr);
      CHECK(versionlog::StepBytes(history, chunk->version()) <= model_bytes / 2);
    }
    CHECK(versionlog::StoredBytes(history, model_bytes) <= 2 * model_bytes);
  }
  CHECK(most < model_bytes / 2);
  CHECK(host.History().oldest() > 1);
  CHECK(host.Make(1).status().code() == ErrorCode::kNotFound);
  host.CheckLog();
}

TEST_CASE("What the head does not name any more is removed after the grace time, and nothing else") {
  Archived host;
  host.StopArchiver();
  host.archiving.grace = milliseconds(1);
  host.archiving.keep_bytes = 1;  // what the newest version needs
  host.StartArchiver();
  REQUIRE(host.store->Write("actor/chunk/" + std::string(64, '0'), {}, {}).ok());
  REQUIRE(host.store->Write("actor/notes.txt", {}, {}).ok());
  for (Version version = 1; version <= 30; ++version) host.Publish(version);
  CHECK(host.History().oldest() == 30);
  CHECK(Eventually([&] {
    host.archiver->InStep();
    std::set<std::string> there;
    for (const std::string& name : host.Objects()) there.insert(name);
    std::set<std::string> wanted = versionlog::ObjectNames(**host.Reader().ReadHead({}));
    wanted.insert({"actor/head", "actor/notes.txt"});
    return there == wanted;
  }));
  host.CheckLog();
}

TEST_CASE("What the head does not name any more stays for the grace time") {
  Archived host;
  host.StopArchiver();
  host.archiving.keep_bytes = 1;
  host.StartArchiver();
  host.Publish(1);
  const std::set<std::string> first = versionlog::ObjectNames(**host.Reader().ReadHead({}));
  for (Version version = 2; version <= 30; ++version) host.Publish(version);
  CHECK(host.History().oldest() == 30);
  const std::vector<std::string> listed = host.Objects();
  CHECK(std::ranges::includes(std::set(listed.begin(), listed.end()), first));
}

TEST_CASE("A receiver that is started again goes on with the log: no whole model is written once more") {
  Archived host;
  for (Version version = 1; version <= 3; ++version) host.Publish(version);
  SECTION("with all of it archived") {}
  SECTION("with deltas that wait") {
    host.StopArchiver();
    host.StartArchiver();  // not in step: it writes nothing
    for (Version version = 4; version <= 6; ++version) {
      host.model.Advance();
      host.archiver->Keep(host.model.Chain(version - 1, version), "");
      host.PullDelta(version);
    }
    CHECK(host.archiver->Describe().waiting_deltas() == 3);
  }
  SECTION("with a delta that was put aside and never committed") {
    host.model.Advance();
    host.archiver->Keep(host.model.Chain(3, 4), "");
  }
  SECTION("with one of the same base that was never committed, and one that was") {
    host.StopArchiver();
    host.StartArchiver();
    host.model.Advance();
    host.model.Advance();
    host.archiver->Keep(host.model.Chain(3, 4), "");
    const payload::DeltaChain merged{host.model.Delta(3, 5, 5)};
    host.archiver->Keep(merged, "");
    host.PullDelta(5);
  }
  const Version held = host.pair().current().held.version;
  host.RestartArchiver();
  host.Await(held);
  CHECK(host.archiver->Describe().written_bytes() < host.model.layout()->data_bytes() / 2);
  host.Publish(held + 1);
  CHECK(host.archiver->Describe().written_bytes() < host.model.layout()->data_bytes() / 2);
  host.CheckLog();
}

TEST_CASE("A beginning that was interrupted is gone on with, over the versions that came meanwhile") {
  Archived host;
  // So slow that the beginning takes longer than the first receiver lives.
  host.StopArchiver();
  host.archiving.bytes_per_s = host.model.layout()->data_bytes() / 2;
  host.StartArchiver();
  host.Pull(1);
  REQUIRE(Eventually([&] { return host.archiver->Describe().chunks() > 0; }));
  CHECK(host.Reader().ReadHead({}).ok());
  CHECK_FALSE((*host.Reader().ReadHead({}))->has_history());
  host.archiving.bytes_per_s = 0;
  host.RestartArchiver();
  host.Publish(2);
  CHECK(host.archiver->Describe().written_bytes() < host.model.layout()->data_bytes());
  CHECK(host.History().oldest() >= 1);
  host.CheckLog();
}

TEST_CASE("Another run, or a full pull, begins beside what readers read, and takes its place whole") {
  Archived host;
  for (Version version = 1; version <= 3; ++version) host.Publish(version);
  const uint64_t epoch = (*host.Reader().ReadHead({}))->epoch();
  SECTION("a full pull of a version that no delta leads to") {
    host.Pull(5, /*full=*/true);
    host.Await(5);
    CHECK((*host.Reader().ReadHead({}))->epoch() == epoch);
  }
  SECTION("another run, whose versions start at 1 again") {
    const replica::TestModel other(host.model.layout(), 7);
    host.model = other;
    host.Pull(1, /*full=*/true);
    host.Await(1);
    CHECK((*host.Reader().ReadHead({}))->epoch() > epoch);
  }
  host.CheckLog();
  CHECK_FALSE((*host.Reader().ReadHead({}))->has_next());
}

TEST_CASE("A reader that has seen a head takes none that goes back") {
  Archived host;
  for (Version version = 1; version <= 2; ++version) host.Publish(version);
  const Bytes old = *objects::ReadWhole(*host.store, "actor/head", 1 << 20, {});
  auto reader = host.Reader();
  host.Publish(3);
  REQUIRE(reader.ReadHead({}).ok());
  host.StopArchiver();
  REQUIRE(host.store->Write("actor/head", old, {}).ok());
  CHECK_THAT(reader.ReadHead({}), FailsWith(ErrorCode::kState, "goes back", "actor/head"));
}

TEST_CASE("A log that was taken over by another receiver is written no more by the first, which says so") {
  Archived host;
  host.Publish(1);
  LogFixture other;
  other.model = host.model;
  other.store = other.archiving.store = host.store;
  other.archiving.receiver = "other";
  other.Open();
  other.StartArchiver();
  other.Pull(1);
  other.Await(1);
  host.Pull(2);
  CHECK(Eventually([&] { return host.archiver->Describe().state() == v1::ARCHIVE_STATE_TAKEN_OVER; }));
  CHECK_THAT(host.archiver->Describe().last_error(), Catch::Contains("taken over by other"));
  other.model = host.model;
  other.Publish(2);
  CHECK((*other.Reader().ReadHead({}))->writer() == "other");
  other.CheckLog();
}

TEST_CASE("A head that is no writer's is written over, and the log goes on") {
  Archived host;
  host.Publish(1);
  REQUIRE(host.store->Write("actor/head", AsBytes(std::string_view("nonsense")), {}).ok());
  host.Pull(2);
  host.Await(2);
  CHECK(host.History().oldest() == 1);
  host.CheckLog();
}

TEST_CASE(
    "A writer with a key builds upon no head that the key has not signed, and takes no epoch from it that no clock has "
    "made") {
  LogFixture host;
  const os::TempDir keys;
  host.archiving.key = TestKey(keys);
  const int64_t now = telemetry::UnixNanos() / 1'000'000'000;
  SECTION("garbage") {
    REQUIRE(host.store->Write("actor/head", AsBytes(std::string_view("nonsense")), {}).ok());
  }
  SECTION("another's head") {
    v1::LogHead other;
    other.set_format(versionlog::kLogFormat);
    other.set_model("actor");
    other.set_id(std::string(16, 'o'));
    const uint64_t epoch =
        GENERATE_COPY(uint64_t{7}, static_cast<uint64_t>(now) + 3600, uint64_t{1} << 61, uint64_t{1} << 62);
    other.set_epoch(epoch);
    REQUIRE(host.store->Write("actor/head", versionlog::EncodeHead(other, nullptr), {}).ok());
  }
  host.Open();
  host.StartArchiver();
  host.Publish(1);
  const uint64_t epoch = (*host.Reader().ReadHead({}))->epoch();
  CHECK(epoch >= static_cast<uint64_t>(now));
  CHECK(epoch < static_cast<uint64_t>(now) + 7200);
  host.CheckLog();
}

TEST_CASE("A head in the place of the writer's that no reader takes after it is written over, and the log goes on") {
  const bool is_signed = GENERATE(true, false);
  LogFixture host;
  const os::TempDir keys;
  if (is_signed) host.archiving.key = TestKey(keys);
  host.Open();
  host.StartArchiver();
  host.Publish(1);
  const Bytes old = *objects::ReadWhole(*host.store, "actor/head", 1 << 20, {});
  host.Publish(2);
  const v1::LogHead before = **host.Reader().ReadHead({});
  SECTION("an old one of its own") {
    REQUIRE(host.store->Write("actor/head", old, {}).ok());
  }
  if (is_signed) {
    SECTION("one of a later epoch that another key has signed, or none has") {
      v1::LogHead other = before;
      other.set_epoch(other.epoch() + 1000);
      const os::TempDir elsewhere;
      const versionlog::SigningKey key = TestKey(elsewhere);
      REQUIRE(host.store->Write("actor/head", EncodeHead(other, GENERATE_REF(false, true) ? &key : nullptr), {}).ok());
    }
  }
  host.Publish(3);
  const v1::LogHead after = **host.Reader().ReadHead({});
  CHECK(after.id() == before.id());
  CHECK(after.epoch() >= before.epoch());
  CHECK(after.history().oldest() == 1);
  host.CheckLog();
}

TEST_CASE("A log that lost its manifest starts again at the current version, and drops the deltas that wait") {
  Archived host;
  for (Version version = 1; version <= 2; ++version) host.Publish(version);
  host.StopArchiver();
  host.StartArchiver();  // not in step: it writes nothing
  host.model.Advance();
  host.archiver->Keep(host.model.Chain(2, 3), "");
  host.PullDelta(3);
  for (const std::string& name : host.Objects()) {
    if (name.find("/manifest/") != std::string::npos) REQUIRE(host.store->Remove(name, {}).ok());
  }
  host.RestartArchiver();
  host.Await(3);
  CHECK(host.History().oldest() == 3);
  host.CheckLog();
}

TEST_CASE("A store that is away is tried again, and all that waits is written when it is back") {
  Archived host;
  host.Publish(1);
  if (host.log.path().empty()) return;  // tests/integration/test_s3.py has one that goes away
  const std::string path = host.log.path() + "/actor";
  const std::string away = host.log.path() + "/away";
  std::filesystem::rename(path, away);
  std::ofstream(path) << "no directory";
  host.Pull(2);
  REQUIRE(Eventually([&] { return host.archiver->Describe().state() == v1::ARCHIVE_STATE_FAILING; }));
  CHECK_FALSE(host.archiver->Describe().last_error().empty());
  host.Pull(3);
  std::filesystem::remove(path);
  std::filesystem::rename(away, path);
  host.Await(3);
  CHECK(host.archiver->Describe().last_error().empty());
  CHECK(host.archiver->Describe().failures() > 0);
  host.CheckLog();
}

TEST_CASE("One flipped bit in any object is found, and the object is named") {
  Archived host;
  for (Version version = 1; version <= 4; ++version) host.Publish(version);
  const v1::LogHistory history = host.History();
  const auto makes = [&](std::string name, std::string why) {
    for (Version version = history.oldest(); version <= 4; ++version) {
      const auto made = host.Make(version);
      if (made.ok()) continue;
      CHECK_THAT(made, FailsWith(ErrorCode::kCorrupt, name, why));
      return false;
    }
    return true;
  };
  for (const std::string& name : versionlog::ObjectNames(**host.Reader().ReadHead({}))) {
    if (name.find("/manifest/") != std::string::npos) continue;  // no reader of blocks needs it
    const Bytes whole = *objects::ReadWhole(*host.store, name, 1 << 20, {});
    Bytes flipped = whole;
    flipped[flipped.size() / 2] ^= std::byte{4};
    REQUIRE(host.store->Write(name, flipped, {}).ok());
    CHECK_FALSE(makes(name, "is damaged"));
    REQUIRE(host.store->Remove(name, {}).ok());
    CHECK_FALSE(makes(name, "is lost"));
    REQUIRE(host.store->Write(name, whole, {}).ok());
  }
  Bytes head = *objects::ReadWhole(*host.store, "actor/head", 1 << 20, {});
  head[head.size() / 2] ^= std::byte{4};
  REQUIRE(host.store->Write("actor/head", head, {}).ok());
  CHECK_THAT(host.Make(4), FailsWith(ErrorCode::kCorrupt, "actor/head"));
}

TEST_CASE("A delta that was torn while it waited is not written: the log starts again") {
  Archived host;
  host.Publish(1);
  host.StopArchiver();
  host.StartArchiver();
  host.model.Advance();
  host.archiver->Keep(host.model.Chain(1, 2), "");
  host.PullDelta(2);
  for (const auto& file : std::filesystem::directory_iterator(host.pair().directory().SpoolPath())) {
    std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) / 2);
  }
  host.RestartArchiver();
  host.Await(2);
  CHECK(host.History().oldest() == 2);
  host.CheckLog();
}

TEST_CASE("What the store has lost is written again") {
  const std::string kind = GENERATE("chunk", "delta", "layout", "manifest");
  Archived host;
  for (Version version = 1; version <= 3; ++version) host.Publish(version);
  for (const std::string& name : host.Objects()) {
    if (name.find("/" + kind + "/") == std::string::npos) continue;
    REQUIRE(host.store->Remove(name, {}).ok());
    break;
  }
  host.RestartArchiver();  // which looks at once, not within the hour
  const auto whole = [&] {
    const std::vector<std::string> there = host.Objects();
    return std::ranges::all_of(versionlog::ObjectNames(**host.Reader().ReadHead({})),
                               [&](const std::string& name) { return std::ranges::find(there, name) != there.end(); });
  };
  REQUIRE(Eventually(whole));
  host.Await(3);
  host.CheckLog();
  host.Publish(4);
  host.CheckLog();
}

// A store of a writer that is stopped, as by SIGSTOP, between its look at the head and the first chunk that it removes.
struct StoppedStore final : objects::ObjectStore {
  std::shared_ptr<objects::ObjectStore> store;
  std::atomic<bool> stopped = false;
  std::atomic<bool> goes_on = false;

  explicit StoppedStore(std::shared_ptr<objects::ObjectStore> real) : store(std::move(real)) {}
  const std::string& url() const override { return store->url(); }
  Status Read(const std::string& name, const Take& take, std::stop_token stop) override {
    return store->Read(name, take, stop);
  }
  Status Write(const std::string& name, ByteView bytes, std::stop_token stop) override {
    return store->Write(name, bytes, stop);
  }
  Result<std::optional<objects::TaggedObject>> ReadChanged(const std::string& name, const std::string& tag,
                                                           milliseconds wait, std::stop_token stop) override {
    return store->ReadChanged(name, tag, wait, stop);
  }
  Result<std::string> Replace(const std::string& name, const std::string& tag, ByteView bytes,
                              std::stop_token stop) override {
    return store->Replace(name, tag, bytes, stop);
  }
  Result<std::vector<objects::ListedObject>> List(const std::string& prefix, std::stop_token stop) override {
    return store->List(prefix, stop);
  }
  Status Remove(const std::string& name, std::stop_token stop) override {
    while (name.find("/chunk/") != std::string::npos && !goes_on) {
      stopped = true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return store->Remove(name, stop);
  }
};

TEST_CASE("What a writer that was stopped removes, though its successor has named it again, is written again") {
  LogFixture first;
  const auto stopping = std::make_shared<StoppedStore>(first.log.store());
  first.archiving.store = stopping;
  first.archiving.grace = milliseconds(1);
  first.archiving.keep_bytes = 1;  // what the newest version needs
  first.Open();
  first.StartArchiver();
  first.Publish(1);
  Version newest = 1;
  while (!stopping->stopped) {
    first.model.Advance(20);
    first.Pull(++newest);
    REQUIRE(Eventually([&] { return stopping->stopped || first.archiver->Describe().newest().version() == newest; }));
  }
  LogFixture successor;
  successor.model = first.model;
  successor.store = successor.archiving.store = first.store;
  const os::TempDir keys;
  successor.archiving.key = TestKey(keys);  // its log starts again
  successor.Open();
  successor.StartArchiver();
  successor.Pull(1);  // of which its predecessor removes a chunk
  successor.Await(1);
  successor.CheckLog();
  stopping->goes_on = true;
  first.Pull(++newest);
  CHECK(Eventually([&] { return first.archiver->Describe().state() == v1::ARCHIVE_STATE_TAKEN_OVER; }));
  CHECK_FALSE(successor.Make(1).ok());
  successor.RestartArchiver();  // which looks at once, not within the hour
  CHECK(Eventually([&] { return successor.Make(1).ok(); }));
  successor.CheckLog();
}

TEST_CASE("Without keys a log is neither read nor written where another user may write, or what leads there is") {
  const os::TempDir directory;
  const std::string path = directory.File("way/log");
  REQUIRE(os::MakeDirs(path).ok());
  LogFixture host;
  host.store = host.archiving.store = *objects::OpenObjectStore("file://" + path);
  host.Open();
  host.StartArchiver();
  host.Publish(1);
  const os::TempDir keys;
  const auto key = TestKey(keys);
  const auto refused = [&](const std::string& what) {
    CHECK_THAT(host.Reader().ReadHead({}), FailsWith(ErrorCode::kPermission, what, "without keys"));
    host.archiving.key.reset();
    host.RestartArchiver();
    CHECK(Eventually([&] { return host.archiver->Describe().state() == v1::ARCHIVE_STATE_FAILING; }));
    CHECK_THAT(host.archiver->Describe().last_error(), Catch::Contains(what) && Catch::Contains("without a key"));
    host.archiving.key = key;
    host.RestartArchiver();
    host.Await(1);
    CHECK(host.Reader(key.Verifier()).ReadHead({}).ok());
  };
  const std::string below = GENERATE("", "/actor");
  SECTION("others may write it") {
    const mode_t mode = GENERATE(0770, 0757, 01777);
    REQUIRE(::chmod((path + below).c_str(), mode) == 0);
    refused(path + below + " must belong to uid");
  }
  SECTION("another user owns it") {
    if (::geteuid() != 0) return;
    REQUIRE(::chown((path + below).c_str(), 65534, 65534) == 0);
    refused(path + below + " must belong to uid 0");
  }
  SECTION("others may replace it") {
    REQUIRE(::chmod(directory.File("way").c_str(), 0777) == 0);
    refused(directory.File("way") + " lets others");
  }
}

TEST_CASE("A replica that is damaged is not archived") {
  Archived host;
  host.Publish(1);
  host.StopArchiver();
  // In a log of its own, so that all is wanted.
  const objects::TestStore elsewhere;
  host.archiving.store = host.store = elsewhere.store();
  host.StartArchiver();
  auto current =
      std::fstream(host.ModelPath("current/model.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
  const std::streamoff at = static_cast<std::streamoff>(host.pair().current_data().size() / 2) + 8192;
  current.seekg(at);
  const char byte = static_cast<char>(current.get() ^ 1);
  current.seekp(at);
  current.put(byte);
  current.close();
  host.archiver->InStep();
  REQUIRE(Eventually([&] { return host.archiver->Describe().state() == v1::ARCHIVE_STATE_FAILING; }));
  CHECK_THAT(host.archiver->Describe().last_error(), Catch::Contains("is damaged"));
  CHECK_FALSE((*host.Reader().ReadHead({}))->has_history());
}

}  // namespace
}  // namespace lockstep::archive
