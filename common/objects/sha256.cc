#include "common/objects/sha256.h"

#include <openssl/evp.h>

namespace lockstep::objects {

struct Sha256Stream::Context {
  Context() { EVP_DigestInit_ex(digest, EVP_sha256(), nullptr); }
  ~Context() { EVP_MD_CTX_free(digest); }
  EVP_MD_CTX* const digest = EVP_MD_CTX_new();
};

Sha256Stream::Sha256Stream() : context_(std::make_unique<Context>()) {}
Sha256Stream::~Sha256Stream() = default;

void Sha256Stream::Add(ByteView bytes) {
  EVP_DigestUpdate(context_->digest, bytes.data(), bytes.size());
}

Sha256 Sha256Stream::Finish() {
  Sha256 sum{};
  EVP_DigestFinal_ex(context_->digest, sum.data(), nullptr);
  EVP_DigestInit_ex(context_->digest, EVP_sha256(), nullptr);
  return sum;
}

Sha256 Sha256Of(ByteView bytes) {
  Sha256Stream stream;
  stream.Add(bytes);
  return stream.Finish();
}

}  // namespace lockstep::objects
