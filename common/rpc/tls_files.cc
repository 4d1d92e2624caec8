#include "common/rpc/tls_files.h"

#include <openssl/err.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "common/base/text.h"
#include "common/net/pem.h"
#include "common/os/file.h"

namespace lockstep::rpc {
namespace {

constexpr uint64_t kMaxPemBytes = 1 << 20;

Status Wrong(const char* option, const std::string& path, std::string_view what) {
  return {ErrorCode::kConfig, Cat(option, ": ", path, " ", what)};
}

Result<std::string> ReadPem(const char* option, const std::string& path) {
  Result<std::string> text = os::ReadFile(path, kMaxPemBytes);
  if (!text.ok()) return Status(ErrorCode::kConfig, Cat(option, ": ", text.status().message()));
  return text;
}

Result<net::Certificate> ParseCertificate(const char* option, const std::string& path, const std::string& text) {
  std::vector<net::Certificate> all = net::CertificatesOf(text);
  if (all.empty()) return Wrong(option, path, "has no certificate; give a PEM file (BEGIN CERTIFICATE)");
  return std::move(all[0]);
}

Result<net::Key> ParseKey(const char* option, const std::string& path, const std::string& text) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return Wrong(option, path, std::strerror(errno));
  if ((info.st_mode & S_IRWXO) != 0) return Wrong(option, path, "may be read by other users; chmod o= it");
  net::Key key = net::PrivateKeyOf(text);
  if (key == nullptr) return Wrong(option, path, "has no private key without a passphrase; give one in PEM");
  return key;
}

}  // namespace

Result<TlsFiles> ReadTlsFiles(const std::string& cert, const std::string& key, const std::string& ca) {
  TlsFiles files;
  LS_ASSIGN_OR_RETURN(files.ca, ReadPem("tls-ca", ca));
  LS_RETURN_IF_ERROR(ParseCertificate("tls-ca", ca, files.ca));
  LS_ASSIGN_OR_RETURN(files.cert, ReadPem("tls-cert", cert));
  LS_ASSIGN_OR_RETURN(const net::Certificate own, ParseCertificate("tls-cert", cert, files.cert));
  LS_ASSIGN_OR_RETURN(files.key, ReadPem("tls-key", key));
  LS_ASSIGN_OR_RETURN(const net::Key secret, ParseKey("tls-key", key, files.key));
  const bool fit = X509_check_private_key(own.get(), secret.get()) == 1;
  ERR_clear_error();
  if (fit) return files;
  return Wrong("tls-key", key, Cat("is not the key of certificate ", cert, "; give the pair"));
}

Result<std::chrono::system_clock::time_point> ReadCertificateEnd(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadPem("tls-cert", path));
  LS_ASSIGN_OR_RETURN(const net::Certificate own, ParseCertificate("tls-cert", path, text));
  const auto end = net::EndOf(*own);
  if (!end) return Wrong("tls-cert", path, "has no end");
  return *end;
}

}  // namespace lockstep::rpc
