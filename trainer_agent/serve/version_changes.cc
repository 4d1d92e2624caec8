#include "trainer_agent/serve/version_changes.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "common/base/text.h"
#include "common/changes/version_changes_proto.h"
#include "common/rpc/message_json.h"
#include "trainer_agent/serve/served_wait.h"

namespace lockstep::serve {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{10};

// kDeadline: not compared yet.
Result<v1::VersionChanges> Look(const run::VersionCatalog& catalog, const v1::AwaitChangesRequest& request) {
  LS_ASSIGN_OR_RETURN(const auto run, catalog.FindOpen(request.model()));
  if (!request.run().empty() && request.run() != ToHex(run->run())) {
    return Status(ErrorCode::kNotFound, Cat("model ", request.model(), ": run ", CleanText(request.run(), 64),
                                            " has ended; the agent has run ", ToHex(run->run()), " now"));
  }
  if (const auto changes = run->ChangesOf(request.version())) {
    return changes::ToProto(run->layout(), run->run(), run->LabelOf(changes->version), *changes);
  }
  const auto newest = run->Newest();
  if (newest && request.version() != 0 && request.version() <= newest->manifest->held.version) {
    return Status(ErrorCode::kNotFound, Cat("model ", request.model(), ": what version ", request.version(),
                                            " changed is not known any more, or there was no such version"));
  }
  return Status(ErrorCode::kDeadline,
                Cat("model ", request.model(), ": version ", request.version(), " is not compared yet"));
}

}  // namespace

Result<v1::VersionChanges> AwaitChanges(const run::VersionCatalog& catalog, const v1::AwaitChangesRequest& request,
                                        const std::function<bool()>& gone) {
  const auto deadline =
      Clock::now() + std::chrono::milliseconds(std::min<uint64_t>(request.timeout_ms(), kLongestWait.count()));
  while (true) {
    Result<v1::VersionChanges> changes = Look(catalog, request);
    if (changes.status().code() != ErrorCode::kDeadline || Clock::now() >= deadline) return changes;
    if (gone()) return Status(ErrorCode::kCancelled, "the caller no longer waits");
    if (catalog.closed()) return Status(ErrorCode::kUnavailable, "the agent is draining");
    std::this_thread::sleep_for(kLook);
  }
}

Result<std::string> AwaitChangesJson(const run::VersionCatalog& catalog, std::string_view request,
                                     const std::function<bool()>& gone) {
  v1::AwaitChangesRequest asked;
  LS_RETURN_IF_ERROR(rpc::FromJson(request, &asked).WithContext("AWAIT_CHANGES"));
  LS_ASSIGN_OR_RETURN(const v1::VersionChanges answer, AwaitChanges(catalog, asked, gone));
  return rpc::Dump(rpc::ToJson(answer));
}

}  // namespace lockstep::serve
