#include "trainer_agent/serve/served_wait.h"

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "common/base/text.h"
#include "common/model/label.h"
#include "common/model/model_name.h"
#include "common/rpc/message_json.h"
#include "trainer_agent/serve/agent_protos.h"

namespace lockstep::serve {
namespace {

using Clock = std::chrono::steady_clock;
using Reports = std::vector<ReceiverReport>;

constexpr std::chrono::milliseconds kLook{20};
constexpr size_t kMostTold = 64;  // receivers, in a text
constexpr size_t kMostLackingBytes = size_t{256} << 10;
constexpr int kMostNames = 1024;

Status Check(const v1::AwaitServedRequest& request) {
  LS_RETURN_IF_ERROR(model::CheckModelName(request.model()));
  LS_RETURN_IF_ERROR(model::CheckLabel(request.label()));
  if (request.version() != 0 && !request.label().empty()) {
    return {ErrorCode::kBadData, "a version and a label are asked for; give one of them"};
  }
  if ((request.receivers() > 0) + (request.engines() > 0) + (request.names_size() > 0) > 1) {
    return {ErrorCode::kBadData, "receivers, engines and names are asked for; give one of them"};
  }
  if (request.names_size() > kMostNames) {
    return {ErrorCode::kBadData, Cat(request.names_size(), " names are asked for; give at most ", kMostNames,
                                     ", how many, or \"*\" for all")};
  }
  return OkStatus();
}

bool Reached(const VersionRef& served, const VersionRef& wanted) {
  return served.run == wanted.run && served.version >= wanted.version;
}

bool Serves(const ReceiverReport& report, const VersionRef& wanted) {
  return report.presence == Presence::kConnected && Reached(report.served, wanted);
}

// A receiver that does not tell of its engines has one.
size_t EnginesServing(const ReceiverReport& report, const VersionRef& wanted) {
  if (report.engines.empty()) return Serves(report, wanted) ? 1 : 0;
  return std::ranges::count_if(report.engines, [&](const auto& engine) { return Reached(engine.served, wanted); });
}

bool Satisfied(const v1::AwaitServedRequest& request, const Reports& reports, const VersionRef& wanted) {
  size_t serving = 0;
  std::map<std::string, bool> all_serve;  // by name of receiver, and RECEIVER/ENGINE
  const auto add = [&](const std::string& name, bool serves) { all_serve.emplace(name, true).first->second &= serves; };
  for (const ReceiverReport& report : reports) {
    if (report.presence != Presence::kConnected) continue;
    const bool serves = Serves(report, wanted);
    add(kEveryReceiver, serves);
    serving += request.engines() > 0 ? EnginesServing(report, wanted) : serves ? 1 : 0;
    add(report.receiver.name, serves);
    for (const EngineReport& engine : report.engines)
      add(Cat(report.receiver.name, "/", engine.name), Reached(engine.served, wanted));
  }
  if (request.names().empty()) return serving >= request.receivers() + request.engines();
  return std::all_of(request.names().begin(), request.names().end(), [&](const std::string& name) {
    const auto at = all_serve.find(name);
    return at != all_serve.end() && at->second;
  });
}

std::string VersionText(const VersionRef& held, const RunId& run) {
  if (held.nothing()) return "nothing";
  const char* const of = held.run == run     ? ""
                         : held.run.IsZero() ? " of a run that it does not name"
                                             : " of another run";
  return Cat("version ", held.version, of);
}

std::string Tell(const ReceiverReport& report, const VersionRef& wanted) {
  const RunId& run = wanted.run;
  const bool there = report.presence == Presence::kConnected;
  std::string text = Cat("\"", report.receiver.name, there ? "\" serves " : "\" is gone, and served ",
                         VersionText(report.served, run));
  if (report.held != report.served) text += Cat(", holds ", VersionText(report.held, run));
  if (!report.last_error.empty()) text += Cat(", says: ", report.last_error);
  for (const EngineReport& engine : report.engines) {
    if (Reached(engine.served, wanted)) continue;
    text += Cat(", its engine \"", engine.name, "\" serves ", VersionText(engine.served, wanted.run));
    if (!engine.last_error.empty()) text += Cat(" (", engine.last_error, ")");
  }
  return text;
}

// Those that matter to the question, those that keep it waiting first; these in `answer`, too.
std::string TellAll(const v1::AwaitServedRequest& request, const Reports& reports, const VersionRef& wanted,
                    v1::AwaitServedResponse& answer) {
  std::set<std::string, std::less<>> unknown(request.names().begin(), request.names().end());
  const std::set<std::string, std::less<>> named = unknown;
  std::vector<std::string> waiting, serving;
  size_t lacking_bytes = 0;
  const auto add_lacking = [&](v1::ReceiverState state) {
    lacking_bytes += state.ByteSizeLong();
    if (lacking_bytes < kMostLackingBytes) *answer.add_lacking() = std::move(state);
  };
  for (const ReceiverReport& report : reports) {
    bool asked = named.empty();
    const auto is_asked = [&](const std::string& name) {
      asked = unknown.erase(name) > 0 || named.contains(name) || asked;
    };
    is_asked(report.receiver.name);
    if (report.presence == Presence::kConnected) is_asked(kEveryReceiver);
    for (const EngineReport& engine : report.engines) is_asked(Cat(report.receiver.name, "/", engine.name));
    if (!asked) continue;
    const bool serves = Serves(report, wanted);
    (serves ? serving : waiting).push_back(Tell(report, wanted));
    if (serves) continue;
    v1::ReceiverState state;
    ToProto(report, &state);
    add_lacking(std::move(state));
  }
  for (const std::string& name : unknown) {
    if (name == kEveryReceiver) {
      waiting.emplace_back("none is connected");
      continue;
    }
    v1::ReceiverState state;
    state.set_receiver(CleanText(name, 256));
    state.set_presence(v1::RECEIVER_PRESENCE_UNKNOWN);
    waiting.push_back(Cat("\"", state.receiver(), "\" is not known here"));
    add_lacking(std::move(state));
  }
  waiting.insert(waiting.end(), serving.begin(), serving.end());
  std::string text;
  for (size_t i = 0; i < std::min(waiting.size(), kMostTold); ++i) text += Cat("; ", waiting[i]);
  if (waiting.size() > kMostTold) text += Cat("; and ", waiting.size() - kMostTold, " more");
  return text;
}

v1::AwaitServedResponse Facts(run::ServedRun* run, const Reports& reports, const VersionRef& wanted) {
  v1::AwaitServedResponse facts;
  if (!wanted.run.IsZero()) facts.set_run(ToHex(wanted.run));
  facts.set_version(wanted.version);
  facts.set_newest_version(wanted.version);
  if (run != nullptr) {
    facts.set_model_bytes(run->layout().data_bytes());
    if (const auto newest = run->Newest()) facts.set_newest_version(newest->manifest->held.version);
    if (!wanted.nothing()) {
      const run::DeltaStore::StepFacts step = run->deltas().StepTo(wanted.version);
      facts.set_delta_bytes(step.data_bytes);
      facts.set_density(step.density);
    }
  }
  facts.set_oldest_served(facts.newest_version());
  for (const ReceiverReport& report : reports) {
    if (report.presence != Presence::kConnected) continue;
    facts.set_receivers(facts.receivers() + 1);
    facts.set_serving(facts.serving() + (Serves(report, wanted) ? 1 : 0));
    const Version served = report.served.run == wanted.run ? report.served.version : 0;
    facts.set_oldest_served(std::min(facts.oldest_served(), served));
  }
  return facts;
}

v1::AwaitServedResponse NotServed(const v1::AwaitServedRequest& request, const Reports& reports,
                                  const VersionRef& wanted, v1::AwaitServedResponse facts) {
  const std::string what =
      !request.label().empty() && wanted.nothing() ? Cat("label \"", request.label(), "\", which no version has yet,")
      : !request.label().empty() ? Cat("label \"", request.label(), "\", version ", wanted.version, ",")
      : wanted.nothing()         ? "its first version"
                                 : Cat("version ", wanted.version);
  const int names = request.names_size();
  const std::string by = names == 1 && request.names(0) == kEveryReceiver ? "every connected receiver"
                         : names > 0                                      ? Cat(names, " named receivers")
                         : request.engines() > 0                          ? Cat(request.engines(), " engines")
                                                                          : Cat(request.receivers(), " receivers");
  const std::string told = TellAll(request, reports, wanted, facts);
  facts.set_text(Cat("model ", request.model(), ": ", what, " is not served by ", by, told));
  return facts;
}

}  // namespace

Result<v1::AwaitServedResponse> AwaitServed(const run::VersionCatalog& catalog, ReceiverReports& reports,
                                            v1::AwaitServedRequest request, const std::function<bool()>& gone) {
  LS_RETURN_IF_ERROR(Check(request));
  if (request.receivers() + request.engines() == 0 && request.names().empty()) request.add_names(kEveryReceiver);
  VersionRef wanted{{}, request.version()};
  bool any_run = request.run().empty();  // that of the first look is kept
  if (!any_run) {
    LS_ASSIGN_OR_RETURN(wanted.run.bytes, HexDecode16(request.run()));
  }
  const auto deadline =
      Clock::now() + std::chrono::milliseconds(std::min<uint64_t>(request.timeout_ms(), kLongestWait.count()));
  while (true) {
    const auto run = catalog.Find(request.model());
    if (run == nullptr && any_run) {
      return Status(ErrorCode::kNotFound, Cat("model ", request.model(), " is not open here; start its trainer first"));
    }
    if (run != nullptr && !any_run && run->run() != wanted.run) {
      return Status(ErrorCode::kState, Cat("model ", request.model(), ": run ", ToHex(wanted.run),
                                           " has ended; the agent has run ", ToHex(run->run()), " now"));
    }
    // An agent that was restarted may get the run back.
    if (run != nullptr) {
      any_run = false;
      wanted.run = run->run();
      if (!request.label().empty()) wanted.version = run->NewestLabelled(request.label());
      if (const auto newest = run->Newest(); newest && request.label().empty() && wanted.nothing()) {
        wanted.version = newest->manifest->held.version;
      }
    }
    const Reports known = reports.Of(request.model());
    if (run != nullptr && !wanted.nothing() && Satisfied(request, known, wanted)) {
      v1::AwaitServedResponse facts = Facts(run.get(), known, wanted);
      facts.set_served(true);
      return facts;
    }
    if (gone()) return Status(ErrorCode::kCancelled, "the caller no longer waits");
    if (catalog.closed()) return Status(ErrorCode::kUnavailable, "the agent is draining");
    if (Clock::now() >= deadline) return NotServed(request, known, wanted, Facts(run.get(), known, wanted));
    std::this_thread::sleep_for(kLook);
  }
}

Result<std::string> AwaitServedJson(const run::VersionCatalog& catalog, ReceiverReports& reports,
                                    std::string_view request, const std::function<bool()>& gone) {
  v1::AwaitServedRequest asked;
  LS_RETURN_IF_ERROR(rpc::FromJson(request, &asked).WithContext("AWAIT_SERVED"));
  LS_ASSIGN_OR_RETURN(const v1::AwaitServedResponse answer, AwaitServed(catalog, reports, asked, gone));
  return rpc::Dump(rpc::ToJson(answer));
}

}  // namespace lockstep::serve
