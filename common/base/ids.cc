#include "common/base/ids.h"

#include <sys/random.h>

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

namespace {
int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}
}  // namespace

bool HexDecode(std::string_view hex, std::span<uint8_t> bytes) {
  if (hex.size() != 2 * bytes.size()) return false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = HexDigit(hex[2 * i]);
    const int low = HexDigit(hex[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return true;
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
