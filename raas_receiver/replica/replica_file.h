// ReplicaFile: the memory of a replica: a safetensors file image, mapped shared, which engines open by a published
// name.
//
// A file that a reader may have open or mapped is never written. The kernel knows of readers: a write lease
// (F_SETLEASE) is refused while any other open file description of the file exists, and a mapping holds one. So this
// process keeps exactly one description per replica file, and Claim() asks for the lease. It is kept until Release(): a
// process that manages to open the file in between (through /proc, say) waits in open() until then, and sees whole
// content.
//
// Some file systems do not refuse the lease: overlayfs grants it while a file is mapped, if its descriptor is closed.
// Where LeasesSeeMappings() is false no file may be claimed, and every version gets a new file.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <stop_token>
#include <string>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "common/model/layout.h"
#include "common/os/segment.h"

namespace lockstep::replica {

// Whether leases in `directory` are refused while a file is only mapped: tried with a file made for that.
Result<bool> LeasesSeeMappings(const std::string& directory);

// Move-only. Not thread-safe, but the bytes may be written by many threads while the file is claimed.
class ReplicaFile {
 public:
  ReplicaFile() = default;  // no file

  // A new file in place of whatever is at `path`, its space reserved and its safetensors header written.
  // kResourceExhausted, naming size and room, when it does not fit.
  static Result<ReplicaFile> Create(const std::string& path, std::shared_ptr<const model::ModelLayout> layout);
  // The file at `path`. kCorrupt when its size or safetensors header is not the layout's.
  static Result<ReplicaFile> Open(const std::string& path, std::shared_ptr<const model::ModelLayout> layout);

  // Reserves the room that the file, at `path`, lacks for `layout`, for a later Reshape(). Changes no content.
  // kResourceExhausted as Create().
  Status ReserveFor(const std::string& path, const model::ModelLayout& layout) const;
  // Gives back the room that was reserved and not used.
  void GiveBackRoom() const;
  // Makes the file one of `layout`: writes the header, and leaves the data unspecified. After an error there is no
  // file. REQUIRES the file to be claimed.
  Status Reshape(const std::string& path, std::shared_ptr<const model::ModelLayout> layout);

  bool valid() const { return segment_.valid(); }
  const std::shared_ptr<const model::ModelLayout>& layout() const { return layout_; }
  uint64_t bytes() const { return segment_.bytes(); }
  std::span<std::byte> data() const { return segment_.span().subspan(header_bytes_); }
  std::span<std::byte> block(BlockIndex block) const;

  // Makes the next `bytes` bytes of a new file real, so that writing them later costs no page faults. False when all
  // are. A page costs more to get from the system than to write: do this while there is nothing better to do.
  bool Warm(uint64_t bytes, WorkerPool& pool);

  // Claims the file for writing. True: no other process has the file, and none can open it before Release(). False: a
  // reader still had it when `grace` was over or `stop` was requested, or this filesystem has no leases; the caller
  // must replace the file. REQUIRES its published names to be gone, and LeasesSeeMappings() of its directory.
  bool Claim(std::chrono::milliseconds grace, const std::stop_token& stop = {});
  void Release();

 private:
  bool TryClaim();
  void WriteHeader(std::shared_ptr<const model::ModelLayout> layout);

  os::MappedSegment segment_;
  std::shared_ptr<const model::ModelLayout> layout_;
  uint64_t header_bytes_ = 0;
  uint64_t cold_from_ = 0;  // bytes before have been warmed, or come from an existing file
};

}  // namespace lockstep::replica
