// CurrentDevice: a thread's current device for a while, without a context where there was none. Only in builds with
// CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "common/base/status.h"

namespace lockstep::gpu {

// Whether this process has a context on `device`, of about half a GB. Makes none, which most of CUDA's calls do on the
// current device, cudaSetDevice() and cudaPointerGetAttributes() among them.
bool HasContext(int device);

// Makes a device current, and the one from before again when it goes: if that one has a context. A thread that never
// chose a device had device 0, which another process may fill; it keeps the last one then.
class CurrentDevice {
 public:
  CurrentDevice() = default;
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  ~CurrentDevice();

  Status Set(int device);
  // The one that is current, or else any other, that has a context; none where no device has one.
  Status SetAnyWithContext();

 private:
  Status Ask();

  int before_ = -1;  // the caller's, once it is known
  int now_ = -1;
};

}  // namespace lockstep::gpu
