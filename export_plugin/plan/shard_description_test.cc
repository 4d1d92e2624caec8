// Descriptions as text: what is read, what is written, what is refused and where.
#include "export_plugin/plan/shard_description.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "common/base/document_testing.h"
#include "common/base/text.h"
#include "common/layout/copy_plan.h"

namespace lockstep::plan {
namespace {

using Json = nlohmann::json;

std::string Example(std::string_view name) {
  return DocumentBlock("export_plugin/plan/FORMAT.md", "json", name);
}

ShardDescription Parse(const std::string& text) {
  Result<ShardDescription> description = ParseDescription(text);
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  return *std::move(description);
}

// The example with the member at `pointer` replaced.
std::string With(const std::string& pointer, const Json& value) {
  Json description = Json::parse(Example("rank 1"));
  description[Json::json_pointer(pointer)] = value;
  return description.dump();
}

std::string Without(const std::string& object, const std::string& key) {
  Json description = Json::parse(Example("rank 1"));
  REQUIRE(description[Json::json_pointer(object)].erase(key) == 1);
  return description.dump();
}

void CheckRefused(const std::string& text, const std::string& where, const std::string& what) {
  const Result<ShardDescription> description = ParseDescription(text);
  REQUIRE(description.status().code() == ErrorCode::kBadData);
  const std::string& message = description.status().message();
  CAPTURE(message);
  CHECK(message.find("description: " + where) == 0);
  CHECK(message.find(what) != std::string::npos);
}

const std::string kParameter = "/parts/0/parameters/2";
const std::string kTensor = "/parts/1/tensors/0";

TEST_CASE("The descriptions of the format's example are read as they are written") {
  const ShardDescription description = Parse(Example("rank 1"));
  CHECK_FALSE(description.on_agent_host);
  REQUIRE(description.parts.size() == 2);
  const auto& megatron = std::get<MegatronDescription>(description.parts[0]);
  CHECK(megatron.place.tensor.at == 1);
  CHECK(megatron.place.tensor.of == 2);
  CHECK(megatron.place.expert_tensor.of == 1);
  REQUIRE(megatron.parameters.size() == 9);
  CHECK(megatron.parameters[0].frozen);
  CHECK_FALSE(megatron.parameters[2].frozen);
  CHECK(megatron.parameters[5].name == "decoder.layers.0.mlp.linear_fc1.weight");
  CHECK(megatron.parameters[5].shape == layout::Extents{6, 8});
  const auto& tensors = std::get<std::vector<TensorDescription>>(description.parts[1]);
  REQUIRE(tensors.size() == 1);
  CHECK(tensors[0].dtype == model::DType::kF32);
  CHECK(tensors[0].local_shape == layout::Extents{1, 8});
  CHECK(tensors[0].boxes == layout::Pieces{{.source = {0, 0}, .target = {2, 0}, .size = {1, 8}}});
}

TEST_CASE("The example's plan is the one that the format describes") {
  const std::vector<ShardDescription> descriptions = {Parse(Example("rank 0")), Parse(Example("rank 1"))};
  const auto model = BuildTrainingModel(descriptions);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  REQUIRE(model->tensors.size() == 13);
  CHECK(model->tensors[2].name == "model.layers.0.self_attn.q_proj.weight");
  CHECK(model->tensors[12].name == "adapter.lora_A.weight");
  const auto plan = layout::CompileExport(*model, OnAgentHost(descriptions));
  INFO(plan.status().ToString());
  REQUIRE(plan.ok());
  CHECK(plan->bytes == 1136);
  const auto piece = [&](uint32_t tensor) {
    for (const layout::PlanEntry& entry : plan->ranks[1].entries) {
      if (entry.tensor == tensor) return entry.pieces;
    }
    return layout::Pieces{};
  };
  CHECK(piece(0) == layout::Pieces{{.source = {0, 0}, .target = {6, 0}, .size = {4, 8}}});  // the padding stays behind
  CHECK(piece(1).empty());                                                                  // a norm
  CHECK(piece(2) == layout::Pieces{{.source = {0, 0}, .target = {4, 0}, .size = {4, 8}}});
  CHECK(piece(3) == layout::Pieces{{.source = {4, 0}, .target = {2, 0}, .size = {2, 8}}});
  CHECK(piece(4) == layout::Pieces{{.source = {6, 0}, .target = {2, 0}, .size = {2, 8}}});
  CHECK(piece(12) == layout::Pieces{{.source = {0, 0}, .target = {2, 0}, .size = {1, 8}}});
  CHECK(model->sources[model->holdings[0].source].frozen);
  CHECK_FALSE(model->sources[model->holdings[1].source].frozen);
}

TEST_CASE("A description that is written and read again is the same, whatever the order of its keys") {
  for (const char* name : {"rank 0", "rank 1"}) {
    const std::string text = Example(name);
    const std::string written = ToJson(Parse(text));
    CHECK(ToJson(Parse(written)) == written);
    CHECK(ToJson(Parse(Json::parse(text).dump())) == written);
    CHECK(std::get<MegatronDescription>(Parse(written).parts[0]).config ==
          std::get<MegatronDescription>(Parse(text).parts[0]).config);
  }
  const std::string stacked = With(kTensor + "/into", {{{"name", "a"}, {"shape", {8}}, {"from", {2, 0}}}});
  CHECK(ToJson(Parse(ToJson(Parse(stacked)))) == ToJson(Parse(stacked)));
  CHECK(std::get<std::vector<TensorDescription>>(Parse(ToJson(Parse(stacked))).parts[1])[0].into[0].from ==
        layout::Extents{2, 0});
}

TEST_CASE("The local tensors of a description are those of its parts, in order") {
  const std::vector<DescribedLocal> locals = LocalsOf(Parse(Example("rank 1")));
  REQUIRE(locals.size() == 10);
  CHECK(locals[2].name == "decoder.layers.0.self_attention.linear_qkv.weight");
  CHECK(locals[2].dtype == model::DType::kBF16);
  CHECK(locals[9].name == "adapter.lora_A.weight");
  CHECK_FALSE(locals[9].dtype.has_value());
  CHECK(locals[9].shape == layout::Extents{1, 8});
}

TEST_CASE("Unknown keys are refused by name, in every object") {
  for (const std::string& object : {std::string("/"), std::string("/parts/0/"), std::string("/parts/0/place/"),
                                    kParameter + "/", kTensor + "/", kTensor + "/boxes/0/"}) {
    CheckRefused(With(object + "frozn", true), "", "unknown key \"frozn\"");
  }
  CheckRefused(With(kParameter + "/frozn", true), "parts[0].parameters[2]: ", "frozn");
}

TEST_CASE("Missing keys are refused by name") {
  CheckRefused(Without("", "format"), "", "\"format\" is missing");
  CheckRefused(Without("", "on_agent_host"), "", "\"on_agent_host\" is missing");
  CheckRefused(Without("/parts/0", "config"), "parts[0]: ", "\"config\" is missing");
  CheckRefused(Without("/parts/0/place", "expert_size"), "parts[0].place: ", "\"expert_size\" is missing");
  CheckRefused(Without(kParameter, "dtype"), "parts[0].parameters[2]: ", "\"dtype\" is missing");
  CheckRefused(Without(kTensor, "local_shape"), "parts[1].tensors[0]: ", "\"local_shape\" is missing");
  CheckRefused(Without(kTensor + "/boxes/0", "size"), "parts[1].tensors[0].boxes[0]: ", "\"size\" is missing");
}

TEST_CASE("Values that cannot be are refused with their place") {
  CheckRefused(With("/format", 2), "", "is of format 2; this build reads format 1");
  CheckRefused(With("/on_agent_host", 1), "on_agent_host: ", "true or false");
  CheckRefused(With("/parts", Json::array()), "parts: ", "is empty");
  CheckRefused(With("/parts", 7), "parts: ", "must be an array");
  CheckRefused(With("/parts/0/kind", "fsdp"), "parts[0]: ", "\"fsdp\" is neither");
  CheckRefused(With("/parts/0/kind", std::string(99, 'a') + "\u00e9"), "parts[0]: ", "aaa\" is neither");
  CheckRefused(With("/parts/0/config", "llama"), "parts[0]: ", "must be an object");
  CheckRefused(With("/parts/0/place/tensor_rank", 2), "parts[0].place: ", "tensor_rank 2 of tensor_size 2");
  CheckRefused(With("/parts/0/place/expert_size", 0), "parts[0].place: ", "expert_size 0");
  CheckRefused(With("/parts/0/place/tensor_size", uint64_t{1} << 32), "parts[0].place.tensor_size: ", "32 bits");
  CheckRefused(With(kParameter + "/name", ""), "parts[0].parameters[2].name: ", "1 to 1024");
  CheckRefused(With(kParameter + "/name", std::string(1025, 'a')), "parts[0].parameters[2].name: ", "1 to 1024");
  CheckRefused(With(kParameter + "/name", "a\nb"), "parts[0].parameters[2].name: ", "control");
  CheckRefused(With(kParameter + "/dtype", "bfloat16"), "parts[0].parameters[2].dtype: ", "\"bfloat16\"");
  CheckRefused(With(kParameter + "/dtype", "F4"), "parts[0].parameters[2].dtype: ", "packs");
  CheckRefused(With(kParameter + "/shape", {4, -1}), "parts[0].parameters[2].shape: ", "not negative");
  CheckRefused(With(kParameter + "/shape", {4, 1.5}), "parts[0].parameters[2].shape: ", "whole");
  CheckRefused(With(kParameter + "/shape", Json(std::vector<int>(17, 1))), "parts[0].parameters[2].shape: ", "16");
  CheckRefused(With(kParameter + "/shape", {0, uint64_t{1} << 40, uint64_t{1} << 40}),
               "parts[0].parameters[2].shape: ", "larger than any tensor");
  CheckRefused(With(kParameter + "/frozen", "yes"), "parts[0].parameters[2].frozen: ", "true or false");
}

TEST_CASE("Boxes must lie inside their tensors, and empty ones are nothing") {
  const std::string boxes = "parts[1].tensors[0].boxes";
  CheckRefused(With(kTensor + "/boxes/0/size", {2, 8}), boxes + ": ", "");
  CheckRefused(With(kTensor + "/boxes/0/global", {3, 0}), boxes + ": ", "");
  CheckRefused(With(kTensor + "/boxes/0/global", {~uint64_t{0} >> 20, 0}), boxes, "");
  CheckRefused(With(kTensor + "/boxes/0/size", {1, 8, 1}), boxes + "[0]: ", "2 dimensions");
  CheckRefused(With(kTensor + "/local_shape", {8}), boxes + ": ", "");
  const ShardDescription empty = Parse(With(kTensor + "/boxes/0/size", {0, 8}));
  CHECK(std::get<std::vector<TensorDescription>>(empty.parts[1])[0].boxes.empty());
  CHECK(Parse(With(kTensor + "/boxes", Json::array())).parts.size() == 2);
}

TEST_CASE("What tensors are made into must lie inside them") {
  const std::string into = "parts[1].tensors[0].into[0]: ";
  const auto With1 = [](const Json& shape, const Json& from) {
    return With(kTensor + "/into", Json::array({{{"name", "a"}, {"shape", shape}, {"from", from}}}));
  };
  CHECK(ParseDescription(With1({8}, {2, 0})).ok());
  CheckRefused(With1({8}, {3, 0}), into, "dimension 0");
  CheckRefused(With1({2, 8}, {1, 1}), into, "dimension 1");
  CheckRefused(With1({2, 8}, {1, ~uint64_t{0} >> 22}), into, "dimension 1");
  CheckRefused(With1({8}, {0}), into, "\"from\" must have the 2 dimensions");
  CheckRefused(With1({1, 1, 8}, {0, 0}), into, "at most so many");
  const auto With2 = [](const Json& at, const Json& size) {
    const Json made = {{"name", "a"}, {"shape", {4, 8}}, {"from", {1, 0}}, {"at", at}, {"size", size}};
    return With(kTensor + "/into", Json::array({made}));
  };
  CHECK(ToJson(Parse(With2({2, 0}, {2, 8}))) == ToJson(Parse(ToJson(Parse(With2({2, 0}, {2, 8}))))));
  CheckRefused(With2({3, 0}, {2, 8}), into, "ends beyond \"shape\" in dimension 0");
  CheckRefused(With2({0, 0}, {3, 8}), into, "ends beyond the tensor in dimension 0");
  CheckRefused(With2({0}, {2, 8}), into, "\"at\" and \"size\" must have the 2 dimensions");
  const auto With3 = [](const Json& as, const Json& at) {
    const Json made = {{"name", "a"}, {"shape", {32}}, {"from", {1, 0}}, {"at", at}, {"size", {2, 8}}, {"as", as}};
    return With(kTensor + "/into", Json::array({made}));
  };
  CHECK(ToJson(Parse(With3({4, 8}, {2, 0}))) == ToJson(Parse(ToJson(Parse(With3({4, 8}, {2, 0}))))));
  CheckRefused(With3({4, 9}, {2, 0}), into, "\"as\" must have as many elements");
  CheckRefused(With3({4, 8}, {3, 0}), into, "ends beyond \"as\" in dimension 0");
}

TEST_CASE("A tensor that is given twice is refused") {
  Json description = Json::parse(Example("rank 1"));
  description["parts"][1]["tensors"].push_back(description["parts"][1]["tensors"][0]);
  CheckRefused(description.dump(), "parts[1].tensors[1]: ", "\"adapter.lora_A.weight\" is given twice");
}

TEST_CASE("What is no JSON, or too deep, is refused without harm") {
  const std::string text = Example("rank 0");
  for (size_t length = 0; length + 2 < text.size(); length += 7) {
    CHECK(ParseDescription(std::string_view(text).substr(0, length)).status().code() == ErrorCode::kBadData);
  }
  CheckRefused(std::string(1 << 20, '['), "", "nested deeper than 64");
  CheckRefused(R"({"format": 1, "name": ")" + std::string(100, '[') + "\\\"\"}", "", "missing");  // inside a string
  CheckRefused("[]", "", "must be an object");
  CheckRefused("{\"format\": \"\xff\"}", "", "not JSON");
}

TEST_CASE("A damaged description is refused, or is another description that can be written and read") {
  const std::string text = Json::parse(Example("rank 1")).dump();
  const std::string bytes = "\"{}[]:,0129-ex. \\truefals\x01\xff";
  std::mt19937 random(7);
  int read = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string damaged = text;
    for (unsigned flips = 1 + random() % 3; flips > 0; --flips) {
      damaged[random() % damaged.size()] = bytes[random() % bytes.size()];
    }
    const auto description = ParseDescription(damaged);
    if (!description.ok()) {
      REQUIRE(description.status().code() == ErrorCode::kBadData);
      continue;
    }
    ++read;
    const auto again = ParseDescription(ToJson(*description));
    REQUIRE(again.ok());
    REQUIRE(ToJson(*again) == ToJson(*description));
    const auto model = BuildTrainingModel({*description});
    REQUIRE((model.ok() || model.status().code() == ErrorCode::kBadData));
  }
  CHECK(read > 50);
}

}  // namespace
}  // namespace lockstep::plan
