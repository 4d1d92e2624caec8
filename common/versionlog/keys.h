// Ed25519 keys: a writer signs the log's head with one, and a reader takes no head that none of its own has signed.
#pragma once

#include <openssl/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "proto/lockstep/v1/log.pb.h"

namespace lockstep::versionlog {

// What is signed: a signature of one is none of the other.
enum class Signed { kLogHead, kReceipt };

// A private key. Thread-safe.
class SigningKey {
 public:
  // From a PEM file (openssl genpkey -algorithm ed25519) that only this user and root may read. kConfig names the file
  // and what to do.
  static Result<SigningKey> Read(const std::string& path);

  v1::LogSignature Sign(ByteView bytes, Signed what = Signed::kLogHead) const;
  // Returns the trusted keys of a reader that trusts this key alone.
  class TrustedKeys Verifier() const;

 private:
  explicit SigningKey(std::shared_ptr<EVP_PKEY> key);

  std::shared_ptr<EVP_PKEY> key_;
  std::string id_;
};

// Public keys, each of which is trusted. Thread-safe.
class TrustedKeys {
 public:
  TrustedKeys() = default;  // none: what is not signed is taken, too

  // From a PEM file of one public key or several (openssl pkey -pubout). kConfig names the file and what to do.
  static Result<TrustedKeys> Read(const std::string& path);

  bool empty() const { return keys_.empty(); }
  // Reads the file again and returns its keys. Errors as Read.
  Result<TrustedKeys> Current() const;
  // kPermission: none of `signatures` is that of a trusted key over `bytes`. OK where there are no keys.
  Status Check(ByteView bytes, const google::protobuf::RepeatedPtrField<v1::LogSignature>& signatures,
               Signed what = Signed::kLogHead) const;

 private:
  friend class SigningKey;
  struct Key {
    std::string id;
    std::shared_ptr<EVP_PKEY> key;
  };
  std::string path_;  // empty: they are of no file
  std::vector<Key> keys_;
};

}  // namespace lockstep::versionlog
