#include "common/os/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <limits>

#include "common/base/text.h"
#include "common/os/memory_nodes.h"

namespace lockstep::os {
namespace {

// As posix_fallocate, of room that the file's size does not tell of. Where there is no such thing none is taken.
int AllocateBeyondEnd(int fd, off_t, off_t bytes) {
  if (::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, bytes) == 0 || errno == EOPNOTSUPP) return 0;
  return errno;
}

// Gives the file its size and its pages, by posix_fallocate, or the pages alone.
Status Allocate(int fd, uint64_t bytes, const std::string& name, int (*allocate)(int, off_t, off_t) = posix_fallocate) {
  if (bytes == 0 || bytes > static_cast<uint64_t>(std::numeric_limits<off_t>::max())) {
    return {ErrorCode::kBadData, Cat("segment ", name, " cannot have ", bytes, " bytes")};
  }
  const SpreadOverNodes spread;  // its readers will be on all of them
  int error = EINTR;
  while (error == EINTR) error = allocate(fd, 0, static_cast<off_t>(bytes));
  if (error == 0) return OkStatus();
  if (error != ENOSPC && error != ENOMEM) return ErrnoStatus(error, Cat("allocate segment ", name));
  struct statvfs room {};
  ::fstatvfs(fd, &room);
  return {ErrorCode::kResourceExhausted,
          Cat("no room for segment ", name, ": it needs ", bytes, " bytes, its filesystem has ",
              uint64_t{room.f_bavail} * room.f_frsize,
              " free; enlarge the tmpfs or give memory back (old segments, other models)")};
}

}  // namespace

void MappedSegment::Unmap::operator()(std::byte* data) const {
  ::munmap(data, bytes);
}

Result<MappedSegment> CreateTmpfsSegment(const std::string& path, uint64_t bytes) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid() && errno == EEXIST) return Status(ErrorCode::kState, Cat("segment ", path, " exists already"));
  if (!fd.valid()) return ErrnoStatus(errno, Cat("create segment ", path));
  Status allocated = Allocate(fd.get(), bytes, path);
  Result<MappedSegment> segment =
      allocated.ok() ? AdoptSegment(std::move(fd), bytes, Access::kReadWrite, path) : Result<MappedSegment>(allocated);
  if (!segment.ok()) ::unlink(path.c_str());
  return segment;
}

Result<MappedSegment> CreateMemfdSegment(const std::string& name, uint64_t bytes) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, Cat("create memfd segment ", name));
  LS_RETURN_IF_ERROR(Allocate(fd.get(), bytes, name));
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, Cat("seal memfd segment ", name));
  }
  return AdoptSegment(std::move(fd), bytes, Access::kReadWrite, name);
}

Status ReserveRoom(const MappedSegment& segment, uint64_t bytes, const std::string& name) {
  if (bytes <= segment.bytes()) return OkStatus();
  const Status reserved = Allocate(segment.fd(), bytes, name, AllocateBeyondEnd);
  // Some file systems keep what they found before they ran out.
  if (!reserved.ok()) (void)!::ftruncate(segment.fd(), static_cast<off_t>(segment.bytes()));
  return reserved;
}

Result<MappedSegment> Resize(MappedSegment segment, uint64_t bytes, const std::string& name) {
  const bool shrinks = bytes < segment.bytes();
  UniqueFd fd = segment.TakeFd();
  segment = MappedSegment();
  if (shrinks && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return ErrnoStatus(errno, Cat("cut ", name));
  LS_RETURN_IF_ERROR(Allocate(fd.get(), bytes, name));
  return AdoptSegment(std::move(fd), bytes, Access::kReadWrite, name);
}

Result<MappedSegment> OpenSegment(const std::string& path, uint64_t bytes, Access access) {
  const int mode = access == Access::kReadWrite ? O_RDWR : O_RDONLY;
  UniqueFd fd(::open(path.c_str(), mode | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return ErrnoStatus(errno, Cat("open segment ", path));
  return AdoptSegment(std::move(fd), bytes, access, path);
}

Result<MappedSegment> AdoptSegment(UniqueFd fd, uint64_t bytes, Access access, const std::string& name) {
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, Cat("stat segment ", name));
  if (!S_ISREG(info.st_mode)) return Status(ErrorCode::kBadData, Cat("segment ", name, " is not a regular file"));
  if (bytes == 0) return Status(ErrorCode::kBadData, Cat("segment ", name, ": of 0 bytes there is nothing to map"));
  if (static_cast<uint64_t>(info.st_size) != bytes) {
    return Status(ErrorCode::kBadData, Cat("segment ", name, " has ", info.st_size, " bytes, expected ", bytes));
  }
  const int protection = access == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, Cat("map segment ", name, " of ", HumanBytes(bytes)));
  return MappedSegment(std::move(fd), static_cast<std::byte*>(data), bytes);
}

Status CheckLasts(int fd, const std::string& name) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals != -1 && (seals & F_SEAL_SHRINK) != 0) return OkStatus();
  // Files with names cannot be sealed: on a tmpfs they are born with F_SEAL_SEAL, elsewhere there are no seals.
  const bool could_be_sealed = seals != -1 && (seals & F_SEAL_SEAL) == 0;
  struct stat info;
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, Cat("stat segment ", name));
  if (!could_be_sealed && info.st_uid == ::geteuid()) return OkStatus();
  return {ErrorCode::kBadData,
          Cat("segment ", name, " of uid ", info.st_uid,
              " may be cut while it is mapped; it has to be sealed, or a file of uid ", ::geteuid())};
}

}  // namespace lockstep::os
