// The lines by which peers, addresses and networks are called, as peers and operators write them: what is taken is read
// again as the same (common/peer/peer.h, common/net).
#include "common/net/host_port.h"
#include "common/net/networks.h"
#include "common/peer/peer.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

void TestPeer(std::string_view line, ByteView input) {
  const Result<peer::Peer> peer = peer::ParsePeer(line);
  if (!peer.ok()) return CheckRefusal(peer.status(), {ErrorCode::kProtocol});
  LS_FUZZ_RULE(line.starts_with(Cat(peer->program, "/", peer->release, " protocol=")));
  const Status met = peer::CheckPeer("trainer_agent", line);
  LS_FUZZ_RULE(met.ok() == (peer->protocol == peer::kProtocol));
  if (!met.ok()) CheckRefusal(met, {ErrorCode::kProtocol});
  Accepted(input, {peer->program.size() > 14, peer->protocol > 7, peer->release.size() > 6});
}

void TestAddress(const std::string& text) {
  const Result<net::HostPort> address = net::ParseHostPort(text);
  if (!address.ok()) return CheckRefusal(address.status(), {ErrorCode::kBadData});
  const Result<net::HostPort> again = net::ParseHostPort(address->ToString());
  LS_FUZZ_RULE(again.ok() && *again == *address);
  const Result<net::HostPort> listen = net::CheckListenAddress("--listen", text, false);
  LS_FUZZ_RULE(listen.ok() == address->IsLoopback());
}

void TestControlAddress(const std::string& text) {
  const Result<net::ControlAddress> address = net::ParseControlAddress(text);
  if (!address.ok()) return CheckRefusal(address.status(), {ErrorCode::kBadData});
  LS_FUZZ_RULE(!address->host.empty());
  LS_FUZZ_RULE(!address->IsSocket() || address->text == text);
}

void TestNetwork(const std::string& text) {
  const Result<net::Networks> networks = net::Networks::Parse({text});
  if (!networks.ok()) return CheckRefusal(networks.status(), {ErrorCode::kBadData});
  const asio::ip::address first = asio::ip::make_address(text.substr(0, text.find('/')));
  LS_FUZZ_RULE(networks->Contain(first));
  // None is every network: the other half of the addresses is of no network that begins in this one.
  const bool low = first.is_v4() ? first.to_v4().to_uint() < 0x80000000 : first.to_v6().to_bytes()[0] < 0x80;
  const char* const far = first.is_v4() ? (low ? "224.0.0.1" : "1.0.0.1") : (low ? "ff02::1" : "100::1");
  LS_FUZZ_RULE(!networks->Contain(asio::ip::make_address(far)));
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (const std::string& line :
       {peer::SelfLine("raas_receiver"), std::string("trainer_agent/0.2.0 protocol=1 streaming local"),
        std::string("[fd00::1]:7700"), std::string("127.0.0.1:7700"), std::string("unix:/run/agent.sock"),
        std::string("10.20.0.0/16"), std::string("fd00::/8")}) {
    seeds.push_back(Copy(AsBytes(std::string_view(line))));
  }
  return seeds;
}

void TestInput(ByteView input) {
  const std::string text(AsText(input));
  TestPeer(text, input);
  TestAddress(text);
  TestControlAddress(text);
  TestNetwork(text);
}

}  // namespace lockstep::fuzz
