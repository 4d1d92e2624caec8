#include "trainer_agent/serve/served_wait.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <thread>

#include "common/base/text.h"

namespace lockstep::serve {
namespace {

using Clock = std::chrono::steady_clock;
using Reports = std::vector<ReceiverReport>;

constexpr std::chrono::milliseconds kLook{20};
constexpr size_t kMostTold = 64;  // receivers, in an error
constexpr size_t kMostLackingBytes = size_t{256} << 10;

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

bool Satisfied(const wire::ServedQuestion& question, const Reports& reports, const VersionRef& wanted) {
  size_t serving = 0;
  std::map<std::string, bool> all_serve;  // by name of receiver, and RECEIVER/ENGINE
  const auto add = [&](const std::string& name, bool serves) { all_serve.emplace(name, true).first->second &= serves; };
  for (const ReceiverReport& report : reports) {
    if (report.presence != Presence::kConnected) continue;
    const bool serves = Serves(report, wanted);
    add(wire::kEveryReceiver, serves);
    serving += question.of_engines ? EnginesServing(report, wanted) : serves ? 1 : 0;
    add(report.receiver.name, serves);
    for (const EngineReport& engine : report.engines)
      add(Cat(report.receiver.name, "/", engine.name), Reached(engine.served, wanted));
  }
  if (question.names.empty()) return serving >= question.receivers;
  return std::all_of(question.names.begin(), question.names.end(), [&](const std::string& name) {
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

// Without what separates fields and lines.
std::string Field(std::string_view text) {
  std::string field = CleanText(text);
  std::ranges::replace_if(
      field, [](char c) { return c == '\n' || c == '\t'; }, ' ');
  return field;
}

// A line of run/FORMAT.md, and one for each of its engines.
std::string Line(const ReceiverReport& report) {
  const auto held = [](const VersionRef& version) { return Cat(ToHex(version.run), " ", version.version); };
  const char* const presence = report.presence == Presence::kConnected ? "connected"
                               : report.presence == Presence::kGone    ? "gone"
                                                                       : "unknown";
  std::string line = Cat(Field(report.receiver.name), "\t", presence, "\t", held(report.held), "\t",
                         held(report.served), "\t", Field(report.last_error), "\n");
  for (const EngineReport& engine : report.engines) {
    line += Cat("\t", Field(engine.name), "\t", held(engine.served), "\t", Field(engine.last_error), "\n");
  }
  return line;
}

// Those that matter to the question, those that keep it waiting first; these in `lacking`, too.
std::string TellAll(const wire::ServedQuestion& question, const Reports& reports, const VersionRef& wanted,
                    std::string& lacking) {
  std::set<std::string, std::less<>> unknown(question.names.begin(), question.names.end());
  const std::set<std::string, std::less<>> named = unknown;
  std::vector<std::string> waiting, serving;
  for (const ReceiverReport& report : reports) {
    bool asked = named.empty();
    const auto is_asked = [&](const std::string& name) {
      asked = unknown.erase(name) > 0 || named.contains(name) || asked;
    };
    is_asked(report.receiver.name);
    if (report.presence == Presence::kConnected) is_asked(wire::kEveryReceiver);
    for (const EngineReport& engine : report.engines) is_asked(Cat(report.receiver.name, "/", engine.name));
    if (!asked) continue;
    const bool serves = Serves(report, wanted);
    (serves ? serving : waiting).push_back(Tell(report, wanted));
    if (!serves && lacking.size() < kMostLackingBytes) lacking += Line(report);
  }
  for (const std::string& name : unknown) {
    if (name == wire::kEveryReceiver) {
      waiting.emplace_back("none is connected");
      continue;
    }
    waiting.push_back(Cat("\"", CleanText(name, 256), "\" is not known here"));
    if (lacking.size() < kMostLackingBytes) lacking += Line({.receiver = {.name = CleanText(name, 256)}});
  }
  waiting.insert(waiting.end(), serving.begin(), serving.end());
  std::string text;
  for (size_t i = 0; i < std::min(waiting.size(), kMostTold); ++i) text += Cat("; ", waiting[i]);
  if (waiting.size() > kMostTold) text += Cat("; and ", waiting.size() - kMostTold, " more");
  return text;
}

wire::ServedBody Facts(run::ServedRun& run, const Reports& reports, const VersionRef& wanted) {
  const std::optional<run::ServedVersion> newest = run.Newest();
  const run::DeltaStore::StepFacts step = run.deltas().StepTo(wanted.version);
  wire::ServedBody facts{.version = wanted.version,
                         .model_bytes = run.layout().data_bytes(),
                         .delta_bytes = step.data_bytes,
                         .density = step.density,
                         .newest_version = newest ? newest->manifest->held.version : wanted.version};
  facts.oldest_served = facts.newest_version;
  for (const ReceiverReport& report : reports) {
    if (report.presence != Presence::kConnected) continue;
    ++facts.receivers;
    facts.serving += Serves(report, wanted) ? 1 : 0;
    const Version served = report.served.run == wanted.run ? report.served.version : 0;
    facts.oldest_served = std::min(facts.oldest_served, served);
  }
  return facts;
}

Status NotServed(const wire::ServedQuestion& question, const Reports& reports, const VersionRef& wanted,
                 std::string& lacking) {
  const std::string what = question.label.empty() ? Cat("version ", question.version)
                           : wanted.nothing()     ? Cat("label \"", question.label, "\", which no version has yet,")
                                              : Cat("label \"", question.label, "\", version ", wanted.version, ",");
  const std::string by = question.names == std::vector<std::string>{wire::kEveryReceiver} ? "every connected receiver"
                         : question.names.empty()
                             ? Cat(question.receivers, question.of_engines ? " engines" : " receivers")
                             : Cat(question.names.size(), " named receivers");
  return {ErrorCode::kDeadline, Cat("model ", question.model, ": ", what, " is not served by ", by,
                                    TellAll(question, reports, wanted, lacking))};
}

}  // namespace

Result<wire::ServedBody> AwaitServed(const run::VersionCatalog& catalog, ReceiverReports& reports,
                                     const wire::ServedQuestion& question, const std::function<bool()>& gone,
                                     std::string* lacking) {
  const auto deadline = Clock::now() + question.timeout;
  while (true) {
    const auto run = catalog.Find(question.model);
    if (run != nullptr && run->run() != question.run) {
      return Status(ErrorCode::kState, Cat("model ", question.model, ": run ", ToHex(question.run),
                                           " has ended; the agent has run ", ToHex(run->run()), " now"));
    }
    // An agent that was restarted may get the run back.
    const Version labelled = run == nullptr ? 0 : run->NewestLabelled(question.label);
    const Version version = question.label.empty() ? question.version : labelled;
    const VersionRef wanted{question.run, version};
    const Reports known = reports.Of(question.model);
    if (run != nullptr && version != 0 && Satisfied(question, known, wanted)) return Facts(*run, known, wanted);
    if (gone()) return Status(ErrorCode::kCancelled, "the caller no longer waits");
    if (Clock::now() >= deadline) return NotServed(question, known, wanted, *lacking);
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace lockstep::serve
