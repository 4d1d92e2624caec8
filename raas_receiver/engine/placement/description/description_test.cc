// Descriptions as text: what is read, what is written, what is refused and where.
#include "raas_receiver/engine/placement/description/description.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "raas_receiver/engine/placement/description/description_testing.h"

namespace lockstep::engine {
namespace {

using Json = nlohmann::json;

RankDescription Parse(const std::string& text) {
  Result<RankDescription> description = ParseDescription(text);
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  return *std::move(description);
}

// Rank 1 of the example with the member at `pointer` replaced.
std::string With(const std::string& pointer, const Json& value, const std::string& example = "rank 1") {
  Json description = Json::parse(FormatExample(example));
  description[Json::json_pointer(pointer)] = value;
  return description.dump();
}

std::string Without(const std::string& object, const std::string& key) {
  Json description = Json::parse(FormatExample("rank 1"));
  REQUIRE(description[Json::json_pointer(object)].erase(key) == 1);
  return description.dump();
}

void CheckRefused(const std::string& text, const std::string& where, const std::string& what) {
  const Result<RankDescription> description = ParseDescription(text);
  REQUIRE(description.status().code() == ErrorCode::kBadData);
  const std::string& message = description.status().message();
  CAPTURE(message);
  CHECK(message.find("description: " + where) == 0);
  CHECK(message.find(what) != std::string::npos);
}

TEST_CASE("The format's example is read as it is written") {
  const RankDescription rank = Parse(FormatExample("rank 1"));
  CHECK(rank.rank == 1);
  CHECK(rank.world == 2);
  CHECK(rank.memories == std::vector<uint64_t>{128});
  REQUIRE(rank.parameters.size() == 5);
  CHECK(rank.parameters[0].padding == std::vector<Padding>{{.at = {4, 0}, .shape = {2, 4}}});
  CHECK(rank.parameters[0].strides == layout::Extents{4, 1});
  CHECK(rank.parameters[2].offset == 56);
  CHECK(rank.parameters[2].slices[1] ==
        Slice{.tensor = "model.k_proj.weight", .from = {1, 0}, .shape = {1, 4}, .at = {2, 0}});
  CHECK(rank.parameters[3].dtype == model::DType::kBF16);
  CHECK(rank.parameters[3].strides == layout::Extents{1, 4});
  CHECK(rank.parameters[4].shape == layout::Extents{2, 4, 1});
}

TEST_CASE("A description that is written and read again is the same, whatever the order of its keys") {
  for (const char* name : {"rank 0", "rank 1"}) {
    const std::string text = FormatExample(name);
    const std::string written = ToJson(Parse(text));
    CHECK(ToJson(Parse(written)) == written);
    CHECK(ToJson(Parse(Json::parse(text).dump())) == written);
  }
  const RankDescription rank = Parse(ToJson(Parse(FormatExample("rank 1"))));
  CHECK_FALSE(rank.layout);
  CHECK(rank.parameters[0].slices[0].from == layout::Extents{6, 0});
  CHECK(rank.parameters[0].padding.size() == 1);
  CHECK(rank.parameters[3].strides == layout::Extents{1, 4});
  RankDescription other = rank;
  other.layout = RandomId<LayoutDigest>();
  other.memories.push_back(16);
  other.parameters[1].memory = 1;
  other.parameters[1].offset = 8;
  CHECK(Parse(ToJson(other)).layout == other.layout);
  CHECK(Parse(ToJson(other)).parameters[1].memory == 1);
}

TEST_CASE("Unknown keys are refused by name, in every object") {
  for (const char* object : {"/", "/parameters/0/", "/parameters/0/slices/0/", "/parameters/0/padding/0/"}) {
    CheckRefused(With(std::string(object) + "strids", 1), "", "unknown key \"strids\"");
  }
}

TEST_CASE("Missing keys are refused by name") {
  for (const char* key : {"format", "rank", "world", "memories", "parameters"}) {
    CheckRefused(Without("", key), "", std::string("\"") + key + "\" is missing");
  }
  CheckRefused(Without("/parameters/2", "offset"), "parameters[2]: ", "\"offset\" is missing");
  CheckRefused(Without("/parameters/2/slices/1", "at"), "parameters[2].slices[1]: ", "\"at\" is missing");
  CheckRefused(Without("/parameters/0/padding/0", "shape"), "parameters[0].padding[0]: ", "\"shape\" is missing");
}

TEST_CASE("Values of a wrong type are refused with their place") {
  CheckRefused("[]", "", "must be an object");
  CheckRefused(With("/format", 2), "", "is of format 2; this build reads format 4");
  CheckRefused(With("/format", 5), "", "is of format 5");
  CheckRefused(With("/layout", 7), "layout: ", "must be a string");
  CheckRefused(With("/layout", "f00"), "layout: ", "expected 32 hex digits, got \"f00\"");
  CheckRefused(With("/rank", -1), "rank: ", "must be a whole number");
  CheckRefused(With("/rank", 1.0), "rank: ", "must be a whole number");
  CheckRefused(With("/world", uint64_t{1} << 32), "world: ", "32 bits");
  CheckRefused(With("/memories", 1), "memories: ", "must be an array");
  CheckRefused(With("/memories/0", {{"bytes", 128}}), "memories[0]: ", "must be a whole number");
  CheckRefused(With("/parameters/1", 1), "parameters[1]: ", "must be an object");
  CheckRefused(With("/parameters/1/name", ""), "parameters[1].name: ", "must be 1 to 1024 bytes");
  CheckRefused(With("/parameters/1/name", "a\nb"), "parameters[1].name: ", "control characters");
  CheckRefused(With("/parameters/1/dtype", "bfloat16"), "parameters[1].dtype: ", "unknown dtype \"bfloat16\"");
  CheckRefused(With("/parameters/1/dtype", "F4"), "parameters[1].dtype: ", "packs several elements");
  CheckRefused(With("/parameters/1/shape", {4, -1}), "parameters[1].shape: ", "not negative");
  CheckRefused(With("/parameters/1/shape", Json(std::vector<int>(17, 1))), "parameters[1].shape: ", "17 dimensions");
  CheckRefused(With("/parameters/1/slices", Json::array()),
               "parameters[1]: ", "neither slices nor padding give elements of \"norm.weight\"");
  CheckRefused(With("/parameters/1/slices", 3), "parameters[1].slices: ", "must be an array");
}

TEST_CASE("Ranks beyond their limits are refused") {
  CheckRefused(With("/rank", 2), "", "rank 2 of 2");
  CheckRefused(With("/world", 0), "", "rank 1 of 0");
  CheckRefused(With("/world", 4097), "", "the limit is 4096");
}

TEST_CASE("Memories without bytes, or of too many, are refused") {
  CheckRefused(With("/memories/0", 0), "memories[0]: ", "has 0 bytes");
  CheckRefused(With("/memories/0", ~uint64_t{0}), "memories[0]: ", "has 18446744073709551615 bytes");
}

TEST_CASE("Parameters that leave their memory, or whose elements overlap, are refused") {
  CheckRefused(With("/parameters/4/offset", 113), "parameters[4]: ", "leaves memory 0 of 128 bytes");
  Parse(With("/parameters/4/offset", 112));
  CheckRefused(With("/parameters/4/offset", ~uint64_t{0}), "parameters[4]: ", "leaves memory 0");
  CheckRefused(With("/parameters/4/memory", 1), "parameters[4]: ", "memory 1 of 1");
  CheckRefused(With("/parameters/1/shape", {uint64_t{1} << 23, uint64_t{1} << 22}), "parameters[1]: ", "larger than");
  CheckRefused(With("/parameters/1/shape", {uint64_t{1} << 45}), "parameters[1].shape: ", "more than any tensor has");
  CheckRefused(With("/parameters/3/strides", {uint64_t{1} << 44, uint64_t{1} << 44}), "parameters[3]: ", "leaves");
  CheckRefused(With("/parameters/3/strides", {1}), "parameters[3]: ", "1 strides for 2 dimensions");
  CheckRefused(With("/parameters/3/strides", {1, 3}), "parameters[3]: ", "overlap or interleave");
  CheckRefused(With("/parameters/3/strides", {0, 1}), "parameters[3]: ", "overlap or interleave");
  CheckRefused(With("/parameters/4/name", "o_proj.weight"), "parameters[4]: ", "\"o_proj.weight\" is given twice");
}

TEST_CASE("Slices and padding that leave their parameter are refused") {
  const std::string slice = "/parameters/2/slices/1";
  CheckRefused(With(slice + "/at", {4, 0}), "parameters[2].slices[1]: ", "leaves the parameter of shape [4, 4]");
  CheckRefused(With(slice + "/at", {uint64_t{1} << 44, 0}), "parameters[2].slices[1]: ", "in dimension 0");
  CheckRefused(With(slice + "/shape", {1, 5}), "parameters[2].slices[1]: ", "in dimension 1");
  CheckRefused(With(slice + "/at", {2}), "parameters[2].slices[1]: ", "2 dimensions of the parameter");
  CheckRefused(With(slice + "/from", {1}), "parameters[2].slices[1]: ", "differ in dimensions");
  CheckRefused(With(slice + "/tensor", ""), "parameters[2].slices[1].tensor: ", "must be 1 to 1024 bytes");
  CheckRefused(With("/parameters/0/padding/0/at", {5, 0}), "parameters[0].padding[0]: ", "leaves the parameter");
  CheckRefused(With("/parameters/0/padding/0/shape", {2}), "parameters[0].padding[0]: ", "the dimensions");
}

TEST_CASE("A description that ends early is refused, wherever it ends") {
  const std::string text = ToJson(Parse(FormatExample("rank 1")));
  for (size_t bytes = 0; bytes < text.size(); ++bytes) {
    CAPTURE(bytes);
    REQUIRE(ParseDescription(text.substr(0, bytes)).status().code() == ErrorCode::kBadData);
  }
}

TEST_CASE("A description with random bytes in it is read or refused, and never hurts") {
  const std::string text = ToJson(Parse(FormatExample("rank 1")));
  std::mt19937_64 random(7);
  for (int i = 0; i < 20'000; ++i) {
    std::string broken = text;
    for (uint64_t count = random() % 4 + 1; count > 0; --count) {
      broken[random() % broken.size()] = "0123456789{}[],:\"-e.\\x"[random() % 22];
    }
    const Result<RankDescription> description = ParseDescription(broken);
    if (description.ok()) REQUIRE(ToJson(Parse(ToJson(*description))) == ToJson(*description));
  }
}

TEST_CASE("Arrays nested a million deep are refused") {
  CheckRefused(std::string(1'000'000, '['), "", "nested deeper than 64");
  CheckRefused("{\"format\": " + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}", "",
               "nested deeper than 64");
}

}  // namespace
}  // namespace lockstep::engine
