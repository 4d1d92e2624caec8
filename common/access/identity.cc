#include "common/access/identity.h"

#include <grpc/grpc_security_constants.h>

#include "common/base/text.h"

namespace lockstep::access {
namespace {

constexpr size_t kMaxName = 512;

}  // namespace

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
  for (const char* property : {GRPC_PEER_URI_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME}) {
    for (const grpc::string_ref& value : auth->FindPropertyValues(property)) {
      identity.names.emplace_back(value.data(), value.size());
      identity.name += (identity.name.empty() ? "" : ",") + identity.names.back();
    }
  }
  identity.name = identity.names.empty() ? "a certificate without names" : CleanText(identity.name, kMaxName);
  return identity;
}

}  // namespace lockstep::access
