#include "common/json/json_reader.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"

namespace lockstep::json {
namespace {

const JsonPath kDocument{.key = "letter"};

struct Stamp {
  std::string motif;
  uint32_t value = 0;
};

struct Letter {
  uint64_t weight = 0;
  bool registered = false;
  std::vector<Stamp> stamps;
};

Status ReadStamp(const Json& json, const JsonPath& path, Stamp& stamp) {
  LS_ASSIGN_OR_RETURN(ObjectReader object, ObjectReader::Open(json, path));
  LS_RETURN_IF_ERROR(object.Read("motif", stamp.motif));
  LS_RETURN_IF_ERROR(object.Read("value", stamp.value));
  return object.Finish();
}

Result<Letter> Parse(std::string_view text) {
  LS_ASSIGN_OR_RETURN(const Json json, ParseJson(text, kDocument, 1 << 20));
  LS_ASSIGN_OR_RETURN(ObjectReader object, ObjectReader::Open(json, kDocument));
  Letter letter;
  LS_RETURN_IF_ERROR(object.Read("weight", letter.weight));
  LS_RETURN_IF_ERROR(object.ReadOptional("registered", letter.registered));
  LS_RETURN_IF_ERROR(object.ReadList("stamps", 2, letter.stamps, ReadStamp));
  LS_RETURN_IF_ERROR(object.Finish());
  return letter;
}

std::string Refusal(std::string_view text) {
  const Result<Letter> letter = Parse(text);
  REQUIRE_THAT(letter, FailsWith(ErrorCode::kBadData, "letter: "));
  return letter.status().message();
}

template <typename T>
Status ReadAs(const Json& json) {
  T value{};
  return ReadValue(json, kDocument, value);
}

TEST_CASE("Members are read in any order, optional ones where they are there") {
  const auto letter = Parse(R"({"stamps": [{"value": 5, "motif": "fern"}], "weight": 20})");
  REQUIRE(letter.ok());
  CHECK(letter->weight == 20);
  CHECK_FALSE(letter->registered);
  REQUIRE(letter->stamps.size() == 1);
  CHECK(letter->stamps[0].motif == "fern");
  CHECK(letter->stamps[0].value == 5);
}

TEST_CASE("An error names the document and the place in it") {
  CHECK(Refusal("[]") == "letter: must be an object");
  CHECK(Refusal(R"({"weight": -1})") == "letter: weight: must be a whole number of 64 bits, not negative");
  CHECK(Refusal(R"({"weight": 1, "stamps": [{}, 7]})") == "letter: stamps[0]: \"motif\" is missing");
  CHECK(Refusal(R"({"weight": 1, "stamps": [{"motif": "fern", "value": "5"}]})") ==
        "letter: stamps[0].value: must be a whole number of 32 bits, not negative");
  CHECK(Refusal(R"({"weight": 1, "stamps": [0, 0, 0]})") == "letter: stamps: has 3 elements; the limit is 2");
}

TEST_CASE("An unknown key is refused, and one that is there twice counts once") {
  CHECK(Refusal(R"({"weight": 1, "stamps": [], "registred": true})") == "letter: unknown key \"registred\"");
  CHECK(Parse(R"({"weight": 1, "weight": 2, "stamps": []})")->weight == 2);
}

TEST_CASE("Text that is too large, too deep or no JSON is refused") {
  CHECK(Refusal(std::string((1 << 20) + 1, ' ')) == "letter: is larger than 1.0 MiB");
  CHECK(Refusal(std::string(65, '[') + std::string(65, ']')) == "letter: is nested deeper than 64 levels");
  CHECK(Refusal(std::string(64, '[') + std::string(64, ']')) == "letter: must be an object");
  CHECK(Refusal("{\"" + std::string(100, '[') + "\\\"\": 1}") == "letter: \"weight\" is missing");  // in a string
  CHECK(Refusal("{") == "letter: is not JSON");
  CHECK(Refusal("{\"weight\": \"\xff\"}") == "letter: is not JSON");
}

TEST_CASE("Names, dtypes and shapes are held to their limits") {
  CHECK_THAT(ReadAs<bool>(0), FailsWith(ErrorCode::kBadData, "true or false"));
  CHECK_THAT(ReadAs<std::string>(1), FailsWith(ErrorCode::kBadData, "must be a string"));
  CHECK_THAT(ReadAs<std::string>(""), FailsWith(ErrorCode::kBadData, "1 to 1024 bytes"));
  CHECK_THAT(ReadAs<std::string>("a\nb"), FailsWith(ErrorCode::kBadData, "without control characters"));
  CHECK_THAT(ReadAs<model::DType>("bfloat16"), FailsWith(ErrorCode::kBadData, "unknown dtype \"bfloat16\""));
  CHECK_THAT(ReadAs<model::DType>("F4"), FailsWith(ErrorCode::kBadData, "packs several elements"));
  CHECK_THAT(ReadAs<layout::Extents>(7), FailsWith(ErrorCode::kBadData, "must be an array"));
  CHECK_THAT(ReadAs<layout::Extents>({1.5}), FailsWith(ErrorCode::kBadData, "whole numbers"));
  CHECK_THAT(ReadAs<layout::Extents>(std::vector<int>(17, 1)),
             FailsWith(ErrorCode::kBadData, "17 dimensions; the limit is 16"));
  CHECK_THAT(ReadAs<layout::Extents>(Json::array({(uint64_t{1} << 44) + 1})),
             FailsWith(ErrorCode::kBadData, "more than any tensor has"));
}

}  // namespace
}  // namespace lockstep::json
