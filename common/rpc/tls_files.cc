#include "common/rpc/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "common/base/text.h"
#include "common/os/file.h"

namespace lockstep::rpc {
namespace {

constexpr uint64_t kMaxPemBytes = 1 << 20;

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

Status Wrong(const char* option, const std::string& path, std::string_view what) {
  return {ErrorCode::kConfig, Cat(option, ": ", path, " ", what)};
}

Result<std::string> ReadPem(const char* option, const std::string& path) {
  Result<std::string> text = os::ReadFile(path, kMaxPemBytes);
  if (!text.ok()) return Status(ErrorCode::kConfig, Cat(option, ": ", text.status().message()));
  return text;
}

Bio Reader(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

Result<Certificate> ParseCertificate(const char* option, const std::string& path, const std::string& text) {
  Certificate certificate(PEM_read_bio_X509(Reader(text).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  if (certificate == nullptr) return Wrong(option, path, "has no certificate; give a PEM file (BEGIN CERTIFICATE)");
  return certificate;
}

Result<PrivateKey> ParseKey(const char* option, const std::string& path, const std::string& text) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return Wrong(option, path, std::strerror(errno));
  if ((info.st_mode & S_IRWXO) != 0) return Wrong(option, path, "may be read by other users; chmod o= it");
  // A daemon cannot ask for a passphrase.
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  PrivateKey key(PEM_read_bio_PrivateKey(Reader(text).get(), nullptr, no_passphrase, nullptr));
  ERR_clear_error();
  if (key == nullptr) return Wrong(option, path, "has no private key without a passphrase; give one in PEM");
  return key;
}

}  // namespace

Result<TlsFiles> ReadTlsFiles(const std::string& cert, const std::string& key, const std::string& ca) {
  TlsFiles files;
  LS_ASSIGN_OR_RETURN(files.ca, ReadPem("tls-ca", ca));
  LS_RETURN_IF_ERROR(ParseCertificate("tls-ca", ca, files.ca));
  LS_ASSIGN_OR_RETURN(files.cert, ReadPem("tls-cert", cert));
  LS_ASSIGN_OR_RETURN(const Certificate own, ParseCertificate("tls-cert", cert, files.cert));
  LS_ASSIGN_OR_RETURN(files.key, ReadPem("tls-key", key));
  LS_ASSIGN_OR_RETURN(const PrivateKey secret, ParseKey("tls-key", key, files.key));
  const bool fit = X509_check_private_key(own.get(), secret.get()) == 1;
  ERR_clear_error();
  if (fit) return files;
  return Wrong("tls-key", key, Cat("is not the key of certificate ", cert, "; give the pair"));
}

Result<std::chrono::system_clock::time_point> ReadCertificateEnd(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadPem("tls-cert", path));
  LS_ASSIGN_OR_RETURN(const Certificate own, ParseCertificate("tls-cert", path, text));
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(own.get()), &end) != 1) return Wrong("tls-cert", path, "has no end");
  return std::chrono::system_clock::from_time_t(::timegm(&end));
}

}  // namespace lockstep::rpc
