// What one peer may take, and that others do not notice.
#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <future>
#include <list>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/eventually.h"
#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/descriptor_limit.h"
#include "common/os/unique_fd.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/status_mapping.h"
#include "common/rpc/tcp_port.h"
#include "common/rpc/test_ca.h"
#include "common/telemetry/log.h"
#include "proto/grpc/health/v1/health.grpc.pb.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"

namespace lockstep::rpc {
namespace {

namespace health = grpc::health::v1;

constexpr std::chrono::seconds kSoon{60};

std::string At(int port) {
  return Cat("127.0.0.1:", port);
}

// Answers status at once; its streams last until they are cancelled, and are counted.
class TestServer final : public v1::RaasReceiver::Service {
 public:
  explicit TestServer(const TlsOptions& tls = {})
      : server(*RpcServer::Create({.address = "127.0.0.1:0",
                                   .services = {this},
                                   .tls = tls,
                                   .health_services = {"x-liveness"},
                                   .health_address = "127.0.0.1:0"})) {}

  grpc::Status GetStatus(grpc::ServerContext*, const v1::ReceiverStatusRequest*, v1::ReceiverStatus*) override {
    return grpc::Status::OK;
  }
  grpc::Status WatchSyncs(grpc::ServerContext* context, const v1::WatchSyncsRequest*,
                          grpc::ServerWriter<v1::SyncRecord>* writer) override {
    ++streams;
    writer->Write({});
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    --streams;
    return grpc::Status::OK;
  }

  std::atomic<int> streams = 0;
  std::unique_ptr<RpcServer> server;
};

Status Ask(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kSoon);
  v1::ReceiverStatus response;
  return FromGrpc(v1::RaasReceiver::NewStub(channel)->GetStatus(&context, {}, &response));
}

TEST_CASE("A request that is larger than any of ours is refused, and others are served") {
  TestServer server;
  const auto channel = MakeChannel(At(server.server->bound_port()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kSoon);
  v1::PullRequest request;
  request.set_model(std::string(kMaxRequestBytes, 'x'));
  v1::SyncRecord response;
  CHECK_THAT(FromGrpc(v1::RaasReceiver::NewStub(channel)->Pull(&context, request, &response)),
             FailsWith(ErrorCode::kResourceExhausted, "larger than max"));
  CHECK(Ask(channel).ok());
}

TEST_CASE("A compressed request is refused by every service, and never unpacked") {
  TestServer server;
  const auto compressed = [](grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + kSoon);
    context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  };
  const size_t size = GENERATE(size_t{1000}, size_t{12} << 20);  // 12 KiB of gzip
  const auto channel = grpc::CreateChannel(At(server.server->bound_port()), grpc::InsecureChannelCredentials());
  v1::PullRequest pull;
  pull.set_model(std::string(size, 'x'));
  v1::SyncRecord record;
  grpc::ClientContext first;
  compressed(first);
  CHECK_THAT(FromGrpc(v1::RaasReceiver::NewStub(channel)->Pull(&first, pull, &record)),
             FailsWith(ErrorCode::kProtocol, "gzip"));
  for (const int port : {server.server->bound_port(), server.server->health_port()}) {
    health::HealthCheckRequest check;
    check.set_service(std::string(size, 'x'));
    health::HealthCheckResponse response;
    grpc::ClientContext second;
    compressed(second);
    const auto other = grpc::CreateChannel(At(port), grpc::InsecureChannelCredentials());
    CHECK_THAT(FromGrpc(health::Health::NewStub(other)->Check(&second, check, &response)),
               FailsWith(ErrorCode::kProtocol, "gzip"));
  }
  CHECK(Ask(channel).ok());
}

// A connection of so many calls that last as long as this.
class Greedy {
 public:
  Greedy(const std::string& address, int calls) : stub_(v1::RaasReceiver::NewStub(MakeChannel(address))) {
    for (int i = 0; i < calls; ++i) {
      grpc::ClientContext& context = contexts_.emplace_back();
      context.set_deadline(std::chrono::system_clock::now() + 2 * kSoon);
      readers_.emplace_back([this, &context] {
        const auto reader = stub_->WatchSyncs(&context, {});
        v1::SyncRecord record;
        while (reader->Read(&record)) {
        }
        (void)reader->Finish();
      });
    }
  }
  ~Greedy() {
    for (grpc::ClientContext& context : contexts_) context.TryCancel();
  }

 private:
  const std::unique_ptr<v1::RaasReceiver::Stub> stub_;
  std::list<grpc::ClientContext> contexts_;
  std::list<std::jthread> readers_;  // to begin a call waits, where there are too many
};

TEST_CASE("The calls of one connection are limited, and those of another are served") {
  TestServer server;
  const Greedy greedy(At(server.server->bound_port()), 200);
  const auto deadline = std::chrono::steady_clock::now() + kSoon;
  while (server.streams < 128 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(Ask(MakeChannel(At(server.server->bound_port()))).ok());
  CHECK(server.streams == 128);
}

// SERVING, NOT_SERVING, or why there is no answer.
std::string Health(const std::shared_ptr<grpc::Channel>& channel, const std::string& service = "x-liveness") {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kSoon);
  health::HealthCheckRequest request;
  request.set_service(service);
  health::HealthCheckResponse response;
  const grpc::Status status = health::Health::NewStub(channel)->Check(&context, request, &response);
  return status.ok() ? health::HealthCheckResponse::ServingStatus_Name(response.status()) : status.error_message();
}

// A connection that says nothing, or what it is told to.
class Silent {
 public:
  // Takes its descriptor at once.
  Silent() = default;
  explicit Silent(int port) { Connect(port); }

  void Connect(int port) {
    const sockaddr_in address{
        .sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    connected_ = ::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  bool connected() const { return connected_; }

  // How many of so many bytes it can say, `piece` after `piece`, before the server has closed.
  size_t Say(const std::string& piece, size_t most) {
    size_t said = 0;
    while (said<most&& ::send(fd_.get(), piece.data(), piece.size(), MSG_NOSIGNAL)> 0) said += piece.size();
    return said;
  }

  // How many bytes the server sends until it closes; none of a value when it has not closed by `deadline`.
  std::optional<size_t> BytesUntilClosed(std::chrono::steady_clock::time_point deadline) {
    size_t bytes = 0;
    while (true) {
      pollfd readable{fd_.get(), POLLIN, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      if (::poll(&readable, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) != 1) return std::nullopt;
      std::array<char, 512> buffer;
      const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
      if (got <= 0) return bytes;
      bytes += static_cast<size_t>(got);
    }
  }

 private:
  os::UniqueFd fd_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  bool connected_ = false;
};

TEST_CASE("Connections that never say a word are closed after ten seconds on every port, and others served meanwhile") {
  const TestCa ca;
  const TlsOptions client = ca.Client();
  const TlsOptions own = ca.Server();
  REQUIRE(PrepareTls(own).ok());
  TestServer plain;
  TestServer encrypted(own);
  const auto began = std::chrono::steady_clock::now();
  std::list<Silent> silent;
  for (int i = 0; i < 70; ++i) {
    for (const int port : {plain.server->bound_port(), encrypted.server->bound_port(), plain.server->health_port()}) {
      REQUIRE(silent.emplace_back(port).connected());
    }
  }
  const auto served = [&] {
    CHECK(Ask(MakeChannel(At(plain.server->bound_port()))).ok());
    CHECK(Ask(MakeChannel(At(encrypted.server->bound_port()), client)).ok());
    CHECK(Health(MakeChannel(At(plain.server->health_port()))) == "NOT_SERVING");
  };
  served();
  for (Silent& one : silent) {
    // gRPC would wait for two minutes: half of that is neither its doing, nor too short for a busy machine.
    REQUIRE(one.BytesUntilClosed(began + kSoon));
    REQUIRE(std::chrono::steady_clock::now() - began >= std::chrono::milliseconds(kHandshakeTimeoutMs - 1'000));
  }
  served();
}

// Takes descriptors until none below `end` is free.
std::vector<os::UniqueFd> TakeDescriptors(rlim_t end) {
  std::vector<os::UniqueFd> taken;
  for (os::UniqueFd one(::dup(0)); one.valid() && static_cast<rlim_t>(one.get()) < end; one = os::UniqueFd(::dup(0))) {
    taken.push_back(std::move(one));
  }
  return taken;
}

TEST_CASE("A process without descriptors lets no peer in, and all of its ports go on once it has some") {
  TestServer server;
  // What a line makes when it is logged a sanitizer looks at the first time, and needs a descriptor for.
  telemetry::LogWarn("test_begins", {ErrorCode::kUnavailable, "none to be had"}, {{"address", ""}, {"times", 1}});
  std::array<Silent, 2> waiting;
  const os::DescriptorLimit limit(300);
  auto all = TakeDescriptors(limit.get());
  waiting[0].Connect(server.server->bound_port());
  waiting[1].Connect(server.server->health_port());
  // The server finds none, once or twice. Nothing is checked before there are some again: a sanitizer needs one for
  // that.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const bool enough = !all.empty();
  all.clear();
  REQUIRE(enough);
  for (const Silent& one : waiting) REQUIRE(one.connected());
  CHECK(Ask(MakeChannel(At(server.server->bound_port()))).ok());
  CHECK(Health(MakeChannel(At(server.server->health_port()))) == "NOT_SERVING");
}

TEST_CASE(
    "The last descriptors of a process are not for new connections, which are closed, and those there are served") {
  TestServer server;
  const auto there = MakeChannel(At(server.server->bound_port()));
  REQUIRE(Ask(there).ok());
  const os::DescriptorLimit limit(300);
  auto taken = TakeDescriptors(limit.get() - kReservedDescriptors);
  REQUIRE(!taken.empty());
  for (const int port : {server.server->bound_port(), server.server->health_port()}) {
    for (int i = 0; i < 2 * kReservedDescriptors; ++i) {
      Silent one(port);
      REQUIRE(one.connected());
      // A peer that is let in gets gRPC's first words at once.
      REQUIRE(one.BytesUntilClosed(std::chrono::steady_clock::now() + kSoon) == 0);
    }
  }
  CHECK(Ask(there).ok());
  taken.clear();
  CHECK(Ask(MakeChannel(At(server.server->bound_port()))).ok());
  CHECK(Health(MakeChannel(At(server.server->health_port()))) == "NOT_SERVING");
}

// A frame of HTTP/2: CONTINUATION is 9, HEADERS 1, SETTINGS 4.
std::string Frame(char type, char stream, const std::string& payload) {
  const auto size = static_cast<uint16_t>(payload.size());
  return std::string{'\0',  static_cast<char>(size >> 8), static_cast<char>(size), type, '\0', '\0', '\0', '\0',
                     stream} +
         payload;
}

TEST_CASE("Headers without an end are cut off soon on every port, and others served meanwhile") {
  TestServer server;
  // A new name and 120 bytes: gRPC keeps every one.
  const std::string header = std::string("\0\1a\x78", 4) + std::string(120, 'x');
  std::string headers;
  while (headers.size() < 15'000) headers += header;
  for (const int port : {server.server->bound_port(), server.server->health_port()}) {
    Silent endless(port);
    REQUIRE(endless.connected());
    endless.Say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(4, 0, "") + Frame(1, 1, header), 1);
    // What buffers of sockets take is said, too.
    constexpr size_t kNever = 256 << 20;
    CHECK(endless.Say(Frame(9, 1, headers), kNever) < (24 << 20));
    CHECK(endless.BytesUntilClosed(std::chrono::steady_clock::now() + kSoon));
    CHECK(Ask(MakeChannel(At(server.server->bound_port()))).ok());
    CHECK(Health(MakeChannel(At(server.server->health_port()))) == "NOT_SERVING");
  }
}

TEST_CASE("Watchers of health in numbers displace their own, and leave the control plane its descriptors") {
  TestServer server;
  const auto there = MakeChannel(At(server.server->bound_port()));
  REQUIRE(Ask(there).ok());
  constexpr size_t kWatchers = 200;
  std::atomic<size_t> ended = 0;
  std::list<grpc::ClientContext> contexts;
  std::list<std::jthread> watchers;
  for (size_t i = 0; i < kWatchers; ++i) {
    watchers.emplace_back([&, &context = contexts.emplace_back()] {
      context.set_deadline(std::chrono::system_clock::now() + 2 * kSoon);
      const auto stub = health::Health::NewStub(MakeChannel(At(server.server->health_port())));
      health::HealthCheckRequest request;
      request.set_service("x-liveness");
      const auto reader = stub->Watch(&context, request);
      health::HealthCheckResponse response;
      while (reader->Read(&response)) {
      }
      ++ended;
    });
  }
  CHECK(Eventually([&] { return ended >= kWatchers - 32; }));
  CHECK(Ask(there).ok());
  CHECK(Ask(MakeChannel(At(server.server->bound_port()))).ok());
  CHECK(Health(MakeChannel(At(server.server->health_port()))) == "NOT_SERVING");
  for (grpc::ClientContext& context : contexts) context.TryCancel();
}

TEST_CASE("The health port tells health, and nothing else") {
  TestServer server;
  const auto channel = MakeChannel(At(server.server->health_port()));
  CHECK(Health(channel) == "NOT_SERVING");
  server.server->SetServing("x-liveness", true);
  CHECK(Health(channel) == "SERVING");
  CHECK(Ask(channel).code() == ErrorCode::kProtocol);
  server.server->StopServing();
  CHECK(Health(channel) == "NOT_SERVING");
}

}  // namespace
}  // namespace lockstep::rpc
