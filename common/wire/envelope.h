// Internal to common/wire: what all messages share, their magic, their size and their check.
#pragma once

#include <cstddef>
#include <string>

#include "common/base/text.h"
#include "common/wire/frame.h"
#include "kernels/hash.h"

namespace lockstep::wire {

template <typename T>
uint64_t CheckOf(const T& message) {
  static_assert(offsetof(T, check) + sizeof(uint64_t) == sizeof(T));
  return Hash64(&message, offsetof(T, check));
}

template <typename T>
void Seal(T& message) {
  message.check = CheckOf(message);
}

inline Status Foreign(const char* what, const std::string& problem) {
  return {ErrorCode::kProtocol, Cat(what, ": ", problem)};
}

template <typename T>
Status CheckEnvelope(const char* what, const T& message, uint32_t magic) {
  if (message.magic != magic) return Foreign(what, "it does not start with our magic; the peer speaks something else");
  if (message.bytes != sizeof(T))
    return Foreign(what, Cat("it says it has ", message.bytes, " bytes, not ", sizeof(T)));
  if (CheckOf(message) != message.check) return {ErrorCode::kCorrupt, Cat(what, ": it fails its check")};
  return OkStatus();
}

}  // namespace lockstep::wire
