#include "common/wire/local.h"

#include "common/wire/envelope.h"

namespace lockstep::wire {

template void Seal(LocalRequest&);
template void Seal(LocalAnswer&);

Status CheckLocalRequest(const LocalRequest& request) {
  LS_RETURN_IF_ERROR(CheckEnvelope("local request", request, kLocalRequestMagic));
  const auto kind = static_cast<LocalKind>(request.kind);
  if (kind != LocalKind::kSlot && kind != LocalKind::kPayload && kind != LocalKind::kAlive) {
    return Foreign("local request", Cat("unknown kind ", static_cast<int>(request.kind)));
  }
  const bool fits =
      (kind == LocalKind::kSlot || request.version == 0) && (kind == LocalKind::kPayload) == (request.payload_id != 0);
  return fits ? OkStatus() : Foreign("local request", "its kind disagrees with its version or payload id");
}

Status CheckLocalAnswer(const LocalAnswer& answer, uint32_t layout_blocks) {
  LS_RETURN_IF_ERROR(CheckEnvelope("local answer", answer, kLocalAnswerMagic));
  if (answer.code > static_cast<uint32_t>(ErrorCode::kInternal)) {
    return Foreign("local answer", Cat("unknown error code ", answer.code));
  }
  const uint64_t most = answer.code != 0 ? kMaxErrorText : uint64_t{layout_blocks} * sizeof(uint64_t);
  if (answer.tail_bytes > most)
    return Foreign("local answer", Cat("a tail of ", answer.tail_bytes, " bytes; the limit is ", most));
  return OkStatus();
}

}  // namespace lockstep::wire
