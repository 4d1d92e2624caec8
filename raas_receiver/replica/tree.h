// VersionTree: the tree that engines read: a directory for each whole version, and the symlink `current` (FORMAT.md).
//
// Every change is one rename, so an observer sees a version's directory with all of its content or not at all. Not
// thread-safe: one session owns it. Paths are absolute.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "raas_receiver/replica/state_file.h"

namespace lockstep::replica {

inline constexpr std::string_view kCurrentLink = "current";
class VersionTree {
 public:
  // `directory` is <root>/<model>, `scratch` its hidden part on the same filesystem. `assets` may be empty.
  VersionTree(std::string directory, std::string scratch, std::string assets);

  std::string PathOf(std::string_view name) const { return directory_ + "/" + std::string(name); }

  // "v7"; "v7-0123abcd" when `taken` is "v7" already.
  static std::string NameFor(const VersionRef& held, std::string_view taken);

  // Makes `name` appear, in place of what was there. It has the file at `weights`, hard-linked, which holds `version`;
  // the attachments of `version`; model::kVersionFile; and links to the assets whose names are not taken.
  Status Publish(std::string_view name, const std::string& weights, const ReplicaState& version);
  // Makes `name` vanish. OK, too, when there is none.
  Status Withdraw(std::string_view name);
  // True when `name` holds the very file at `weights`, and CheckTexts is OK.
  bool Publishes(std::string_view name, const std::string& weights, const ReplicaState& version) const;
  // kCorrupt, naming the first file in `name`, of the attachments and kVersionFile, that is missing or not as it was
  // published.
  Status CheckTexts(std::string_view name, const ReplicaState& version) const;
  // Adds to `name` assets that were added to the asset directory since it was published.
  Status LinkAssets(std::string_view name) const;

  // Makes `current` name `name`. This is the commit of a version.
  Status SwitchCurrent(std::string_view name);
  // The name that `current` has; empty when there is no such link.
  std::string CurrentName() const;
  Status RemoveCurrent();

  // The version directories that are there, whole or not.
  Result<std::vector<std::string>> Names() const;

 private:
  Status LinkAssetsInto(const std::string& directory) const;

  std::string directory_;
  std::string scratch_;
  std::string assets_;
};

}  // namespace lockstep::replica
