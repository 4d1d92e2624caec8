// Where the daemons of a host are when no option says so. The daemons ask when they start, lockstepctl and a receiver
// when they look for one; python/lockstep/core/places.py has the same rule.
//
//   services, and root               any other user, as ensure_agent and ensure_receiver have them
//   /run/trainer-agent/              /dev/shm/lockstep-<uid>/agent/           sockets of an agent
//   /dev/shm/lockstep/               /dev/shm/lockstep-<uid>/agent/segments/  its memory
//   /run/raas-receiver/              /dev/shm/lockstep-<uid>/receiver/        sockets of a receiver
//   /dev/shm/lockstep-receiver/      /dev/shm/lockstep-<uid>/receiver/replicas/
//
// $LOCKSTEP_RUNTIME_DIR replaces /dev/shm/lockstep-<uid>, and then root's daemons are there, too.
#pragma once

#include <string>

#include "common/base/status.h"

namespace lockstep::os {

struct Place {
  const char* sockets;     // the host's
  const char* memory;      // the host's
  const char* own;         // below the user's directory
  const char* own_memory;  // below `own`
};

inline constexpr Place kAgentPlace{"/run/trainer-agent", "/dev/shm/lockstep", "agent", "segments"};
inline constexpr Place kReceiverPlace{"/run/raas-receiver", "/dev/shm/lockstep-receiver", "receiver", "replicas"};

struct Directories {
  std::string sockets;
  std::string memory;
};

// Where a daemon that starts puts what it has: at the host's place if it may write there, else at its user's.
Directories PlaceToServe(const Place& place);

// The path of the socket `name` for who looks for a daemon: the one of this user's own place if it is there and no
// other user could have made it; else the host's, if the host has such a place or this user is root; else the user's
// own.
std::string FindSocket(const Place& place, const std::string& name);

// Makes the directory of sockets that PlaceToServe() gave, if it is a user's own, for this user alone (0700).
// kPermission when another user made it, or may write there. Does nothing of other paths.
Status MakeOwnPlace(const std::string& sockets);

}  // namespace lockstep::os
