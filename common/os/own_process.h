// OwnProcess: refuses what is asked of something in a process that was forked off the one which made it.
#pragma once

#include <unistd.h>

#include <string_view>

#include "common/base/status.h"
#include "common/base/text.h"

namespace lockstep::os {

class OwnProcess {
 public:
  bool here() const { return ::getpid() == id_; }
  // kState in another process; `what` was opened: "model actor".
  Status Check(std::string_view what) const {
    if (here()) return OkStatus();
    return {ErrorCode::kState, Cat(what, ": process ", id_, " has it open, from which this one, ", ::getpid(),
                                   ", was forked; open it in this process")};
  }

 private:
  pid_t id_ = ::getpid();
};

}  // namespace lockstep::os
