#include "common/access/identity.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/access/policy.h"
#include "common/base/text.h"

namespace lockstep::access {
namespace {

constexpr size_t kMaxName = 2048;

bool IsPlain(const std::string& name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) { return c > ' ' && c < 0x7f && c != ','; });
}

}  // namespace

Identity IdentityOfNames(std::vector<std::string> names) {
  if (names.empty()) return {.name = "a certificate without names", .names = {}};
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ",") + name;
  if (all.size() > kMaxName || !std::ranges::all_of(names, IsPlain)) {
    return {.name = Cat("a certificate whose names have commas or unusual characters, or are more than ", kMaxName,
                        " bytes"),
            .names = {}};
  }
  return {.name = std::move(all), .names = std::move(names)};
}

Identity IdentityOf(const rpc::PeerCertificate& certificate) {
  Identity identity = IdentityOfNames(certificate.names);
  identity.serial = PlainSerial(certificate.serial);
  identity.valid_until = certificate.valid_until;
  return identity;
}

Identity IdentityOf(const grpc::ServerContextBase& context) {
  const std::string peer = context.peer();
  // Connections of the control socket (control_socket.h) are called so, and no other is.
  if (peer.starts_with("fd:")) return {.name = "the control socket", .of_host = true};
  if (!rpc::HasCertificate(peer)) return {.name = "plaintext"};
  const std::optional<rpc::PeerCertificate> certificate = rpc::CertificateOf(peer);
  return certificate ? IdentityOf(*certificate) : Identity{.name = "a connection that has ended"};
}

}  // namespace lockstep::access
