#include "common/access/identity.h"

#include <grpc/grpc_security_constants.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>

#include "common/access/policy.h"
#include "common/base/text.h"

namespace lockstep::access {
namespace {

constexpr size_t kMaxName = 2048;

bool IsPlain(const std::string& name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) { return c > ' ' && c < 0x7f && c != ','; });
}

using Certificate = std::unique_ptr<X509, decltype(&::X509_free)>;

Certificate Parse(const std::string& pem) {
  const std::unique_ptr<BIO, decltype(&::BIO_free)> text(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())),
                                                         &::BIO_free);
  Certificate certificate(PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr), &::X509_free);
  ERR_clear_error();
  return certificate;
}

std::string SerialOf(const X509& certificate) {
  const std::unique_ptr<BIGNUM, decltype(&::BN_free)> number(
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(&certificate), nullptr), &::BN_free);
  const std::unique_ptr<char, void (*)(char*)> hex(BN_bn2hex(number.get()), [](char* text) { OPENSSL_free(text); });
  return PlainSerial(hex.get());
}

// The end of what the certificate says, or now where it says nothing that can be read.
std::chrono::system_clock::time_point EndOf(const X509& certificate) {
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) != 1) return std::chrono::system_clock::now();
  return std::chrono::system_clock::from_time_t(::timegm(&end));
}

std::string PropertyOf(const grpc::AuthContext& peer, const char* property) {
  const std::vector<grpc::string_ref> values = peer.FindPropertyValues(property);
  return values.empty() ? "" : std::string(values[0].data(), values[0].size());
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
  if (PropertyOf(*auth, GRPC_SSL_SESSION_REUSED_PROPERTY) == "true") {
    return {.name = "a resumed TLS session, which proves no certificate,"};
  }
  const Certificate certificate = Parse(PropertyOf(*auth, GRPC_X509_PEM_CERT_PROPERTY_NAME));
  if (certificate == nullptr) return {.name = "a certificate that cannot be read"};
  std::vector<std::string> names;
  for (const char* property : {GRPC_PEER_URI_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME}) {
    for (const grpc::string_ref& value : auth->FindPropertyValues(property)) {
      names.emplace_back(value.data(), value.size());
    }
  }
  identity = IdentityOfNames(std::move(names));
  identity.serial = SerialOf(*certificate);
  identity.valid_until = EndOf(*certificate);
  return identity;
}

}  // namespace lockstep::access
