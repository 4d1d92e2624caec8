#include "common/versionlog/keys.h"

#include <openssl/err.h>
#include <openssl/evp.h>

#include <utility>

#include "common/base/freed.h"
#include "common/base/text.h"
#include "common/net/pem.h"
#include "common/objects/sha256.h"
#include "common/os/file.h"

namespace lockstep::versionlog {
namespace {

constexpr uint64_t kMaxPemBytes = 1 << 20;
constexpr size_t kIdBytes = 8;
constexpr size_t kSignatureBytes = 64;

using Digest = std::unique_ptr<EVP_MD_CTX, Freed<EVP_MD_CTX_free>>;

std::string IdOf(const EVP_PKEY* key) {
  std::array<uint8_t, 32> raw{};
  size_t bytes = raw.size();
  EVP_PKEY_get_raw_public_key(key, raw.data(), &bytes);
  const objects::Sha256 sum = objects::Sha256Of(std::as_bytes(std::span(raw)));
  return {reinterpret_cast<const char*>(sum.data()), kIdBytes};
}

// What is signed cannot be taken for anything else that the key may sign.
Bytes Prefixed(ByteView bytes, Signed what) {
  Bytes prefixed;
  AppendBytes(prefixed,
              AsBytes(std::string_view(what == Signed::kLogHead ? "lockstep log head\n" : "lockstep receipt\n")));
  AppendBytes(prefixed, bytes);
  return prefixed;
}

const unsigned char* Raw(ByteView bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

Status Wrong(const std::string& path, std::string_view what) {
  return {ErrorCode::kConfig, Cat(path, " ", what)};
}

}  // namespace

SigningKey::SigningKey(std::shared_ptr<EVP_PKEY> key) : key_(std::move(key)), id_(IdOf(key_.get())) {}

Result<SigningKey> SigningKey::Read(const std::string& path) {
  const Result<std::string> text = os::ReadSecretFile(path, kMaxPemBytes);
  if (!text.ok()) return Status(ErrorCode::kConfig, text.status().message());
  net::Key key = net::PrivateKeyOf(*text);
  if (key == nullptr || EVP_PKEY_id(key.get()) != EVP_PKEY_ED25519) {
    return Wrong(path, "has no Ed25519 key without a passphrase; make one: openssl genpkey -algorithm ed25519");
  }
  return SigningKey(std::move(key));
}

v1::LogSignature SigningKey::Sign(ByteView bytes, Signed what) const {
  const Bytes prefixed = Prefixed(bytes, what);
  std::string signature(kSignatureBytes, '\0');
  size_t length = signature.size();
  const Digest digest(EVP_MD_CTX_new());
  EVP_DigestSignInit(digest.get(), nullptr, nullptr, nullptr, key_.get());
  EVP_DigestSign(digest.get(), reinterpret_cast<unsigned char*>(signature.data()), &length, Raw(prefixed),
                 prefixed.size());
  v1::LogSignature made;
  made.set_key(id_);
  made.set_signature(signature);
  return made;
}

TrustedKeys SigningKey::Verifier() const {
  TrustedKeys own;
  own.keys_.push_back({id_, key_});
  return own;
}

Result<TrustedKeys> TrustedKeys::Read(const std::string& path) {
  const Result<std::string> text = os::ReadFile(path, kMaxPemBytes);
  if (!text.ok()) return Status(ErrorCode::kConfig, text.status().message());
  TrustedKeys trusted;
  trusted.path_ = path;
  for (net::Key& key : net::PublicKeysOf(*text)) {
    if (EVP_PKEY_id(key.get()) != EVP_PKEY_ED25519) return Wrong(path, "has a public key that is no Ed25519 key");
    std::string id = IdOf(key.get());
    trusted.keys_.push_back({std::move(id), std::move(key)});
  }
  if (trusted.empty()) return Wrong(path, "has no public key in PEM; openssl pkey -pubout writes one");
  return trusted;
}

Result<TrustedKeys> TrustedKeys::Current() const {
  if (path_.empty()) return *this;
  return Read(path_);
}

Status TrustedKeys::Check(ByteView bytes, const google::protobuf::RepeatedPtrField<v1::LogSignature>& signatures,
                          Signed what) const {
  if (empty()) return OkStatus();
  const Bytes prefixed = Prefixed(bytes, what);
  for (const v1::LogSignature& given : signatures) {
    for (const Key& trusted : keys_) {
      if (given.key() != trusted.id || given.signature().size() != kSignatureBytes) continue;
      const Digest digest(EVP_MD_CTX_new());
      EVP_DigestVerifyInit(digest.get(), nullptr, nullptr, nullptr, trusted.key.get());
      const int good = EVP_DigestVerify(digest.get(), Raw(AsBytes(std::string_view(given.signature()))),
                                        kSignatureBytes, Raw(prefixed), prefixed.size());
      ERR_clear_error();
      if (good == 1) return OkStatus();
    }
  }
  return {ErrorCode::kPermission, signatures.empty() ? "is not signed, and only what is signed is taken"
                                                     : "is signed by no key that is trusted"};
}

}  // namespace lockstep::versionlog
