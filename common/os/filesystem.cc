#include "common/os/filesystem.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <cerrno>

#include "common/base/text.h"

namespace lockstep::os {
namespace {

constexpr uint32_t kZfs = 0x2fc12fc1;  // not Linux' own

struct KnownFileSystem {
  uint32_t magic;
  const char* name;
  bool in_memory = false;
};

constexpr KnownFileSystem kKnown[] = {
    {TMPFS_MAGIC, "tmpfs", true},
    {RAMFS_MAGIC, "ramfs", true},
    {HUGETLBFS_MAGIC, "hugetlbfs", true},
    {EXT4_SUPER_MAGIC, "ext4"},
    {XFS_SUPER_MAGIC, "xfs"},
    {BTRFS_SUPER_MAGIC, "btrfs"},
    {kZfs, "zfs"},
    {OVERLAYFS_SUPER_MAGIC, "overlayfs"},
    {F2FS_SUPER_MAGIC, "f2fs"},
    {NFS_SUPER_MAGIC, "nfs"},
    {V9FS_MAGIC, "9p"},
    {FUSE_SUPER_MAGIC, "fuse"},
};

}  // namespace

Result<FileSystem> FileSystemOf(const std::string& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return ErrnoStatus(errno, Cat("file system of ", path));
  const auto magic = static_cast<uint32_t>(info.f_type);
  FileSystem found{.name = Cat("0x", std::hex, magic),
                   .free_bytes = uint64_t{info.f_bavail} * static_cast<uint64_t>(info.f_frsize)};
  for (const KnownFileSystem& known : kKnown) {
    if (known.magic != magic) continue;
    found.name = known.name;
    found.in_memory = known.in_memory;
  }
  return found;
}

std::string ExactBytes(uint64_t bytes) {
  return Cat(HumanBytes(bytes), " (", bytes, " bytes)");
}

}  // namespace lockstep::os
