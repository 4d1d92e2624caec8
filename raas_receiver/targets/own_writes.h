// OwnWrites: what a rank is to write into its own memory. The writer collects it in portions
// (placement/writes/FORMAT.md), which the rank checks, keeps at hand, and writes when it is told to.
//
//   collected --(a portion is full, Flush)--> handed over --(at once, or WriteLast)--> written
//
// Whatever goes wrong between the rank and us ends its connection: it has to be dropped.
//
// Threads: the writer as PortionWriter says; the rest one at a time.
#pragma once

#include <functional>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "raas_receiver/placement/writes/portion_writer.h"

namespace lockstep::targets {

class RankLink;

class OwnWrites {
 public:
  // `link` outlives this.
  explicit OwnWrites(RankLink& link)
      : link_(link), writer_([this](const os::UniqueFd& portion) { return Pass(portion); }) {}

  placement::PortionWriter& writer() { return writer_; }

  // What the writer is given from here on is handed over only ...
  void HandOverOnly() { then_ = Then::kKeep; }
  // ... or is written as well, one portion while the next is packed.
  void WriteAtOnce() { then_ = Then::kWrite; }

  // The rank writes what it has at hand, if anything, and from then on holds `version` wholly; then
  // AwaitWritten.
  Status WriteLast(const Held& version);
  // Waits for what the rank was told to write.
  Status AwaitWritten();

  // Whether the memory has all that `add` gives the writer. `add` may stop where `equal` is false already.
  using AddCompared = std::function<Status(placement::PortionWriter& writer, const bool& equal)>;
  Result<bool> Compare(const AddCompared& add);

 private:
  enum class Then { kKeep, kWrite, kCompare };  // what the rank does with a portion

  Status Pass(const os::UniqueFd& portion);
  Status Checked(Status status);

  RankLink& link_;
  placement::PortionWriter writer_;
  Then then_ = Then::kKeep;
  bool equal_ = true;              // what was compared so far
  bool awaiting_written_ = false;  // the rank writes while the next portion is packed
  Status failed_;
};

}  // namespace lockstep::targets
