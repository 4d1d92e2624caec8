#include "common/base/ids.h"

#include <sys/random.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace lockstep {

std::array<uint8_t, 16> RandomBytes16() {
  std::array<uint8_t, 16> bytes;
  // getrandom never returns short for 16 bytes once the pool is ready, and blocks until it is.
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  return bytes;
}

std::string HexEncode(std::span<const uint8_t> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const uint8_t byte : bytes) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

bool HexDecode(std::string_view hex, std::span<uint8_t> bytes) {
  bool good = hex.size() == 2 * bytes.size();
  for (size_t i = 0; good && i < bytes.size(); ++i) {
    const char* const end = hex.data() + 2 * i + 2;
    good = std::from_chars(end - 2, end, bytes[i], 16).ptr == end;
  }
  return good;
}

Result<std::array<uint8_t, 16>> HexDecode16(std::string_view hex) {
  std::array<uint8_t, 16> bytes{};
  if (HexDecode(hex, bytes)) return bytes;
  return Status(ErrorCode::kBadData, "expected 32 hex digits, got \"" + std::string(hex.substr(0, 64)) + "\"");
}

Result<std::array<uint8_t, 16>> Bytes16(std::string_view raw) {
  std::array<uint8_t, 16> bytes{};
  if (raw.size() != bytes.size()) {
    return Status(ErrorCode::kProtocol, "expected a 16-byte id, got " + std::to_string(raw.size()) + " bytes");
  }
  std::memcpy(bytes.data(), raw.data(), raw.size());
  return bytes;
}

}  // namespace lockstep
