// Where answers go: JSON for scripts, text for people, or nowhere.
#pragma once

#include <ostream>
#include <string>

#include "common/base/status.h"
#include "ctl/output/json.h"

namespace lockstep::ctl {

struct Output {
  std::ostream& out;
  bool json = false;
  bool quiet = false;

  // Flushed at once: a watcher wants each line when it happens.
  void Print(const Json& document, const std::string& text) const {
    if (quiet) return;
    out << (json ? Dump(document) + "\n" : text) << std::flush;
  }
};

// `text` and a line break become the file's content. kIo, kNotFound, kPermission or kResourceExhausted names the path.
Status WriteTextFile(const std::string& path, const std::string& text);

}  // namespace lockstep::ctl
