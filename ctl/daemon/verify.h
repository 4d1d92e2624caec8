// The findings of `verify`. It compares a daemon's bytes with the daemon's manifest; a receiver's also with the agent's
// manifest, and the memory of engines with the receiver's bytes.
#pragma once

#include <optional>
#include <string>

#include "common/base/status.h"
#include "ctl/output/json.h"
#include "proto/lockstep/v1/model.pb.h"

namespace lockstep::ctl {

// The agent's manifest of the version.
struct AgentProof {
  std::string address;
  v1::VersionRef held;
  std::string digest;  // 16 raw bytes
};

struct Verification {
  std::string daemon;  // name and address
  std::string model;
  v1::VerifyResult result;
  std::optional<AgentProof> agent;
  bool needs_engines = false;  // it proves nothing where no engine was compared
};

// OK when all digests and the run agree; else kCorrupt, naming model, version, daemon and the tensors that differ.
// kState when an engine was to be compared, and none is attached.
Status Judge(const Verification& verification);

Json ToJson(const Verification& verification);
std::string VerificationText(const Verification& verification);

}  // namespace lockstep::ctl
