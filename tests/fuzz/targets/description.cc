// What an engine's rank says of its parameters and memory (raas_receiver/engine/placement/description/description.h).
#include "raas_receiver/engine/placement/description/description.h"

#include "raas_receiver/engine/placement/description/description_testing.h"
#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

void CheckBounds(const engine::RankDescription& description) {
  LS_FUZZ_RULE(description.rank < description.world && description.world <= engine::kMaxEngineRanks);
  for (const engine::EngineParameter& parameter : description.parameters) {
    const std::vector<uint64_t>& memories = description.memories;
    LS_FUZZ_RULE(parameter.memory < memories.size());
    LS_FUZZ_RULE(engine::CheckPlace(parameter, memories).ok());
    LS_FUZZ_RULE(parameter.offset + engine::ExtentBytes(parameter) <= memories[parameter.memory]);
    LS_FUZZ_RULE(engine::ViewOf(parameter).strides.size() == parameter.shape.size());
  }
}

Steps StepsOf(const engine::RankDescription& description) {
  if (description.parameters.size() != 1) return {};
  return {description.world > 2, description.parameters[0].offset != 8};
}

}  // namespace

std::vector<Bytes> Seeds() {
  std::vector<Bytes> seeds;
  for (const char* name : {"rank 0", "rank 1"}) {
    seeds.push_back(Copy(AsBytes(std::string_view(engine::FormatExample(name)))));
  }
  const std::string_view small = R"({"format":4,"rank":1,"world":2,"memories":[64],)"
                                 R"("parameters":[{"name":"a","dtype":"F32","shape":[2,3],"strides":[1,2],"offset":8,)"
                                 R"("padding":[{"at":[1,0],"shape":[1,3]}]}]})";
  seeds.push_back(Copy(AsBytes(small)));
  return seeds;
}

void TestInput(ByteView input) {
  const auto description = engine::ParseDescription(AsText(input));
  if (!description.ok()) return CheckRefusal(description.status(), {ErrorCode::kBadData});
  CheckBounds(*description);
  const std::string json = engine::ToJson(*description);
  const auto again = engine::ParseDescription(json);
  LS_FUZZ_RULE(again.ok() && engine::ToJson(*again) == json);
  Accepted(input, StepsOf(*description));
}

}  // namespace lockstep::fuzz
