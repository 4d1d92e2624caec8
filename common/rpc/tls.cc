#include "common/rpc/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <cstdlib>

#include "common/base/text.h"
#include "common/rpc/tls_copies.h"
#include "common/rpc/tls_files.h"

namespace lockstep::rpc {
namespace {

using grpc::experimental::ExternalCertificateVerifier;
using grpc::experimental::TlsCustomVerificationCheckRequest;

constexpr unsigned kRereadSeconds = 1;

// gRPC 1.51 does not let a program choose the lowest TLS, but which ciphers TLS 1.2 may use: with nothing but one that
// needs a shared key, which is not there, no handshake below 1.3 can succeed. (1.3 has ciphers of its own.)
constexpr char kCiphersVariable[] = "GRPC_SSL_CIPHER_SUITES";
constexpr char kNoTls12Cipher[] = "PSK-AES256-GCM-SHA384";

// Checks the name in a certificate. gRPC has checked its chain before.
class ServerNameVerifier final : public ExternalCertificateVerifier {
 public:
  explicit ServerNameVerifier(std::string name) : name_(std::move(name)) {}

  bool Verify(TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* answer) override {
    for (const auto& names : {request->uri_names(), request->dns_names(), request->ip_names()}) {
      if (std::ranges::find(names, grpc::string_ref(name_)) != names.end()) return true;
    }
    *answer = {grpc::StatusCode::UNAUTHENTICATED, Cat("the server's certificate is not for ", name_)};
    return true;
  }
  void Cancel(TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string name_;
};

std::shared_ptr<grpc::experimental::CertificateProviderInterface> Files(const TlsOptions& tls) {
  const TlsCopies& copies = TlsCopies::Of(tls);
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(copies.key(), copies.cert(), copies.ca(),
                                                                              kRereadSeconds);
}

}  // namespace

Status PrepareTls(const TlsOptions& tls) {
  const std::string* const files[] = {&tls.cert, &tls.key, &tls.ca};
  const auto given = std::ranges::count_if(files, [](const std::string* file) { return !file->empty(); });
  if (given == 0 && tls.server_name.empty()) return OkStatus();
  if (given < 3) {
    return {ErrorCode::kConfig, "TLS needs tls-cert, tls-key and tls-ca: give all three, or none for plaintext"};
  }
  LS_RETURN_IF_ERROR(ReadTlsFiles(tls.cert, tls.key, tls.ca));
  if (::setenv(kCiphersVariable, kNoTls12Cipher, 1) == 0) return OkStatus();
  return {ErrorCode::kResourceExhausted, "no memory for the environment"};
}

std::optional<std::chrono::system_clock::time_point> CertificateEnd(const TlsOptions& tls) {
  if (!tls.configured()) return std::nullopt;
  const auto end = ReadCertificateEnd(tls.cert);
  if (!end.ok()) return std::nullopt;
  return *end;
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsOptions& tls) {
  if (!tls.configured()) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(Files(tls));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  if (!tls.server_name.empty()) {
    options.set_certificate_verifier(ExternalCertificateVerifier::Create<ServerNameVerifier>(tls.server_name));
    options.set_check_call_host(false);
  }
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace lockstep::rpc
