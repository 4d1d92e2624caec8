// Internal to common/rpc: whether PEM files can be used.
#pragma once

#include <string>

#include "common/base/status.h"

namespace lockstep::rpc {

// OK when `cert` and `ca` begin with a certificate and `key`, which others may not read, is the private key of `cert`.
// kConfig names the file and what to do.
Status CheckTlsFiles(const std::string& cert, const std::string& key, const std::string& ca);

}  // namespace lockstep::rpc
