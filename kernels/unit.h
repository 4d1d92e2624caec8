// Elements are compared, stepped and moved in units of 1, 2, 4 or 8 bytes: from the number of bytes to the type.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

// body(Unit{}), Unit being the unsigned type of `unit` bytes. REQUIRES a unit that there is.
template <typename Body>
auto WithUnit(uint32_t unit, const Body& body) {
  switch (unit) {
    case 1:
      return body(uint8_t{});
    case 2:
      return body(uint16_t{});
    case 4:
      return body(uint32_t{});
    default:
      return body(uint64_t{});
  }
}

}  // namespace lockstep::kernels
