// Little-endian encoding of our formats, and a reader that never runs past its input.
//
// Formats with fixed structs have header twins of their own; these helpers serve the variable parts.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

static_assert(std::endian::native == std::endian::little, "formats are little-endian and are read in place");

namespace lockstep {

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

template <typename T>
ByteView AsBytes(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const std::byte*>(&value), sizeof(T)};
}
inline ByteView AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view AsText(ByteView bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename T>
void Append(Bytes& out, const T& value) {
  const ByteView bytes = AsBytes(value);
  out.insert(out.end(), bytes.begin(), bytes.end());
}
inline void AppendBytes(Bytes& out, ByteView bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

// Seven bits a byte, low first, high bit set on all but the last.
inline void AppendVarint(Bytes& out, uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<std::byte>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<std::byte>(value));
}

// Takes values off the front of a view. Each Take answers false, and takes nothing, when the input is too short.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : rest_(bytes) {}

  ByteView rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

  template <typename T>
  bool Take(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return true;
  }
  bool TakeBytes(size_t count, ByteView& bytes) {
    if (rest_.size() < count) return false;
    bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return true;
  }
  // False too for a varint that does not fit 64 bits.
  bool TakeVarint(uint64_t& value) {
    value = 0;
    for (size_t i = 0; i < rest_.size() && i < 10; ++i) {
      const auto byte = static_cast<uint8_t>(rest_[i]);
      if (i == 9 && byte > 1) return false;
      value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
      if (byte < 0x80) {
        rest_ = rest_.subspan(i + 1);
        return true;
      }
    }
    return false;
  }

 private:
  ByteView rest_;
};

}  // namespace lockstep
