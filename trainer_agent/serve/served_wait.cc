#include "trainer_agent/serve/served_wait.h"

#include <algorithm>
#include <thread>

#include "common/base/text.h"

namespace lockstep::serve {
namespace {

using Clock = std::chrono::steady_clock;
using Reports = std::vector<ReceiverReport>;

constexpr std::chrono::milliseconds kLook{20};
constexpr size_t kMostTold = 64;  // receivers, in an error

bool Serves(const ReceiverReport& report, const Held& wanted) {
  return report.presence == Presence::kConnected && report.served.run == wanted.run &&
         report.served.version >= wanted.version;
}

size_t CountServing(const Reports& reports, const Held& wanted) {
  return static_cast<size_t>(std::count_if(reports.begin(), reports.end(),
                                           [&](const ReceiverReport& report) { return Serves(report, wanted); }));
}

Reports OfName(const Reports& reports, const std::string& name) {
  Reports named;
  std::copy_if(reports.begin(), reports.end(), std::back_inserter(named),
               [&](const ReceiverReport& report) { return report.receiver.name == name; });
  return named;
}

bool Satisfied(const buffer::ServedQuestion& question, const Reports& reports, const Held& wanted) {
  if (question.names.empty()) return CountServing(reports, wanted) >= question.receivers;
  return std::all_of(question.names.begin(), question.names.end(), [&](const std::string& name) {
    const Reports named = OfName(reports, name);
    return !named.empty() && CountServing(named, wanted) == named.size();
  });
}

std::string VersionText(const Held& held, const RunId& run) {
  if (held.nothing()) return "nothing";
  return Cat("version ", held.version, held.run == run ? "" : " of another run");
}

std::string Tell(const ReceiverReport& report, const RunId& run) {
  const bool there = report.presence == Presence::kConnected;
  std::string text = Cat("\"", report.receiver.name, there ? "\" serves " : "\" is gone, and served ",
                         VersionText(report.served, run));
  if (report.held != report.served) text += Cat(", holds ", VersionText(report.held, run));
  if (!report.last_error.empty()) text += Cat(", says: ", report.last_error);
  return text;
}

// Those that matter to the question, those that keep it waiting first.
std::string TellAll(const buffer::ServedQuestion& question, Reports reports, const Held& wanted) {
  std::string text;
  for (const std::string& name : question.names) {
    if (OfName(reports, name).empty()) text += Cat("; \"", name, "\" is not known here");
  }
  if (!question.names.empty()) {
    std::erase_if(reports, [&](const ReceiverReport& report) {
      return std::find(question.names.begin(), question.names.end(), report.receiver.name) == question.names.end();
    });
  }
  std::stable_partition(reports.begin(), reports.end(),
                        [&](const ReceiverReport& report) { return !Serves(report, wanted); });
  for (size_t i = 0; i < std::min(reports.size(), kMostTold); ++i) text += Cat("; ", Tell(reports[i], wanted.run));
  if (reports.size() > kMostTold) text += Cat("; and ", reports.size() - kMostTold, " more");
  return text;
}

Status NotServed(const buffer::ServedQuestion& question, const Reports& reports, const Held& wanted) {
  const std::string what = question.label.empty() ? Cat("version ", question.version)
                           : wanted.nothing()     ? Cat("label \"", question.label, "\", which no version has yet,")
                                              : Cat("label \"", question.label, "\", version ", wanted.version, ",");
  const size_t asked = question.names.empty() ? question.receivers : question.names.size();
  return {ErrorCode::kDeadline,
          Cat("model ", question.model, ": ", what, " is not served by ", asked, question.names.empty() ? "" : " named",
              " receivers", TellAll(question, reports, wanted))};
}

}  // namespace

Result<Version> AwaitServed(const store::VersionCatalog& catalog, ReceiverReports& reports,
                            const buffer::ServedQuestion& question, const std::function<bool()>& gone) {
  const auto deadline = Clock::now() + question.timeout;
  while (true) {
    const auto run = catalog.Find(question.model);
    if (run != nullptr && run->run() != question.run) {
      return Status(ErrorCode::kState, Cat("model ", question.model, ": run ", ToHex(question.run), " has ended"));
    }
    // An agent that was restarted may get the run back.
    const Version labelled = run == nullptr ? 0 : run->NewestLabelled(question.label);
    const Version version = question.label.empty() ? question.version : labelled;
    const Held wanted{question.run, version};
    const Reports known = reports.Of(question.model);
    if (version != 0 && Satisfied(question, known, wanted)) return version;
    if (gone()) return Status(ErrorCode::kCancelled, "nobody waits any more");
    if (Clock::now() >= deadline) return NotServed(question, known, wanted);
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace lockstep::serve
