// What PEM texts hold: certificates and keys of TLS, and the keys of a log (common/versionlog).
#pragma once

#include <openssl/x509.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/freed.h"

namespace lockstep::net {

using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

// As many as the text begins with.
std::vector<Certificate> CertificatesOf(const std::string& pem);
std::vector<Key> PublicKeysOf(const std::string& pem);

// Null: the text has no private key, or one with a passphrase. A daemon cannot ask for a passphrase.
Key PrivateKeyOf(const std::string& pem);

// When the certificate expires. Nothing: OpenSSL cannot read that time.
std::optional<std::chrono::system_clock::time_point> EndOf(const X509& certificate);

}  // namespace lockstep::net
