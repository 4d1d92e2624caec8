#include "common/rpc/tls.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/file.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/status_mapping.h"
#include "common/rpc/test_ca.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"

namespace lockstep::rpc {
namespace {

constexpr std::chrono::seconds kSoon{30};

int Shell(const std::string& command) {
  return std::system(command.c_str());
}

// Answers one call, by which others see whether they got in, and has a stream that does not end by itself.
class TestServer final : public v1::RaasReceiver::Service {
 public:
  explicit TestServer(const TlsOptions& tls, RpcServer::Options options = {}) {
    REQUIRE(PrepareTls(tls).ok());
    options.address = "127.0.0.1:0";
    options.services = {this};
    options.tls = tls;
    server_ = *RpcServer::Create(options);
  }

  std::string address() const { return Cat("127.0.0.1:", server_->bound_port()); }
  grpc::Status GetStatus(grpc::ServerContext*, const v1::ReceiverStatusRequest*, v1::ReceiverStatus*) override {
    return grpc::Status::OK;
  }
  grpc::Status WatchSyncs(grpc::ServerContext* context, const v1::WatchSyncsRequest*,
                          grpc::ServerWriter<v1::SyncRecord>*) override {
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return grpc::Status::CANCELLED;
  }

 private:
  std::unique_ptr<RpcServer> server_;
};

Status CallOn(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kSoon);
  v1::ReceiverStatus response;
  return FromGrpc(v1::RaasReceiver::NewStub(channel)->GetStatus(&context, {}, &response));
}

Status Call(const TestServer& server, const TlsOptions& client) {
  return CallOn(MakeChannel(server.address(), client));
}

TEST_CASE("Peers with certificates of one CA speak; no other peer gets in") {
  const TestCa ca;
  const TestCa other;
  const TestServer server(ca.Server());
  CHECK(Call(server, ca.Client()).ok());
  CHECK(Call(server, {}).code() == ErrorCode::kUnavailable);              // plaintext
  CHECK(Call(server, other.Client()).code() == ErrorCode::kUnavailable);  // knows not even the server
  TlsOptions foreign = other.Client();
  foreign.ca = ca.Client().ca;
  CHECK(Call(server, foreign).code() == ErrorCode::kUnavailable);
  CHECK(Call(server, ca.Issue("old", "URI:spiffe://test/receiver", -1)).code() == ErrorCode::kUnavailable);
}

TEST_CASE("A client with credentials does not speak to a server without") {
  const TestCa ca;
  const TestServer plaintext({});
  CHECK(Call(plaintext, ca.Client()).code() == ErrorCode::kUnavailable);
  CHECK(Call(plaintext, {}).ok());
}

TEST_CASE("A server must have the name that it was called by, or the one that was asked for") {
  const TestCa ca;
  TlsOptions client = ca.Client();
  const TestServer elsewhere(ca.Issue("elsewhere", "DNS:trainer-9"));
  CHECK_THAT(Call(elsewhere, client), FailsWith(ErrorCode::kUnavailable, "Hostname Verification Check failed"));
  client.server_name = "trainer-9";
  CHECK(Call(elsewhere, client).ok());
  const TestServer server(ca.Server());
  CHECK_THAT(Call(server, client), FailsWith(ErrorCode::kUnavailable, "certificate is not for trainer-9"));
  for (const char* name : {"spiffe://test/agent", "trainer-0", "127.0.0.1"}) {
    client.server_name = name;
    CHECK(Call(server, client).ok());
  }
}

TEST_CASE("TLS 1.2 is refused, and 1.3 is not") {
  const TestCa ca;
  const TlsOptions client = ca.Client();
  const TestServer server(ca.Server());
  const auto handshake = [&](const char* version) {
    return Shell(Cat("openssl s_client -brief -alpn h2 -connect ", server.address(), " -cert ", client.cert, " -key ",
                     client.key, " -CAfile ", client.ca, " ", version, " -verify_return_error </dev/null"));
  };
  CHECK(handshake("-tls1_2") != 0);
  CHECK(handshake("-tls1_3") == 0);
}

TEST_CASE("A peer whose CA is no longer trusted is refused within ten seconds, and calls on others go on") {
  const TestCa ca;
  const TestCa removed;
  const TlsOptions own = ca.Server();
  const std::string both = *os::ReadFile(own.ca) + *os::ReadFile(removed.Client().ca);
  const std::string alone = *os::ReadFile(own.ca);
  REQUIRE(os::WriteFileAtomic(own.ca, both).ok());
  const TestServer server(own);
  TlsOptions client = removed.Client();
  client.ca = own.ca;
  const auto kept = MakeChannel(server.address(), ca.Client());
  REQUIRE(CallOn(kept).ok());
  REQUIRE(Call(server, client).ok());

  REQUIRE(os::WriteFileAtomic(own.ca, alone).ok());
  const auto removed_at = std::chrono::steady_clock::now();
  while (Call(server, client).ok()) {
    REQUIRE(std::chrono::steady_clock::now() - removed_at < std::chrono::seconds(10));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  CHECK(CallOn(kept).ok());
}

TEST_CASE("A connection by TLS ends at its age, with the calls that are still on it, and a new one takes its place") {
  const TestCa ca;
  RpcServer::Options options;
  options.tls_age = std::chrono::milliseconds(500);
  options.tls_age_grace = std::chrono::milliseconds(500);
  const TestServer server(ca.Server(), options);
  LastingChannel client(server.address(), ca.Client());
  for (int i = 0; i < 2; ++i) {
    const auto channel = *client.Get();
    REQUIRE(CallOn(channel).ok());
    const auto begin = std::chrono::steady_clock::now();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kSoon);
    const auto stream = v1::RaasReceiver::NewStub(channel)->WatchSyncs(&context, {});
    v1::SyncRecord record;
    CHECK(!stream->Read(&record));
    CHECK(stream->Finish().error_code() == grpc::StatusCode::UNAVAILABLE);
    // gRPC varies the age by a tenth, and the handshake was before the stream.
    CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(600));
  }
}

// Shuts down the clients' connections to `port` of this process, and answers how many.
int CutConnections(int port) {
  int cut = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in6 peer{};  // gRPC speaks IPv4 by such sockets, too; the port lies where it does in any
    socklen_t size = sizeof(peer);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.sin6_family != AF_UNIX && ntohs(peer.sin6_port) == port && ::shutdown(fd, SHUT_RDWR) == 0) ++cut;
  }
  return cut;
}

TEST_CASE("A client whose connection is lost, however often, comes back") {
  const TestCa ca;
  const TestServer server(ca.Server());
  const int port = std::stoi(server.address().substr(server.address().find(':') + 1));
  LastingChannel channel(server.address(), ca.Client());
  const auto call = [&] {
    const auto now = *channel.Get();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kSoon);
    v1::ReceiverStatus response;
    const grpc::Status status = v1::RaasReceiver::NewStub(now)->GetStatus(&context, {}, &response);
    channel.Ended(now, status);
    return status.ok();
  };
  std::atomic<bool> over = false;
  std::thread other([&] {  // as a receiver's threads, which share one
    while (!over) (void)call();
  });
  int cut = 0;
  for (int i = 0; i < 300; ++i) {
    cut += CutConnections(port);
    const auto until = std::chrono::steady_clock::now() + kSoon;
    bool back = false;
    while (!back && std::chrono::steady_clock::now() < until) back = call();
    if (!back) FAIL("deaf since connection " << i << " was lost");
  }
  over = true;
  other.join();
  CHECK(cut > 100);
  const auto found = *channel.Get();
  channel.Ended(found, grpc::Status::OK);
  CHECK(*channel.Get() == found);
  channel.Ended(found, {grpc::StatusCode::UNAVAILABLE, ""});
  CHECK(*channel.Get() != found);
}

TEST_CASE("Files that cannot be used leave those before in their place, until there are others that can") {
  const TestCa ca;
  const TestCa next;
  const TlsOptions own = ca.Server();
  const TlsOptions client = ca.Client();
  const TestServer server(own);
  REQUIRE(Call(server, client).ok());
  const auto change = [](const std::string& file, const std::string& text) {
    REQUIRE(os::WriteFileAtomic(file, text, 0600).ok());
  };
  const auto stays = [&] {  // also when both have looked for changes some times
    for (int i = 0; i < 25; ++i) {
      REQUIRE(Call(server, client).ok());
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  };
  const TlsOptions others = next.Server();
  change(own.key, *os::ReadFile(others.key));
  stays();
  REQUIRE(std::filesystem::remove(own.cert));
  change(own.ca, "no PEM");
  stays();
  change(own.cert, *os::ReadFile(others.cert));
  change(own.ca, *os::ReadFile(others.ca));
  REQUIRE(::chmod(own.key.c_str(), 0644) == 0);
  stays();

  REQUIRE(::chmod(own.key.c_str(), 0600) == 0);
  const TlsOptions newcomer = next.Client();
  const auto deadline = std::chrono::steady_clock::now() + kSoon;
  while (!Call(server, newcomer).ok()) {
    REQUIRE(std::chrono::steady_clock::now() < deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

TEST_CASE("Files that do not fit are named, and what to do about them") {
  const TestCa ca;
  const TlsOptions good = ca.Server();
  const auto refused = [](const TlsOptions& tls, const std::string& file, const std::string& why) {
    CHECK_THAT(PrepareTls(tls), FailsWith(ErrorCode::kConfig, file, why));
  };
  TlsOptions bad = good;
  bad.key.clear();
  refused(bad, "tls-key", "give all three");
  bad.key = good.cert;
  refused(bad, "tls-key", "chmod o=");
  REQUIRE(::chmod(good.cert.c_str(), 0640) == 0);
  refused(bad, good.cert, "no private key");
  bad.key = ca.Client().key;
  refused(bad, bad.key, "is not the key of certificate");
  bad = good;
  bad.ca = "/nowhere/ca.pem";
  refused(bad, "tls-ca: ", "/nowhere/ca.pem");
  bad.ca = good.key;
  refused(bad, good.key, "BEGIN CERTIFICATE");
  CHECK(PrepareTls({.cert = "", .key = "", .ca = "", .server_name = "trainer-0"}).code() == ErrorCode::kConfig);
  CHECK(PrepareTls({}).ok());
}

}  // namespace
}  // namespace lockstep::rpc
