#include "raas_receiver/replica/tree.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "common/base/text.h"
#include "common/model/version_files.h"
#include "common/os/file.h"
#include "raas_receiver/replica/modes.h"

namespace lockstep::replica {
namespace {

namespace fs = std::filesystem;

// What an asset directory may have: it is the model's own, not a whole disk.
constexpr size_t kMaxAssets = 10'000;
constexpr size_t kMaxAssetDepth = 8;

// A directory of assets, or below one. Links to directories may lead anywhere, and in circles.
bool IsDirectory(const fs::directory_entry& entry) {
  std::error_code error;
  return fs::is_directory(entry.symlink_status(error));
}

// The published version has weights of its own: other ones, and indexes of shards, would be loaded in their place. An
// adapter's description without its weights makes loaders fail.
bool IsAsset(const fs::directory_entry& entry) {
  std::error_code error;
  const std::string name = entry.path().filename().string();
  return (entry.is_regular_file(error) || IsDirectory(entry)) && !name.starts_with('.') &&
         !model::IsWeightsName(name) && name != model::kAdapterConfig;
}

// Links the files of `from` into `into`, with directories as they are there; names that are taken stay. `count`: of all
// assets so far.
Status LinkFiles(const fs::path& from, const fs::path& into, size_t depth, size_t& count) {
  std::error_code error;
  for (fs::directory_iterator it(from, error), end; !error && it != end; it.increment(error)) {
    if (!IsAsset(*it)) continue;
    if (++count > kMaxAssets || depth > kMaxAssetDepth) {
      return {ErrorCode::kResourceExhausted,
              Cat("asset directory: at ", it->path().string(), " there are more than ", kMaxAssets, " files or ",
                  kMaxAssetDepth, " directories in one another; name a directory that has the model's own alone")};
    }
    const fs::path to = into / it->path().filename();
    const bool directory = IsDirectory(*it);
    // The umask cuts the mode of mkdir.
    const int made = directory ? ::mkdir(to.c_str(), kDirectoryMode) || ::chmod(to.c_str(), kDirectoryMode)
                               : ::symlink(it->path().c_str(), to.c_str());
    if (made != 0 && errno != EEXIST) return ErrnoStatus(errno, Cat("make ", to.string(), " for an asset"));
    if (!directory || !IsDirectory(fs::directory_entry(to, error))) continue;
    LS_RETURN_IF_ERROR(LinkFiles(it->path(), to, depth + 1, count));
  }
  return error ? ErrnoStatus(error.value(), Cat("read asset directory ", from.string())) : OkStatus();
}

bool IsVersionName(std::string_view name) {
  return name.size() >= 2 && name[0] == 'v' && name[1] >= '0' && name[1] <= '9';
}

model::Attachments TextsOf(const ReplicaState& version) {
  const model::Manifest& manifest = version.manifest;
  return model::SmallFiles(*version.layout, manifest.held, manifest.digest, version.committed_unix_ns, version.label);
}

Status CheckText(const std::string& path, const std::string& text) {
  std::error_code error;
  const bool own_file = fs::is_regular_file(fs::symlink_status(path, error));
  const Result<std::string> found = own_file ? os::ReadFile(path, model::kMaxAttachmentBytes) : std::string();
  if (own_file && found.ok() && *found == text) return OkStatus();
  return {ErrorCode::kCorrupt, Cat(path, " is not as it was published; pull it again in full")};
}

Status Rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return ErrnoStatus(errno, Cat("rename ", from, " to ", to));
  return OkStatus();
}

}  // namespace

VersionTree::VersionTree(std::string directory, std::string scratch, std::string assets)
    : directory_(std::move(directory)), scratch_(std::move(scratch)), assets_(std::move(assets)) {}

std::string VersionTree::NameFor(const VersionRef& held, std::string_view taken) {
  const std::string name = Cat("v", held.version);
  return name == taken ? Cat(name, "-", ToHex(held.run).substr(0, 8)) : name;
}

Status VersionTree::Publish(std::string_view name, const std::string& weights, const ReplicaState& version) {
  const std::string building = Cat(scratch_, "/tmp-", name);
  LS_RETURN_IF_ERROR(os::RemoveTree(building));
  LS_RETURN_IF_ERROR(os::MakeDirs(building, kDirectoryMode));
  const std::string link = Cat(building, "/", model::WeightsFile(*version.layout));
  if (::link(weights.c_str(), link.c_str()) != 0) return ErrnoStatus(errno, Cat("link ", weights, " to ", link));
  for (const auto& [file, text] : TextsOf(version)) {
    LS_RETURN_IF_ERROR(os::WriteFileAtomic(Cat(building, "/", file), text, kFileMode));
  }
  LS_RETURN_IF_ERROR(LinkAssetsInto(building));
  LS_RETURN_IF_ERROR(Withdraw(name));
  return Rename(building, PathOf(name));
}

Status VersionTree::Withdraw(std::string_view name) {
  const std::string leaving = Cat(scratch_, "/tmp-gone-", name);
  LS_RETURN_IF_ERROR(os::RemoveTree(leaving));
  if (::rename(PathOf(name).c_str(), leaving.c_str()) != 0) {
    return errno == ENOENT ? OkStatus() : ErrnoStatus(errno, Cat("rename ", PathOf(name), " to ", leaving));
  }
  return os::RemoveTree(leaving);
}

bool VersionTree::Publishes(std::string_view name, const std::string& weights, const ReplicaState& version) const {
  struct stat published {};
  struct stat ours {};
  return ::lstat(Cat(PathOf(name), "/", model::WeightsFile(*version.layout)).c_str(), &published) == 0 &&
         ::lstat(weights.c_str(), &ours) == 0 && published.st_dev == ours.st_dev && published.st_ino == ours.st_ino &&
         CheckTexts(name, version).ok();
}

Status VersionTree::CheckTexts(std::string_view name, const ReplicaState& version) const {
  for (const auto& [file, text] : TextsOf(version)) {
    LS_RETURN_IF_ERROR(CheckText(Cat(PathOf(name), "/", file), text));
  }
  return OkStatus();
}

Status VersionTree::LinkAssets(std::string_view name) const {
  return LinkAssetsInto(PathOf(name));
}

Status VersionTree::LinkAssetsInto(const std::string& directory) const {
  size_t count = 0;
  return assets_.empty() ? OkStatus() : LinkFiles(assets_, directory, 1, count);
}

Status VersionTree::SwitchCurrent(std::string_view name) {
  const std::string fresh = Cat(scratch_, "/tmp-current");
  if (::unlink(fresh.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, Cat("remove ", fresh));
  if (::symlink(std::string(name).c_str(), fresh.c_str()) != 0) return ErrnoStatus(errno, Cat("symlink ", fresh));
  return Rename(fresh, PathOf(kCurrentLink));
}

std::string VersionTree::CurrentName() const {
  std::error_code error;
  return fs::read_symlink(PathOf(kCurrentLink), error).string();
}

Status VersionTree::RemoveCurrent() {
  const std::string link = PathOf(kCurrentLink);
  if (::unlink(link.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, Cat("remove ", link));
  return OkStatus();
}

Result<std::vector<std::string>> VersionTree::Names() const {
  LS_ASSIGN_OR_RETURN(std::vector<std::string> names, os::ListDirectory(directory_));
  std::erase_if(names, [](const std::string& name) { return !IsVersionName(name); });
  return names;
}

}  // namespace lockstep::replica
