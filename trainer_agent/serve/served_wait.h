// Whether a fleet serves a version: what receivers report, held against what a caller asks for.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "proto/lockstep/v1/agent.pb.h"
#include "trainer_agent/run/version_catalog.h"
#include "trainer_agent/serve/receiver_reports.h"

namespace lockstep::serve {

inline constexpr std::chrono::milliseconds kLongestWait{10'000};

// Waits until the version of `request` is served as the request says: by receivers that are connected, with engines
// that serve it or a newer version of its run, as a fleet that has gone on does. A label stands for the newest version
// that has it, also one that gets it meanwhile. A name stands for all processes that have it, one at least.
//
// The answer says after the request's timeout, or kLongestWait, that the version is not served. kBadData: the request
// breaks a rule. kNotFound: no run is named, and the model is not open. kState: the model has another run by now.
// kUnavailable: the agent drains. kCancelled once `gone` says that the caller no longer waits.
Result<v1::AwaitServedResponse> AwaitServed(const run::VersionCatalog& catalog, ReceiverReports& reports,
                                            v1::AwaitServedRequest request, const std::function<bool()>& gone);

// AwaitServed with request and answer as JSON (common/rpc/message_json.h), for trainers, which have no protos.
Result<std::string> AwaitServedJson(const run::VersionCatalog& catalog, ReceiverReports& reports,
                                    std::string_view request, const std::function<bool()>& gone);

}  // namespace lockstep::serve
