// Whole files and directories, with errors that name the path.
//
// No call here keeps state; each may be used from any thread. Every failure of the operating system comes back as
// ErrnoStatus() classes it (kNotFound, kPermission, kResourceExhausted, kIo).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/os/unique_fd.h"

namespace lockstep::os {

// The file's content. kResourceExhausted when it is longer than `max_bytes`.
Result<std::string> ReadFile(const std::string& path, uint64_t max_bytes = uint64_t{1} << 30);

// As ReadFile, of a file that holds a secret: kPermission, with what to do, when other users have any access to it, or
// it belongs to another than this process's user and root.
Result<std::string> ReadSecretFile(const std::string& path, uint64_t max_bytes);

// `path` holds either what it held before or all of `bytes`, also after a crash: a temporary file next to it is
// written, synced and renamed over it. A failure leaves no temporary file.
Status WriteFileAtomic(const std::string& path, std::span<const std::byte> bytes, mode_t mode = 0644);
inline Status WriteFileAtomic(const std::string& path, std::string_view text, mode_t mode = 0644) {
  return WriteFileAtomic(path, std::as_bytes(std::span(text)), mode);
}

// Fills `out` from `offset`. kCorrupt when the file ends before. `path` is for messages only.
Status ReadAt(int fd, uint64_t offset, std::span<std::byte> out, std::string_view path);

// Another descriptor of the open file `fd`, a memfd or one that has lost its name too, that can only be read through.
// `path` is for messages only.
Result<UniqueFd> ReopenReadOnly(int fd, std::string_view path);

// Writes all of `bytes` at `offset`. `path` is for messages only.
Status WriteAll(int fd, uint64_t offset, std::span<const std::byte> bytes, std::string_view path);

// Makes the directory and its missing parents; those it makes get `mode`, whatever the umask, and their parent's
// set-group-ID bit. An existing directory is left as it is.
Status MakeDirs(const std::string& path, mode_t mode = 0755);

// A stamp that changes with a file's content or permissions, found without reading the file. A path that cannot be
// looked at has the default stamp.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t bytes = 0;
  int64_t changed_unix_ns = 0;  // ctime: no program sets it back

  bool operator==(const FileStamp&) const = default;
};
FileStamp StampOf(const std::string& path);

// Whether `path` still names the file of `fd`: another process may have removed it, or put another in its place.
bool Names(const std::string& path, int fd);

// OK when `path` is a directory in which this process can really create a file (tried, not guessed from mode bits).
Status CheckWritableDir(const std::string& path);

// OK when only `user` and root may put another directory in place of `directory`: it, every directory and link on
// the way to it, and those that links lead through are theirs, and no other user may write these directories. Sticky
// ones others may write where `user` is our own: no other user takes what is this user's out of them. Of another user
// it is not known that it is the right one, and every user has something in those. kPermission names the first that is
// not so.
Status CheckWayTo(const std::string& directory, uid_t user);

// OK when `path` is a directory of this process's user, or root's, that no other user may write, so that all in it is
// theirs, and CheckWayTo() it. kPermission names the directory, its owner, and its mode.
Status CheckOwnDir(const std::string& path);

// The names of what is in the directory, in no order.
Result<std::vector<std::string>> ListDirectory(const std::string& path);

// Removes the file or directory and all below it, never following links. Nothing there is OK.
Status RemoveTree(const std::string& path);

}  // namespace lockstep::os
