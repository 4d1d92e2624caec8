// Internal to the package: the users that may read what is published: the receiver's, and its group, in which engines
// that run as another user are.
#pragma once

#include <sys/types.h>

namespace lockstep::replica {

inline constexpr mode_t kFileMode = 0640;
inline constexpr mode_t kDirectoryMode = 0750;

}  // namespace lockstep::replica
