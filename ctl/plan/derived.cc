#include "ctl/plan/derived.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "common/base/text.h"
#include "common/derive/derivation.h"
#include "common/model/manifest.h"
#include "ctl/output/output.h"
#include "ctl/output/table.h"

namespace lockstep::ctl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kMeasured{300};

// Bytes of the source that one thread derives from in a second, as the agent does: it hashes what it reads.
double MeasureSpeed(const derive::Derivation& derivation) {
  Bytes source;
  Bytes values;
  Bytes scales;
  uint64_t done = 0;
  const auto read = [&](const ByteRange& range, std::byte* to) {
    // Numbers of a weight's size, in bfloat16 as in the other types.
    for (; source.size() < range.bytes;
         source.push_back(std::byte(source.size() % 2 == 0 ? source.size() / 2 : 0x3c))) {
    }
    std::memcpy(to, source.data(), range.bytes);
    (void)model::BlockHash({to, range.bytes});
    done += range.bytes;
    return OkStatus();
  };
  const auto place = [&](const ByteRange& to_values, const ByteRange& to_scales) {
    values.resize(std::max<size_t>(values.size(), to_values.bytes));
    scales.resize(std::max<size_t>(scales.size(), to_scales.bytes));
    return derive::Derivation::Room{values.data(), scales.data()};
  };
  (void)derivation.Make(0, read, place);  // warms memory
  done = 0;
  const auto began = Clock::now();
  // Parts from all over the model: their shares of the time are those of the whole.
  size_t part = 0;
  const size_t step = std::max<size_t>(derivation.part_count() / 61, 1) | 1;
  do {
    (void)derivation.Make(part % derivation.part_count(), read, place);
    part += step;
  } while (Clock::now() - began < kMeasured);
  return static_cast<double>(done) / std::chrono::duration<double>(Clock::now() - began).count();
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", value);
  return text;
}

}  // namespace

Result<DerivedReport> ReportDerived(const std::vector<model::TensorMeta>& tensors, const std::string& config) {
  if (!nlohmann::json::accept(config)) return Status(ErrorCode::kBadData, "it is no JSON");
  const std::string request = Cat(R"({"derived": )", config, "}");
  LS_ASSIGN_OR_RETURN(const auto source, model::ModelLayout::Create(tensors, model::kDefaultBlockBytes,
                                                                    {{std::string(derive::kRequests), request}}));
  LS_ASSIGN_OR_RETURN(const auto derivations, derive::Derivation::All(*source));
  const derive::Derivation& derivation = *derivations.at(0);
  DerivedReport report{.format = derivation.format(),
                       .quantised = derivation.quantised(),
                       .bytes = derivation.layout()->data_bytes(),
                       .bytes_per_s = MeasureSpeed(derivation)};
  report.seconds = static_cast<double>(source->data_bytes()) / report.bytes_per_s;
  return report;
}

Json DerivedReport::ToJson() const {
  return {{"format", format},
          {"quantised", quantised},
          {"bytes", bytes},
          {"bytes_per_s", bytes_per_s},
          {"seconds", seconds}};
}

std::string DerivedReport::Text() const {
  return Cat("derived ", format, ": ", quantised, " weights, ", HumanBytes(bytes), "; the agent holds ",
             HumanBytes(2 * bytes), " more, and its deltas. One thread of this machine derives ",
             HumanBytes(static_cast<uint64_t>(bytes_per_s)), "/s of the source, all of it in ", Number(seconds),
             " s\n");
}

}  // namespace lockstep::ctl
