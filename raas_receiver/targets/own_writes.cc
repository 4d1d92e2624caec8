#include "raas_receiver/targets/own_writes.h"

#include "raas_receiver/targets/rank_link.h"

namespace lockstep::targets {

Status OwnWrites::Checked(Status status) {
  if (status.ok()) return status;
  link_.HangUp();
  failed_ = status;
  return status;
}

// One portion goes to the rank.
Status OwnWrites::Pass(const os::UniqueFd& portion) {
  if (!failed_.ok()) return failed_;
  if (then_ == Then::kCompare && !equal_) return OkStatus();
  LS_RETURN_IF_ERROR(AwaitWritten());
  LS_RETURN_IF_ERROR(Checked(link_.Stage(portion.get())));
  if (then_ == Then::kWrite) {
    LS_RETURN_IF_ERROR(Checked(link_.StartWrite({})));
    awaiting_written_ = true;
  }
  if (then_ == Then::kCompare) {
    const Result<bool> equal = link_.Compare();
    LS_RETURN_IF_ERROR(Checked(equal.status()));
    equal_ = *equal;
  }
  return OkStatus();
}

Status OwnWrites::WriteLast(const Held& version) {
  if (!failed_.ok()) return failed_;
  LS_RETURN_IF_ERROR(AwaitWritten());
  LS_RETURN_IF_ERROR(Checked(link_.StartWrite(version)));
  awaiting_written_ = true;
  return OkStatus();
}

Status OwnWrites::AwaitWritten() {
  if (!failed_.ok()) return failed_;
  if (!awaiting_written_) return OkStatus();
  awaiting_written_ = false;
  return Checked(link_.AwaitWritten());
}

Result<bool> OwnWrites::Compare(const AddCompared& add) {
  then_ = Then::kCompare;
  equal_ = true;
  Status compared = add(writer_, equal_);
  const Status flushed = writer_.Flush();  // in any case: what it was given may be gone afterwards
  if (compared.ok()) compared = flushed;
  then_ = Then::kKeep;
  LS_RETURN_IF_ERROR(compared);
  return equal_;
}

}  // namespace lockstep::targets
