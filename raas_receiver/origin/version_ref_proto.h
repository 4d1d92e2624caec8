// Between versions and the message that names them.
#pragma once

#include "common/base/ids.h"
#include "common/base/status.h"
#include "proto/lockstep/v1/model.pb.h"

namespace lockstep::origin {

inline v1::VersionRef ToProto(const VersionRef& held) {
  v1::VersionRef proto;
  proto.set_run(ToBytes(held.run));
  proto.set_version(held.version);
  return proto;
}

// Returns an empty VersionRef when the version is 0, whatever the run. kProtocol for a run that is not 16 bytes.
inline Result<VersionRef> FromProto(const v1::VersionRef& held) {
  if (held.version() == 0) return VersionRef{};
  LS_ASSIGN_OR_RETURN(const auto run, Bytes16(held.run()));
  return VersionRef{{run}, held.version()};
}

}  // namespace lockstep::origin
