// The plugin contains the distribution's libstdc++.a. Its std::random_device calls arc4random, which the C library has
// only from 2.36 on; trainers' containers are often older. No code here uses std::random_device. This definition is
// the plugin's own: other code in the process does not see it.

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
