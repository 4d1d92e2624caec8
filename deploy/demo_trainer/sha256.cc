#include "deploy/demo_trainer/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "common/base/ids.h"

namespace lockstep::demo {

// OpenSSL's calls fail here only for want of memory or of the algorithm; EVP_sha256() is always there.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
}

void Sha256::Update(ByteView bytes) {
  EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
}

std::string Sha256::FinishHex() {
  std::array<uint8_t, 32> digest{};
  EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr);
  EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
  return HexEncode(digest);
}

void Sha256::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

}  // namespace lockstep::demo
