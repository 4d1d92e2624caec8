#include "common/net/pem.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <ctime>

namespace lockstep::net {
namespace {

using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;

Bio Reader(const std::string& pem) {
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

template <typename Object>
std::vector<Object> ReadAll(const std::string& pem, auto* read) {
  std::vector<Object> found;
  const Bio reader = Reader(pem);
  while (auto* one = read(reader.get(), nullptr, nullptr, nullptr)) found.emplace_back(one);
  ERR_clear_error();  // of the end
  return found;
}

}  // namespace

std::vector<Certificate> CertificatesOf(const std::string& pem) {
  return ReadAll<Certificate>(pem, PEM_read_bio_X509);
}

std::vector<Key> PublicKeysOf(const std::string& pem) {
  return ReadAll<Key>(pem, PEM_read_bio_PUBKEY);
}

Key PrivateKeyOf(const std::string& pem) {
  const auto no_passphrase = [](char*, int, int, void*) { return -1; };
  Key key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, no_passphrase, nullptr));
  ERR_clear_error();
  return key;
}

std::optional<std::chrono::system_clock::time_point> EndOf(const X509& certificate) {
  std::tm end{};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(&certificate), &end) != 1) return std::nullopt;
  return std::chrono::system_clock::from_time_t(::timegm(&end));
}

}  // namespace lockstep::net
