#include "trainer_agent/serve/version_stream.h"

#include <catch2/catch.hpp>
#include <condition_variable>
#include <filesystem>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/peer/peer.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/status_mapping.h"
#include "trainer_agent/serve/serve_fixture.h"

namespace lockstep::serve {
namespace {

constexpr std::chrono::seconds kSoon{60};

// The catalog of a Served over gRPC, and nothing else of an agent.
class StreamServer : public v1::TrainerAgent::WithCallbackMethod_WatchVersions<v1::TrainerAgent::Service> {
 public:
  explicit StreamServer(const run::VersionCatalog* catalog)
      : catalog_(catalog),
        server_(*rpc::RpcServer::Create({.address = "127.0.0.1:0", .services = {this}, .health_services = {}})),
        stub_(v1::TrainerAgent::NewStub(rpc::MakeChannel(Cat("127.0.0.1:", server_->bound_port())))) {}

  v1::TrainerAgent::Stub& stub() { return *stub_; }
  ReceiverReports reports;

  grpc::ServerWriteReactor<v1::VersionEvent>* WatchVersions(grpc::CallbackServerContext*,
                                                            const v1::WatchVersionsRequest* request) override {
    return VersionStream::Start(catalog_, &reports, *request, "", streams_.Take(""));
  }

 private:
  const run::VersionCatalog* const catalog_;
  access::Quota streams_{"version streams", {.all = 1000, .each = 1}};
  std::unique_ptr<rpc::RpcServer> server_;
  std::unique_ptr<v1::TrainerAgent::Stub> stub_;
};

// A receiver's end; no thread of its own either.
class Watcher : public grpc::ClientReadReactor<v1::VersionEvent> {
 public:
  Watcher(StreamServer& server, const std::string& model, const std::string& receiver = "",
          const std::string& peer = peer::SelfLine("raas_receiver")) {
    request_.set_model(model);
    request_.set_peer(peer);
    request_.set_receiver(receiver);
    request_.set_instance(std::string(16, 'i'));
    server.stub().async()->WatchVersions(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }
  ~Watcher() override {
    context_.TryCancel();
    (void)Ended();  // gRPC calls this object until then
  }

  // The next versions reported, up to `last`.
  std::vector<Version> Until(Version last) {
    std::unique_lock lock(mutex_);
    REQUIRE(changed_.wait_for(lock, kSoon, [&] { return !seen_.empty() && seen_.back() == last; }));
    return std::exchange(seen_, {});
  }
  Status Ended() {
    std::unique_lock lock(mutex_);
    const bool ended = changed_.wait_for(lock, kSoon, [&] { return ended_.has_value(); });
    return ended ? *ended_ : Status(ErrorCode::kDeadline, "the stream did not end");
  }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      std::lock_guard lock(mutex_);
      seen_.push_back(event_.newest().version());
      digest_ = event_.manifest_digest();
      changed_.notify_all();
    }
    StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mutex_);
    ended_ = rpc::FromGrpc(status);
    changed_.notify_all();
  }
  std::string digest() {
    std::lock_guard lock(mutex_);
    return digest_;
  }

 private:
  grpc::ClientContext context_;
  v1::WatchVersionsRequest request_;
  v1::VersionEvent event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Version> seen_;
  std::string digest_;
  std::optional<Status> ended_;
};

size_t ThreadsOfThisProcess() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

TEST_CASE("A receiver that gives its name is connected while its stream lasts, whether the model is open or not") {
  Served served;
  StreamServer server(&served.catalog);
  const auto presence = [&](const std::string& model) {
    const auto all = server.reports.Of(model);
    return all.empty() ? Presence::kUnknown : all[0].presence;
  };
  {
    const Watcher watcher(server, "critic", "host-3");
    const Watcher anonymous(server, "actor");
    REQUIRE(Eventually([&] { return presence("critic") == Presence::kConnected; }));
    CHECK(server.reports.Of("actor").empty());
  }
  CHECK(Eventually([&] { return presence("critic") == Presence::kGone; }));
  Watcher wrong(server, "actor", "ho\tst");
  CHECK_THAT(wrong.Ended(), FailsWith(ErrorCode::kBadData, "no control characters"));
}

TEST_CASE("A stream reports the newest version at once, and each that follows") {
  Served served;
  served.Publish(2);
  StreamServer server(&served.catalog);
  Watcher watcher(server, "actor");
  CHECK(watcher.Until(2) == std::vector<Version>{2});
  CHECK(watcher.digest() == ToBytes(served.Digest(2)));
  served.Publish(3);
  CHECK(watcher.Until(3) == std::vector<Version>{3});
  served.Publish(4);
  served.Publish(5);
  const std::vector<Version> rest = watcher.Until(5);  // 4 may be passed over: it is not needed any more
  CHECK((rest == std::vector<Version>{5} || rest == std::vector<Version>{4, 5}));
}

TEST_CASE("A stream of a model that is not open begins when a trainer opens it, before its first version") {
  run::VersionCatalog catalog;
  StreamServer server(&catalog);
  Watcher watcher(server, "actor");
  const auto run = std::make_shared<run::ServedRun>(run::BufferOf(*Layout()), run::StoreOptions{});
  catalog.Open(run);
  CHECK(watcher.Until(0) == std::vector<Version>{0});
  CHECK(watcher.digest().empty());
}

TEST_CASE("A receiver without a common protocol gets no version; the end names both, and which to upgrade") {
  Served served;
  StreamServer server(&served.catalog);
  Watcher watcher(server, "actor", "host-3", "raas_receiver/9.0.0 protocol=7");
  const Status ended = watcher.Ended();
  CHECK_THAT(ended,
             FailsWith(ErrorCode::kProtocol, "raas_receiver 9.0.0 speaks protocol 7; upgrade the trainer_agent"));
}

TEST_CASE("Streams end when the catalog closes, those that begin later at once") {
  Served served;
  StreamServer server(&served.catalog);
  Watcher before(server, "actor");
  CHECK(before.Until(1) == std::vector<Version>{1});
  served.catalog.Close();
  CHECK_THAT(before.Ended(), FailsWith(ErrorCode::kUnavailable, "the agent is draining"));
  Watcher after(server, "actor");
  CHECK_THAT(after.Ended(), FailsWith(ErrorCode::kUnavailable, "the agent is draining"));
}

TEST_CASE("64 streams cost no threads, and one that is cancelled does not hold up the others") {
  Served served;
  StreamServer server(&served.catalog);
  Watcher first(server, "actor");
  CHECK(first.Until(1) == std::vector<Version>{1});
  const size_t threads = ThreadsOfThisProcess();
  std::vector<std::unique_ptr<Watcher>> watchers;
  for (int i = 0; i < 64; ++i) watchers.push_back(std::make_unique<Watcher>(server, "actor"));
  for (const auto& watcher : watchers) CHECK(watcher->Until(1) == std::vector<Version>{1});
  CHECK(ThreadsOfThisProcess() <= threads + 4);
  for (size_t i = 0; i < watchers.size(); i += 2) watchers[i]->Cancel();
  served.Publish(2);
  for (size_t i = 1; i < watchers.size(); i += 2) CHECK(watchers[i]->Until(2) == std::vector<Version>{2});
  CHECK(watchers[0]->Ended().code() == ErrorCode::kCancelled);
}

}  // namespace
}  // namespace lockstep::serve
