#include "raas_receiver/targets/control_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

namespace lockstep::targets {
namespace {

// A memfd that is mapped here can still be sealed against every later mapping for writing.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

}  // namespace

Result<ControlPage> ControlPage::Create(uint32_t world) {
  os::UniqueFd fd(::memfd_create("lockstep-engine-page", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "create the control page of an engine");
  if (::ftruncate(fd.get(), kControlPageBytes) != 0) return ErrnoStatus(errno, "size the control page of an engine");
  LS_ASSIGN_OR_RETURN(os::MappedSegment segment, os::AdoptSegment(std::move(fd), kControlPageBytes,
                                                                  os::Access::kReadWrite, "engine control page"));
  if (::fcntl(segment.fd(), F_ADD_SEALS, kSeals) != 0) return ErrnoStatus(errno, "seal the control page of an engine");
  ControlPage page(std::move(segment));
  ControlPageLayout& layout = *new (page.segment_.data()) ControlPageLayout{};
  std::memcpy(layout.magic, kControlPageMagic, sizeof layout.magic);
  layout.format = kEngineRankFormat;
  layout.header_bytes = sizeof(ControlPageLayout);
  layout.world = world;
  return page;
}

void ControlPage::Store(EngineState state, uint32_t slot) {
  word_ = {state, slot, word_.changes + 1};
  // Orders the served memory's writes too, those past the caches included, on either side of the word.
  page().word.store(word_.Encode(), std::memory_order_seq_cst);
}

void ControlPage::BeginWriting() {
  serving_ = {};
  Store(EngineState::kWriting, word_.slot);
}

void ControlPage::Serve(const Held& held) {
  const uint32_t slot = 1 - word_.slot;
  page().slots[slot] = {held.run, held.version, 0};
  serving_ = held;
  Store(EngineState::kServing, slot);
}

void ControlPage::Clear() {
  serving_ = {};
  Store(EngineState::kEmpty, word_.slot);
}

}  // namespace lockstep::targets
