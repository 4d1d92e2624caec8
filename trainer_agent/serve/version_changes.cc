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

// Of a model that has more, what a version changed is too long to tell.
constexpr size_t kMostTensors = 200'000;

// kDeadline: not compared yet. A model that is not open may be opened again in the run that is named.
Result<v1::VersionChanges> Look(const run::VersionCatalog& catalog, const v1::AwaitChangesRequest& request) {
  const auto run = catalog.Find(request.model());
  if (run == nullptr && !request.run().empty()) {
    return Status(ErrorCode::kDeadline, Cat("model ", CleanText(request.model(), 128), " is not open here yet"));
  }
  if (run == nullptr) return catalog.FindOpen(request.model()).status();
  if (!request.run().empty() && request.run() != ToHex(run->run())) {
    return Status(ErrorCode::kNotFound, Cat("model ", request.model(), ": run ", CleanText(request.run(), 64),
                                            " has ended; the agent has run ", ToHex(run->run()), " now"));
  }
  if (run->layout().tensors().size() > kMostTensors) {
    return Status(ErrorCode::kResourceExhausted, Cat("model ", request.model(), " has more than ", kMostTensors,
                                                     " tensors; what its versions change is in metrics alone"));
  }
  const auto newest = run->Newest();
  const Version held = newest ? newest->manifest->held.version : 0;
  const Version wanted = request.version() == 0 ? held : request.version();
  if (const auto changes = run->ChangesOf(wanted)) {
    return changes::ToProto(run->layout(), run->run(), run->LabelOf(wanted), *changes);
  }
  if (wanted == 0) return Status(ErrorCode::kDeadline, Cat("model ", request.model(), " has no version yet"));
  if (wanted <= held) {
    return Status(ErrorCode::kNotFound, Cat("model ", request.model(), ": what version ", wanted,
                                            " changed is not known any more, or there was no such version"));
  }
  return Status(ErrorCode::kDeadline, Cat("model ", request.model(), ": version ", wanted, " is not compared yet"));
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
