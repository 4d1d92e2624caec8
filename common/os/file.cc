#include "common/os/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "common/base/text.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {
namespace {

namespace fs = std::filesystem;

std::string ParentOf(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// A rename is durable only once its directory is.
Status SyncDirectory(const std::string& path) {
  const UniqueFd dir(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir.valid()) return ErrnoStatus(errno, Cat("open directory ", path));
  // Some filesystems cannot sync directories and say EINVAL: there is nothing more to be done on those.
  if (::fsync(dir.get()) != 0 && errno != EINVAL) return ErrnoStatus(errno, Cat("fsync directory ", path));
  return OkStatus();
}

Status FillAndSync(int fd, std::span<const std::byte> bytes, mode_t mode, const std::string& path) {
  LS_RETURN_IF_ERROR(WriteAll(fd, 0, bytes, path));
  if (::fchmod(fd, mode) != 0) return ErrnoStatus(errno, Cat("chmod ", path));
  if (::fsync(fd) != 0) return ErrnoStatus(errno, Cat("fsync ", path));
  return OkStatus();
}

Result<UniqueFd> OpenForReading(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, Cat("open ", path));
  return fd;
}

Result<std::string> ReadAll(int fd, const std::string& path, uint64_t max_bytes) {
  std::string content;
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, Cat("read ", path));
    if (got == 0) return content;
    if (content.size() + static_cast<size_t>(got) > max_bytes) {
      return Status(ErrorCode::kResourceExhausted, Cat(path, " is longer than ", HumanBytes(max_bytes)));
    }
    content.append(buffer, static_cast<size_t>(got));
  }
}

bool OthersMayWrite(const struct stat& info) {
  return (info.st_mode & (S_IWGRP | S_IWOTH)) != 0;
}

std::string OwnerAndMode(const struct stat& info) {
  char mode[8];
  std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
  return Cat("it belongs to uid ", info.st_uid, " and has mode ", mode);
}

// One directory or link of those that CheckWayTo() looks at.
Status CheckStep(const fs::path& step, uid_t user) {
  struct stat info;
  if (::lstat(step.c_str(), &info) != 0) return ErrnoStatus(errno, Cat("directory ", step.string()));
  const bool theirs = info.st_uid == user || info.st_uid == 0;
  if (S_ISLNK(info.st_mode)) {
    if (!theirs) {
      return {ErrorCode::kPermission, Cat(step.string(), " is a link made by uid ", info.st_uid, "; remove it")};
    }
    std::error_code error;
    const fs::path target = fs::read_symlink(step, error);
    if (error) return ErrnoStatus(error.value(), Cat("read link ", step.string()));
    return CheckWayTo(step.parent_path() / target, user);
  }
  const bool kept = (info.st_mode & S_ISVTX) != 0 && user == ::geteuid();
  if (theirs && (kept || !OthersMayWrite(info))) return OkStatus();
  return {ErrorCode::kPermission,
          Cat("directory ", step.string(), " lets others than uid ", user,
              " and root replace what is in it: ", OwnerAndMode(info),
              ". Have one of these own it, with mode go-w (or +t, as /tmp has), or use another directory")};
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  LS_ASSIGN_OR_RETURN(const UniqueFd fd, OpenForReading(path));
  return ReadAll(fd.get(), path, max_bytes);
}

Result<std::string> ReadSecretFile(const std::string& path, uint64_t max_bytes) {
  LS_ASSIGN_OR_RETURN(const UniqueFd fd, OpenForReading(path));
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, Cat("stat ", path));
  if ((info.st_mode & S_IRWXO) != 0) {
    return Status(ErrorCode::kPermission, Cat(path, " is open to other users; chmod o= it"));
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return Status(ErrorCode::kPermission,
                  Cat(path, " belongs to uid ", info.st_uid, ", which may read it; chown it to uid ", ::geteuid()));
  }
  return ReadAll(fd.get(), path, max_bytes);
}

Status WriteFileAtomic(const std::string& path, std::span<const std::byte> bytes, mode_t mode) {
  std::string temporary = path + ".tmp-XXXXXX";
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, Cat("create a temporary file next to ", path));
  Status status = FillAndSync(fd.get(), bytes, mode, temporary);
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, Cat("rename ", temporary, " to ", path));
  }
  if (!status.ok()) {
    ::unlink(temporary.c_str());
    return status;
  }
  return SyncDirectory(ParentOf(path));
}

Status ReadAt(int fd, uint64_t offset, std::span<std::byte> out, std::string_view path) {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, Cat("read ", path, " at byte ", offset));
    if (got == 0) {
      return {ErrorCode::kCorrupt, Cat(path, " ends at byte ", offset, ", ", out.size(), " more were expected")};
    }
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
  return OkStatus();
}

Result<UniqueFd> ReopenReadOnly(int fd, std::string_view path) {
  UniqueFd reopened(::open(Cat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC));
  if (!reopened.valid()) return ErrnoStatus(errno, Cat("open ", path, " for reading"));
  return reopened;
}

Status WriteAll(int fd, uint64_t offset, std::span<const std::byte> bytes, std::string_view path) {
  while (!bytes.empty()) {
    const ssize_t put = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, Cat("write ", path, " at byte ", offset));
    offset += static_cast<uint64_t>(put);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return OkStatus();
}

Status MakeDirs(const std::string& path, mode_t mode) {
  // mkdir() alone is not enough: the umask cuts its mode. chmod() alone drops the set-group-ID bit of the parent.
  struct stat info;
  const auto make = [&] {
    if (::mkdir(path.c_str(), mode) != 0 || ::stat(path.c_str(), &info) != 0) return errno;
    const mode_t whole = mode | (info.st_mode & S_ISGID);
    return (info.st_mode & 07777) == whole || ::chmod(path.c_str(), whole) == 0 ? 0 : errno;
  };
  int error = make();
  if (error == ENOENT && ParentOf(path) != path) {
    LS_RETURN_IF_ERROR(MakeDirs(ParentOf(path), mode));
    error = make();
  }
  if (error == EEXIST && ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return OkStatus();
  return error == 0 ? OkStatus() : ErrnoStatus(error, Cat("make directory ", path));
}

FileStamp StampOf(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return {};
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .bytes = info.st_size,
          .changed_unix_ns = info.st_ctim.tv_sec * 1'000'000'000 + info.st_ctim.tv_nsec};
}

bool Names(const std::string& path, int fd) {
  struct stat named, opened;
  return ::stat(path.c_str(), &named) == 0 && ::fstat(fd, &opened) == 0 && named.st_dev == opened.st_dev &&
         named.st_ino == opened.st_ino;
}

Status CheckWritableDir(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, Cat("directory ", path));
  if (!S_ISDIR(info.st_mode)) return {ErrorCode::kBadData, Cat(path, " is not a directory")};
  std::string probe = path + "/.writable-XXXXXX";
  const UniqueFd fd(::mkostemp(probe.data(), O_CLOEXEC));
  if (!fd.valid()) {
    return ErrnoStatus(errno, Cat("directory ", path, " cannot be written by uid ", ::geteuid(),
                                  " (change its owner or choose another)"));
  }
  ::unlink(probe.c_str());
  return OkStatus();
}

Status CheckWayTo(const std::string& directory, uid_t user) {
  std::error_code error;
  const fs::path whole = fs::absolute(directory, error);
  struct stat info;  // fails for links in a circle
  if (error || ::stat(whole.c_str(), &info) != 0) {
    return ErrnoStatus(error ? error.value() : errno, Cat("directory ", directory));
  }
  fs::path way;
  for (const fs::path& part : whole) {
    way /= part;
    LS_RETURN_IF_ERROR(CheckStep(way, user));  // from the top: no other user changes what was looked at
  }
  return OkStatus();
}

Status CheckOwnDir(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, Cat("directory ", path));
  if (!S_ISDIR(info.st_mode)) return {ErrorCode::kBadData, Cat(path, " is not a directory")};
  const bool ours = info.st_uid == ::geteuid() || info.st_uid == 0;
  if (ours && !OthersMayWrite(info)) return CheckWayTo(path, ::geteuid());
  return {ErrorCode::kPermission,
          Cat("directory ", path, " must belong to uid ", ::geteuid(), " or root and be writable by no other user; ",
              OwnerAndMode(info), ". Use a directory of this user's own")};
}

Result<std::vector<std::string>> ListDirectory(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) return ErrnoStatus(error.value(), Cat("read ", path));
  return names;
}

Status RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return ErrnoStatus(error.value(), Cat("remove ", path));
  return OkStatus();
}

}  // namespace lockstep::os
