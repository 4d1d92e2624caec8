#include "common/base/text.h"
#include "ctl/timeline/joined_timeline.h"
#include "kernels/hash.h"

namespace lockstep::ctl {
namespace {

using Entry = JoinedTimeline::Entry;
using OneVersion = JoinedTimeline::OneVersion;

constexpr int kInternal = 1;  // the kind of a span that is no call

std::string HexOf(uint64_t number) {
  std::array<uint8_t, 8> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(number >> (56 - 8 * i));
  return HexEncode(bytes);
}

// The same whenever the same is asked for again: backends keep one trace of a version, however often it is sent.
std::string IdOf(std::string_view text) {
  return HexOf(Hash64(text.data(), text.size()) | 1);  // zero is none
}

std::string TraceId(const OneVersion& version) {
  const std::string name = Cat(Hex(version.run), " ", version.version, " ", version.model);
  return IdOf(name) + IdOf(name + " again");
}

Json Text(const char* key, std::string_view value) {
  return {{"key", key}, {"value", {{"stringValue", CleanText(value, 1024)}}}};
}

// Whole numbers are text in OTLP's JSON, and have a sign: no version or size comes near that.
Json Number(const char* key, uint64_t value) {
  return {{"key", key}, {"value", {{"intValue", Cat(value)}}}};
}

Json Span(const std::string& trace, std::string_view id, std::string_view name, int64_t begin, int64_t end,
          Json attributes) {
  return {{"traceId", trace},
          {"spanId", IdOf(Cat(trace, " ", id))},
          {"name", CleanText(name, 64)},
          {"kind", kInternal},
          {"startTimeUnixNano", Cat(begin)},
          {"endTimeUnixNano", Cat(end)},
          {"attributes", std::move(attributes)}};
}

}  // namespace

Json OtlpOf(const JoinedTimeline& timeline) {
  std::vector<Json> spans(timeline.daemons.size(), Json::array());  // by daemon
  for (const OneVersion& version : timeline.versions) {
    const std::string trace = TraceId(version);
    const Json of_version = {Text("lockstep.model", version.model), Text("lockstep.run", Hex(version.run)),
                             Number("lockstep.version", version.version)};
    Json whole = Span(trace, "version", Cat("version ", version.version), version.begin_unix_ns, version.end_unix_ns,
                      of_version);
    const std::string parent = whole["spanId"];
    spans[0].push_back(std::move(whole));
    for (const size_t at : version.entries) {
      const Entry& entry = timeline.entries[at];
      Json attributes = of_version;
      if (entry.span.bytes() != 0) attributes.push_back(Number("lockstep.bytes", entry.span.bytes()));
      if (entry.span.transfer() != 0) attributes.push_back(Text("lockstep.transfer", HexOf(entry.span.transfer())));
      attributes.push_back(Number("lockstep.lane", entry.span.lane()));
      const std::string id = Cat(entry.daemon, " ", entry.span.span(), " ", entry.span.begin_unix_ns(), " ",
                                 entry.span.lane(), " ", entry.span.transfer());
      Json span = Span(trace, id, entry.span.span(), entry.span.begin_unix_ns(), entry.span.end_unix_ns(),
                       std::move(attributes));
      span["parentSpanId"] = parent;
      spans[entry.daemon].push_back(std::move(span));
    }
  }
  Json resources = Json::array();
  for (size_t daemon = 0; daemon < spans.size(); ++daemon) {
    const JoinedTimeline::Daemon& facts = timeline.daemons[daemon];
    const std::string_view name = std::string_view(facts.title).substr(0, facts.title.find(' '));
    resources.push_back(
        {{"resource", {{"attributes", {Text("service.name", name), Text("service.instance.id", facts.address)}}}},
         {"scopeSpans", {{{"scope", {{"name", "lockstep"}}}, {"spans", std::move(spans[daemon])}}}}});
  }
  return {{"resourceSpans", std::move(resources)}};
}

}  // namespace lockstep::ctl
