#include "raas_receiver/replica/replica_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "common/base/text.h"
#include "common/model/safetensors.h"
#include "raas_receiver/replica/modes.h"

namespace lockstep::replica {
namespace {

constexpr std::chrono::milliseconds kClaimPoll{5};
constexpr uint64_t kWarmPiece = 8 << 20;

bool TakeLease(int fd) {
  return ::fcntl(fd, F_SETLEASE, F_WRLCK) == 0;
}

}  // namespace

Result<bool> LeasesSeeMappings(const std::string& directory) {
  const std::string path = directory + "/tmp-lease";
  LS_ASSIGN_OR_RETURN(os::MappedSegment ours, os::CreateTmpfsSegment(path, 1));
  bool granted = false;
  {
    LS_ASSIGN_OR_RETURN(os::MappedSegment readers, os::OpenSegment(path, 1, os::Access::kReadOnly));
    readers.CloseFd();
    granted = TakeLease(ours.fd());
  }
  const bool granted_alone = granted || TakeLease(ours.fd());
  if (::unlink(path.c_str()) != 0) return ErrnoStatus(errno, Cat("remove ", path));
  return granted_alone && !granted;
}

Result<ReplicaFile> ReplicaFile::Create(const std::string& path, std::shared_ptr<const model::ModelLayout> layout) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, Cat("remove ", path));
  ReplicaFile file;
  LS_ASSIGN_OR_RETURN(file.segment_, os::CreateTmpfsSegment(path, model::ImageBytes(*layout)));
  // Engines that run as another user reach the file by its published name only.
  if (::fchmod(file.segment_.fd(), kFileMode) != 0) return ErrnoStatus(errno, Cat("chmod ", path));
  file.WriteHeader(std::move(layout));
  return file;
}

void ReplicaFile::WriteHeader(std::shared_ptr<const model::ModelLayout> layout) {
  const Bytes header = model::SafetensorsHeader(*layout);
  std::copy(header.begin(), header.end(), segment_.data());
  layout_ = std::move(layout);
  header_bytes_ = header.size();
}

Status ReplicaFile::ReserveFor(const std::string& path, const model::ModelLayout& layout) const {
  return os::ReserveRoom(segment_, model::ImageBytes(layout), path);
}

// To truncate a file to its size frees what is allocated behind its end.
void ReplicaFile::GiveBackRoom() const {
  (void)!::ftruncate(segment_.fd(), static_cast<off_t>(bytes()));
}

Status ReplicaFile::Reshape(const std::string& path, std::shared_ptr<const model::ModelLayout> layout) {
  cold_from_ = std::min(cold_from_, model::ImageBytes(*layout));
  LS_ASSIGN_OR_RETURN(segment_, os::Resize(std::move(segment_), model::ImageBytes(*layout), path));
  WriteHeader(std::move(layout));
  return OkStatus();
}

Result<ReplicaFile> ReplicaFile::Open(const std::string& path, std::shared_ptr<const model::ModelLayout> layout) {
  const Bytes header = model::SafetensorsHeader(*layout);
  ReplicaFile file;
  LS_ASSIGN_OR_RETURN(file.segment_, os::OpenSegment(path, model::ImageBytes(*layout), os::Access::kReadWrite));
  if (!std::equal(header.begin(), header.end(), file.segment_.data())) {
    return Status(ErrorCode::kCorrupt, Cat(path, " does not begin with the safetensors header of its layout"));
  }
  file.layout_ = std::move(layout);
  file.header_bytes_ = header.size();
  file.cold_from_ = file.segment_.bytes();
  return file;
}

bool ReplicaFile::Warm(uint64_t bytes, WorkerPool& pool) {
  const uint64_t begin = cold_from_;
  cold_from_ = std::min(segment_.bytes(), begin + bytes);
#ifdef MADV_POPULATE_WRITE
  // Changes no byte, so readers do not matter. Only advice: kernels before 5.14 do not know it.
  pool.ParallelFor((cold_from_ - begin + kWarmPiece - 1) / kWarmPiece, [&](size_t i) {
    const uint64_t offset = begin + i * kWarmPiece;
    (void)::madvise(segment_.data() + offset, std::min(kWarmPiece, cold_from_ - offset), MADV_POPULATE_WRITE);
  });
#else
  (void)pool;
#endif
  return cold_from_ < segment_.bytes();
}

std::span<std::byte> ReplicaFile::block(BlockIndex block) const {
  const ByteRange range = layout_->block_range(block);
  return data().subspan(range.offset, range.bytes);
}

bool ReplicaFile::Claim(std::chrono::milliseconds grace, const std::stop_token& stop) {
  const auto until = std::chrono::steady_clock::now() + grace;
  while (!TryClaim()) {
    if (stop.stop_requested() || std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(kClaimPoll);
  }
  return true;
}

bool ReplicaFile::TryClaim() {
  struct stat info {};
  // Another name for the file is a reader to come: it was linked to elsewhere. No name at all: it was removed, and
  // could not be published.
  if (::fstat(segment_.fd(), &info) != 0 || info.st_nlink != 1) return false;
  // When the file is opened while we hold the lease the kernel signals us; by a signal that is ignored unless asked
  // for.
  if (::fcntl(segment_.fd(), F_SETSIG, SIGURG) != 0) return false;
  return TakeLease(segment_.fd());
}

void ReplicaFile::Release() {
  if (segment_.valid()) (void)::fcntl(segment_.fd(), F_SETLEASE, F_UNLCK);
}

}  // namespace lockstep::replica
