// The distribution's libstdc++.a, which the plugin carries, asks the C library for arc4random, which it has from 2.36
// on only; trainers' containers are often older. Nothing here draws from std::random_device, whose code that is. This
// definition is the plugin's own: others in the process do not see it.

#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

extern "C" [[gnu::visibility("hidden")]] uint32_t arc4random() noexcept;

uint32_t arc4random() noexcept {
  uint32_t number = 0;
  while (::getrandom(&number, sizeof number, 0) != sizeof number) {
    if (errno != EINTR) std::abort();
  }
  return number;
}
