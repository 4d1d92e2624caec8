// SHA-256: the digest by which people, and tools that know nothing of Lockstep, compare a trainer's bytes with a
// replica's.
#pragma once

#include <memory>
#include <string>

#include "common/base/bytes.h"

struct evp_md_ctx_st;

namespace lockstep::demo {

class Sha256 {
 public:
  Sha256();

  void Update(ByteView bytes);
  // Of all that was given since construction or the last FinishHex(): 64 lower-case hex digits.
  std::string FinishHex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

}  // namespace lockstep::demo
