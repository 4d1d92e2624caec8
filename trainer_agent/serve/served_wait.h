// A trainer that waits until its fleet serves a version: what receivers report, held against what it asks for.
#pragma once

#include <functional>

#include "common/wire/rank_messages.h"
#include "trainer_agent/run/version_catalog.h"
#include "trainer_agent/serve/receiver_reports.h"

namespace lockstep::serve {

// Waits until the version of `question` is served by the receivers that it asks for: connected, and with an engine that
// serves it or a newer version of its run, as a fleet that has gone on does. Answers with the version and what it took.
// A label stands for the newest version that has it, also one that gets it meanwhile. A name stands for all processes
// that have it, one at least.
//
// kDeadline: not within the question's timeout; the text says what each receiver serves and holds, its last error, and
// which are gone, and `lacking` has the same of those that lack the version (run/FORMAT.md). kState: the model has
// another run by now. kCancelled once `gone` says that the caller no longer waits.
Result<wire::ServedBody> AwaitServed(const run::VersionCatalog& catalog, ReceiverReports& reports,
                                     const wire::ServedQuestion& question, const std::function<bool()>& gone,
                                     std::string* lacking);

}  // namespace lockstep::serve
