// Internal to common/rpc: PEM files, and whether they can be used.
#pragma once

#include <chrono>
#include <string>

#include "common/base/status.h"

namespace lockstep::rpc {

struct TlsFiles {
  std::string cert;
  std::string key;
  std::string ca;
};

// Reads the files. kConfig, naming the file and what to do, unless `cert` and `ca` begin with a certificate, and `key`
// is the private key of `cert` and not readable by others.
Result<TlsFiles> ReadTlsFiles(const std::string& cert, const std::string& key, const std::string& ca);

// The end of the first certificate of `path`. kConfig names the file.
Result<std::chrono::system_clock::time_point> ReadCertificateEnd(const std::string& path);

}  // namespace lockstep::rpc
