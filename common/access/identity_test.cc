#include "common/access/identity.h"

#include <grpc/grpc_security.h>
#include <grpcpp/create_channel.h>

#include <catch2/catch.hpp>
#include <cstdlib>

#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/test_ca.h"
#include "proto/lockstep/v1/receiver.grpc.pb.h"

namespace lockstep::access {
namespace {

// Keeps the last caller.
class Host final : public v1::RaasReceiver::Service {
 public:
  explicit Host(const rpc::TlsOptions& tls) {
    REQUIRE(rpc::PrepareTls(tls).ok());
    server_ = *rpc::RpcServer::Create({.address = "127.0.0.1:0",
                                       .control_socket = dir_.File("control.sock"),
                                       .services = {this},
                                       .tls = tls,
                                       .health_services = {}});
  }
  std::string tcp() const { return Cat("127.0.0.1:", server_->bound_port()); }
  std::string socket() const { return "unix:" + dir_.File("control.sock"); }

  Identity WhoCalls(const std::string& address, const rpc::TlsOptions& tls) {
    return WhoCallsOn(*rpc::LastingChannel(address, tls).Get());
  }
  Identity WhoCallsOn(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    v1::ReceiverStatus response;
    CHECK(v1::RaasReceiver::NewStub(channel)->GetStatus(&context, {}, &response).ok());
    return caller_;
  }

  grpc::Status GetStatus(grpc::ServerContext* context, const v1::ReceiverStatusRequest*, v1::ReceiverStatus*) override {
    caller_ = IdentityOf(*context);
    return grpc::Status::OK;
  }

 private:
  const os::TempDir dir_;
  Identity caller_;
  std::unique_ptr<rpc::RpcServer> server_;
};

TEST_CASE("A peer is known by the names of its certificate, or by the socket that it came by") {
  const os::TempDir ca;
  REQUIRE(std::system(Cat("deploy/tls/make-test-ca.sh ", ca.path(),
                          " infer-0=DNS:infer-0,IP:127.0.0.1,URI:spiffe://test/infer-0")
                          .c_str()) == 0);
  const std::string own = ca.File("infer-0");
  const rpc::TlsOptions tls{
      .cert = own + "/tls.crt", .key = own + "/tls.key", .ca = own + "/ca.crt", .server_name = ""};
  Host host(tls);
  const Identity remote = host.WhoCalls(host.tcp(), tls);
  CHECK(remote.names == std::vector<std::string>{"spiffe://test/infer-0", "infer-0"});
  CHECK(remote.name == "spiffe://test/infer-0,infer-0");
  CHECK(!remote.of_host);
  const Identity local = host.WhoCalls(host.socket(), tls);
  CHECK(local.names.empty());
  CHECK(local.of_host);
}

TEST_CASE("No TLS session is resumed: each connection is known by the certificate that it shows itself") {
  const rpc::TestCa ca;
  Host host(ca.Server());
  grpc_ssl_session_cache* const sessions = grpc_ssl_session_cache_create_lru(4);
  const auto caller = [&](const rpc::TlsOptions& own) {
    grpc::ChannelArguments arguments;
    const grpc_arg cache = grpc_ssl_session_cache_create_channel_arg(sessions);
    arguments.SetPointerWithVtable(cache.key, cache.value.pointer.p, cache.value.pointer.vtable);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto credentials =
        grpc::SslCredentials({*os::ReadFile(own.ca), *os::ReadFile(own.key), *os::ReadFile(own.cert)});
    return host.WhoCallsOn(grpc::CreateCustomChannel(host.tcp(), credentials, arguments));
  };
  const Identity first = caller(ca.Client());
  CHECK(first.names == std::vector<std::string>{"spiffe://test/receiver"});
  CHECK(!first.serial.empty());
  CHECK(first.valid_until > std::chrono::system_clock::now());
  CHECK(first.valid_until < std::chrono::system_clock::now() + std::chrono::hours(31 * 24));
  const Identity second = caller(ca.Issue("other", "URI:spiffe://test/other"));
  CHECK(second.names == std::vector<std::string>{"spiffe://test/other"});
  CHECK(second.serial != first.serial);
  grpc_ssl_session_cache_destroy(sessions);
}

TEST_CASE("No two certificates with other names are one identity; those that could be have no names, and no role") {
  const auto name = [](std::vector<std::string> names) { return IdentityOfNames(std::move(names)).name; };
  CHECK(name({"spiffe://test/a", "b"}) == "spiffe://test/a,b");
  const std::string longest(2048, 'a');
  CHECK(name({longest}) == longest);
  const std::vector<std::vector<std::string>> refused = {
      {"spiffe://test/a,b"}, {"a", "b,c"}, {longest + "a"}, {longest, "b"}, {"a\n"}, {std::string("a\0b", 3)}, {"a b"},
      {"\xc3\xa4"},          {""}};
  for (const auto& names : refused) {
    const Identity identity = IdentityOfNames(names);
    CHECK(identity.names.empty());
    CHECK(!identity.authenticated());
    CHECK_THAT(identity.name, Catch::Contains("commas"));
  }
  CHECK(IdentityOfNames({}).names.empty());
}

TEST_CASE("A peer that plaintext let in has no name, and is not of this host") {
  Host host({});
  CHECK(!host.WhoCalls(host.tcp(), {}).of_host);
  CHECK(host.WhoCalls(host.tcp(), {}).names.empty());
  CHECK(host.WhoCalls(host.socket(), {}).of_host);
}

}  // namespace
}  // namespace lockstep::access
