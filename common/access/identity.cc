#include "common/access/identity.h"

#include <grpc/grpc_security_constants.h>

#include <algorithm>
#include <utility>

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

Identity IdentityOf(const grpc::ServerContextBase& context) {
  Identity identity;
  // Connections that were handed to gRPC as a descriptor (control_socket.h) are called so, and no other is.
  if (context.peer().starts_with("fd:")) {
    identity.of_host = true;
    identity.name = "the control socket";
    return identity;
  }
  const auto auth = context.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) {
    identity.name = "plaintext";
    return identity;
  }
  std::vector<std::string> names;
  for (const char* property : {GRPC_PEER_URI_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME}) {
    for (const grpc::string_ref& value : auth->FindPropertyValues(property)) {
      names.emplace_back(value.data(), value.size());
    }
  }
  return IdentityOfNames(std::move(names));
}

}  // namespace lockstep::access
