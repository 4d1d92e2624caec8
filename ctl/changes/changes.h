// What versions changed, as a table, JSON, or a picture: for `lockstepctl diff` and `lockstepctl log diff`.
#pragma once

#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "ctl/output/output.h"
#include "proto/lockstep/v1/agent.pb.h"

namespace CLI {
class App;
}

namespace lockstep::ctl {

enum class GroupBy { kVersion, kKind, kLayer, kExpert, kTensor };

struct DiffOptions {
  std::vector<Version> versions;  // none: the newest; one; or two: each version after the first, up to the second
  GroupBy by = GroupBy::kKind;
  std::string svg;  // a file for the picture; empty: none
};

// REQUIRES options to outlive `command`.
void AddDiffOptions(CLI::App& command, DiffOptions& options);

// kUsage: the first version is not the smaller one.
Status CheckDiff(const DiffOptions& options);

// The first version that is wanted is the one after this; 0: `options` want one version only.
Version After(const DiffOptions& options);
// The last version that is wanted; 0: the newest.
Version Last(const DiffOptions& options);

// `versions` rise. Errors are WriteTextFile's, and kUsage: a picture would be too large.
Status PrintChanges(const std::string& model, const std::vector<v1::VersionChanges>& versions,
                    const DiffOptions& options, const Output& output);

}  // namespace lockstep::ctl
