// `lockstepctl doctor`: what of this host would keep daemons from working, and the command that remedies it. It asks no
// daemon and changes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/tls.h"
#include "ctl/output/output.h"

namespace CLI {
class App;
}

namespace lockstep::ctl {

struct DoctorOptions {
  std::vector<std::string> directories;  // where buffers and replicas are to be; empty: /dev/shm
  uint64_t model_bytes = 0;              // of which each directory is to have room for two; 0: not known
  std::vector<std::string> ports;        // HOST:PORT that daemons are to listen on
  bool gpu = false;                      // one is to be there
  rpc::TlsOptions tls;                   // that daemons are to use
};

// REQUIRES options to outlive `command`.
void AddDoctorOptions(CLI::App& command, DoctorOptions& options);

// kConfig: something has to be corrected first. What may do harm is shown, and is no error.
Status Run(const DoctorOptions& options, const Output& output);

}  // namespace lockstep::ctl
