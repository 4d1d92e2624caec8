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

// The path of the socket `name` for who looks for a daemon: at this user's own place if a daemon of this user listens
// there; else at the host's, if the host has one; else at the user's own, or of root at the host's.
std::string FindSocket(const Place& place, const std::string& name);

// Makes the user's own directory, and the daemon's in it, for this user alone (0700), where `path` is in there.
// kPermission when another user made one of them, or may read or write there. Does nothing of other paths.
Status MakeOwnPlace(const std::string& path);

}  // namespace lockstep::os
