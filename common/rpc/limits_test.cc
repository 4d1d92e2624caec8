// What one peer may take, and that others do not notice.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <list>
#include <thread>
#include <vector>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/unique_fd.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/status_mapping.h"
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
  TestServer()
      : server(*RpcServer::Create({.address = "127.0.0.1:0",
                                   .services = {this},
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

TEST_CASE("The calls of one connection are limited, and those of another are served") {
  TestServer server;
  const auto greedy = MakeChannel(At(server.server->bound_port()));
  const auto stub = v1::RaasReceiver::NewStub(greedy);
  std::list<grpc::ClientContext> contexts;
  std::list<std::jthread> readers;  // to begin a call waits, where there are too many
  for (int i = 0; i < 200; ++i) {
    grpc::ClientContext& context = contexts.emplace_back();
    context.set_deadline(std::chrono::system_clock::now() + kSoon);
    readers.emplace_back([&stub, &context] {
      const auto reader = stub->WatchSyncs(&context, {});
      v1::SyncRecord record;
      while (reader->Read(&record)) {
      }
      (void)reader->Finish();
    });
  }
  const auto deadline = std::chrono::steady_clock::now() + kSoon;
  while (server.streams < 128 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  CHECK(Ask(MakeChannel(At(server.server->bound_port()))).ok());
  CHECK(server.streams == 128);
  for (grpc::ClientContext& context : contexts) context.TryCancel();
}

TEST_CASE("Connections that never say a word are closed within a minute, and others are served meanwhile") {
  TestServer server;
  const sockaddr_in address{.sin_family = AF_INET,
                            .sin_port = htons(static_cast<uint16_t>(server.server->bound_port())),
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
  std::vector<os::UniqueFd> silent;
  for (int i = 0; i < 200; ++i) {
    silent.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(silent.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  CHECK(Ask(MakeChannel(At(server.server->bound_port()))).ok());
  const auto deadline = std::chrono::steady_clock::now() + kSoon;
  for (const os::UniqueFd& fd : silent) {
    std::array<char, 512> bytes;
    ssize_t got = 1;
    while (got > 0) {  // the server's own first words come before its end
      pollfd closed{fd.get(), POLLIN, 0};
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      REQUIRE(::poll(&closed, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) == 1);
      got = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
    }
  }
  CHECK(Ask(MakeChannel(At(server.server->bound_port()))).ok());
}

TEST_CASE("The health port tells health, and nothing else") {
  TestServer server;
  const auto channel = MakeChannel(At(server.server->health_port()));
  const auto serving = [&](const std::string& service) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kSoon);
    health::HealthCheckRequest request;
    request.set_service(service);
    health::HealthCheckResponse response;
    const grpc::Status status = health::Health::NewStub(channel)->Check(&context, request, &response);
    return status.ok() ? health::HealthCheckResponse::ServingStatus_Name(response.status()) : status.error_message();
  };
  CHECK(serving("x-liveness") == "NOT_SERVING");
  server.server->SetServing("x-liveness", true);
  CHECK(serving("x-liveness") == "SERVING");
  CHECK(Ask(channel).code() == ErrorCode::kProtocol);
  server.server->StopServing();
  CHECK(serving("x-liveness") == "NOT_SERVING");
}

}  // namespace
}  // namespace lockstep::rpc
