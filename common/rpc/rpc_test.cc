#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/temp_dir.h"
#include "common/os/unique_fd.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/status_mapping.h"
#include "proto/grpc/health/v1/health.grpc.pb.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"

namespace lockstep::rpc {
namespace {

constexpr std::chrono::milliseconds kSoon{30'000};

// A port that no other process gets while this exists: bound, and listened on only when asked to.
class ReservedPort {
 public:
  ReservedPort() {
    const int yes = 1;
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in own{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof own;
    REQUIRE(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&own), size) == 0);
    REQUIRE(::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0);
    address_ = Cat("127.0.0.1:", ntohs(own.sin_port));
  }

  const std::string& address() const { return address_; }

  // Connections come up from here on, and both ends stay silent on them.
  void ListenInSilence() { REQUIRE(::listen(socket_.get(), 16) == 0); }

 private:
  const os::UniqueFd socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::string address_;
};

// A server of a service that implements nothing, which is enough to be healthy or not.
class TestServer {
 public:
  explicit TestServer(const std::string& address = "127.0.0.1:0", const std::string& socket = "")
      : server(RpcServer::Create({.address = address,
                                  .control_socket = socket,
                                  .services = {&service_},
                                  .health_services = {"", "x-liveness", "x-readiness"},
                                  .health_address = "127.0.0.1:0"})) {}

  std::string address() const { return Cat("127.0.0.1:", (*server)->bound_port()); }
  RpcServer* operator->() { return server->get(); }

 private:
  v1::RaasReceiver::Service service_;

 public:
  Result<std::unique_ptr<RpcServer>> server;
};

// "SERVING", "NOT_SERVING", or the label of the error.
std::string Health(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                   std::chrono::milliseconds timeout = kSoon) {
  namespace health = grpc::health::v1;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  health::HealthCheckRequest request;
  request.set_service(service);
  health::HealthCheckResponse response;
  const Status status = FromGrpc(health::Health::NewStub(channel)->Check(&context, request, &response));
  if (!status.ok()) return std::string(Label(status.code()));
  return health::HealthCheckResponse::ServingStatus_Name(response.status());
}

TEST_CASE("Every error keeps its message over gRPC, and its code where gRPC has one for it") {
  for (int i = 0; i <= static_cast<int>(ErrorCode::kInternal); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    const Status back = FromGrpc(ToGrpc(Status(code, "block 7 of model actor")));
    const bool shared = code == ErrorCode::kUsage || code == ErrorCode::kConfig;
    CHECK(back.code() == (shared ? ErrorCode::kBadData : code));
    if (!back.ok()) CHECK(back.message() == "block 7 of model actor");
  }
}

TEST_CASE("Codes that only gRPC has are mapped to the nearest of ours") {
  CHECK(FromGrpc({grpc::StatusCode::UNAUTHENTICATED, ""}).code() == ErrorCode::kPermission);
  CHECK(FromGrpc({grpc::StatusCode::ALREADY_EXISTS, ""}).code() == ErrorCode::kState);
  CHECK(FromGrpc({grpc::StatusCode::OUT_OF_RANGE, ""}).code() == ErrorCode::kBadData);
}

TEST_CASE("Health is answered per service, and an unknown name is not found") {
  TestServer server;
  REQUIRE(server.server.ok());
  const auto channel = MakeChannel(server.address());
  server->SetServing("x-liveness", true);
  CHECK(Health(channel, "x-liveness") == "SERVING");
  CHECK(Health(channel, "x-readiness") == "NOT_SERVING");
  CHECK(Health(channel, "") == "NOT_SERVING");
  CHECK(Health(channel, "someone-else") == "not_found");
}

TEST_CASE("What a service does not implement is a protocol error") {
  TestServer server;
  REQUIRE(server.server.ok());
  grpc::ClientContext context;
  v1::ReceiverStatus response;
  const auto stub = v1::RaasReceiver::NewStub(MakeChannel(server.address()));
  CHECK(FromGrpc(stub->GetStatus(&context, {}, &response)).code() == ErrorCode::kProtocol);
}

TEST_CASE("A drained server is gone, and its channel finds the next one") {
  const ReservedPort port;
  TestServer server(port.address());
  REQUIRE(server.server.ok());
  const auto channel = MakeChannel(server.address());
  server->SetServing("", true);
  CHECK(Health(channel, "") == "SERVING");
  server->Drain(kSoon);
  server->Drain(kSoon);
  CHECK(Health(channel, "") == "unavailable");
  TestServer next(port.address());
  REQUIRE(next.server.ok());
  REQUIRE(channel->WaitForConnected(std::chrono::system_clock::now() + kSoon));
  CHECK(Health(channel, "") == "NOT_SERVING");
}

TEST_CASE("A client of a socket finds the server that listens there now, without a call that fails in between") {
  const os::TempDir directory;
  const std::string path = directory.File("control.sock");
  LastingChannel client("unix:" + path);
  CHECK_THAT(client.Get().status(), FailsWith(ErrorCode::kUnavailable, "nothing listens at " + path));
  std::shared_ptr<grpc::Channel> before;
  for (int i = 0; i < 3; ++i) {
    TestServer server("", path);
    REQUIRE(server.server.ok());
    const auto channel = *client.Get();
    CHECK(channel != before);
    CHECK(Health(channel, "") == "NOT_SERVING");
    CHECK(*client.Get() == channel);
    before = channel;
  }
  CHECK(Health(before, "") == "unavailable");
  CHECK_THAT(client.Get().status(), FailsWith(ErrorCode::kUnavailable, "is its daemon running?"));
}

TEST_CASE("A call where no daemon listens fails long before its deadline") {
  const ReservedPort nobody;
  CHECK(Health(MakeChannel(nobody.address()), "", std::chrono::seconds(60)) == "unavailable");
}

TEST_CASE("A call to a silent peer waits until its own deadline") {
  ReservedPort silent;
  silent.ListenInSilence();
  const auto began = std::chrono::steady_clock::now();
  CHECK(Health(MakeChannel(silent.address()), "", std::chrono::milliseconds(1500)) == "deadline");
  CHECK(std::chrono::steady_clock::now() - began >= std::chrono::milliseconds(1500));
}

TEST_CASE("A server listens on all addresses of its name, and on the one for all") {
  for (const char* name : {"localhost:0", "0.0.0.0:0"}) {
    TestServer server(name);
    REQUIRE(server.server.ok());
    CHECK(Health(MakeChannel(server.address()), "") == "NOT_SERVING");
  }
  if (!std::filesystem::exists("/proc/net/if_inet6")) {
    WARN("skipped: no IPv6 here");
    return;
  }
  TestServer server("[::]:0");
  REQUIRE(server.server.ok());
  CHECK(Health(MakeChannel(server.address()), "") == "NOT_SERVING");
  CHECK(Health(MakeChannel(Cat("[::1]:", server->bound_port())), "") == "NOT_SERVING");
}

TEST_CASE("A port in use is unavailable and named") {
  TestServer server;
  REQUIRE(server.server.ok());
  const TestServer second(server.address());
  CHECK_THAT(second.server, FailsWith(ErrorCode::kUnavailable, server.address()));
}

}  // namespace
}  // namespace lockstep::rpc
