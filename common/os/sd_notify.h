// Reports of a Type=notify service to systemd, each a datagram to $NOTIFY_SOCKET. Does nothing when that is unset.
//
// Thread-safe. Never blocks and never fails: a manager that does not listen is no reason to stop serving.
#pragma once

#include <string_view>

namespace lockstep::os {

// The memory is mapped and the ports listen.
void NotifyReady();
// Shutdown has begun.
void NotifyStopping();
// One line for `systemctl status`; line breaks in it become spaces.
void NotifyStatus(std::string_view text);
// A sign of life for the watchdog.
void NotifyWatchdog();

}  // namespace lockstep::os
