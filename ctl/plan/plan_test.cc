// lockstepctl plan: a small plan computed by hand, and what it says when it is asked something wrong.
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/temp_dir.h"
#include "ctl/ctl_testing.h"
#include "ctl/output/json.h"

namespace lockstep::ctl {
namespace {

// HuggingFace bytes: embed_tokens 0, input_layernorm 160, q 176, k 304, v 368, o 432, post_attention_layernorm 560,
// gate 576, up 672, down 768, norm 864, lm_head 880, end 1040.
constexpr char kTinyLlama[] = R"({"model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 1,
  "hidden_size": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "intermediate_size": 6,
  "vocab_size": 10, "tie_word_embeddings": false})";

Answer Plan(std::vector<std::string> words) {
  words.insert(words.begin(), "plan");
  return RunWords(words);
}

// A directory with the tiny model's config.json.
class Model {
 public:
  Model() { Write("config.json", kTinyLlama); }

  const std::string& path() const { return directory_.path(); }
  void Write(const std::string& name, const std::string& text) { std::ofstream(path() + "/" + name) << text; }

  // Two tensor-parallel ranks, only the first of them on the agent's host, no padding of the vocabulary.
  Answer PlanOfTwo(std::vector<std::string> more) const {
    std::vector<std::string> words = {"--config",         path(), "--tensor-parallel-size",         "2",
                                      "--ranks-per-host", "1",    "--make-vocab-size-divisible-by", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return Plan(words);
  }

 private:
  os::TempDir directory_;
};

Json PlanJson(const Answer& answer) {
  INFO(answer.status.ToString());
  REQUIRE(answer.status.ok());
  return Json::parse(answer.text);
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Json Copy(uint64_t source, uint64_t target, uint64_t rows, uint64_t row_bytes, uint64_t source_pitch,
          uint64_t target_pitch) {
  return {{"source_offset", source}, {"target_offset", target},      {"rows", rows},
          {"row_bytes", row_bytes},  {"source_pitch", source_pitch}, {"target_pitch", target_pitch}};
}

TEST_CASE("The second of two tensor-parallel ranks copies what is worked out by hand") {
  const Json plan = PlanJson(Model().PlanOfTwo({"--rank", "1", "--json"}));
  CHECK(plan["rank"] == 1);
  CHECK(plan["on_agent_host"] == false);
  CHECK(plan["bytes"] == 496);
  const std::vector<std::pair<std::string, Json>> expected = {
      {"model.embed_tokens.weight", Copy(0, 80, 1, 80, 0, 0)},
      {"model.layers.0.self_attn.q_proj.weight", Copy(0, 240, 1, 64, 0, 0)},
      {"model.layers.0.self_attn.k_proj.weight", Copy(64, 336, 1, 32, 0, 0)},
      {"model.layers.0.self_attn.v_proj.weight", Copy(96, 400, 1, 32, 0, 0)},
      {"model.layers.0.self_attn.o_proj.weight", Copy(0, 440, 8, 8, 8, 16)},
      {"model.layers.0.mlp.gate_proj.weight", Copy(0, 624, 1, 48, 0, 0)},
      {"model.layers.0.mlp.up_proj.weight", Copy(48, 720, 1, 48, 0, 0)},
      {"model.layers.0.mlp.down_proj.weight", Copy(0, 774, 8, 6, 6, 12)},
      {"lm_head.weight", Copy(0, 960, 1, 80, 0, 0)},
  };
  REQUIRE(plan["entries"].size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(plan["entries"][i]["tensor"] == expected[i].first);
    REQUIRE(plan["entries"][i]["pieces"].size() == 1);
    CHECK(plan["entries"][i]["pieces"][0]["copies"] == Json::array({expected[i].second}));
  }
  const Json& query = plan["entries"][1];
  CHECK(query["local_tensor"] == "decoder.layers.0.self_attention.linear_qkv.weight");
  CHECK(query["pieces"][0]["local"] == Json({0, 0}));
  CHECK(query["pieces"][0]["global"] == Json({4, 0}));
  CHECK(query["pieces"][0]["size"] == Json({4, 8}));
}

TEST_CASE("A rank's copies are a table for people") {
  const Answer answer = Model().PlanOfTwo({"--rank", "1"});
  REQUIRE(answer.status.ok());
  CHECK(Has(answer.text, "rank 1 sends to a rank on the agent's host 496 B in 9 copies"));
  CHECK(Has(answer.text, "[0:4, 0:8]  [4:8, 0:8]"));
  CHECK(Has(answer.text, "8 -> 16"));
}

TEST_CASE("The summary adds up") {
  const Answer answer = Model().PlanOfTwo({"--json"});
  const Json plan = PlanJson(answer);
  CHECK(plan["bytes"] == 1040);
  CHECK(plan["tensors"] == 12);
  CHECK(plan["frozen_bytes"] == 0);
  CHECK(plan["largest_group"] ==
        Json({{"first", "model.layers.0.self_attn.q_proj.weight"}, {"tensors", 3}, {"bytes", 256}}));
  REQUIRE(plan["ranks"].size() == 2);
  CHECK(plan["ranks"][0]["bytes_written"] == 1040 - 496);
  CHECK(plan["ranks"][0]["bytes_sent"] == 0);
  CHECK(plan["ranks"][0]["tensors"] == 12);
  CHECK(plan["ranks"][0]["buckets"] == 0);
  CHECK(plan["ranks"][1] == Json({{"rank", 1},
                                  {"on_agent_host", false},
                                  {"tensors", 9},
                                  {"bytes_written", 0},
                                  {"bytes_sent", 496},
                                  {"copies", 9},
                                  {"buckets", 1}}));
  CHECK(plan["copies"] == 12 + 9);
  const Answer table = Model().PlanOfTwo({});
  REQUIRE(table.status.ok());
  CHECK(Has(table.text, plan["digest"].get<std::string>()));
  CHECK(Has(table.text, "12 tensors, 1.0 KiB"));
  CHECK(Has(table.text, "   1  remote        9       -  496 B       9        1"));
}

TEST_CASE("Each host's part is in the plan, with what comes from other hosts") {
  const Json plan = PlanJson(Model().PlanOfTwo({"--by-host", "--json"}));
  REQUIRE(plan["hosts"].size() == 2);
  CHECK(plan["hosts"][0]["bytes"].get<int>() + plan["hosts"][1]["bytes"].get<int>() == 1040);
  CHECK(plan["hosts"][0]["tensors"].get<int>() + plan["hosts"][1]["tensors"].get<int>() == 12);
  // Norms are on both; of all else each holds half.
  CHECK(plan["hosts"][0]["bytes_received"].get<int>() + plan["hosts"][1]["bytes_received"].get<int>() ==
        (1040 - 48) / 2);
  CHECK(Has(Model().PlanOfTwo({"--by-host"}).text, "by host: 496 B of every version cross hosts"));
  CHECK(Plan({"--config", Model().path(), "--by-host"}).status.code() == ErrorCode::kUsage);
}

TEST_CASE("A derived model has its bytes in the plan, and a speed that was measured") {
  Model model;
  std::string config = kTinyLlama;
  config.insert(1, R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
      "weight_block_size": [128, 128]}, )");
  model.Write("fp8.json", config);
  const Json plan = PlanJson(model.PlanOfTwo({"--derive", model.path() + "/fp8.json", "--json"}));
  CHECK(plan["derived"]["format"] == "fp8-block");
  CHECK(plan["derived"]["quantised"] == 7);
  CHECK(plan["derived"]["bytes"] == 160 + 3 * 16 + 160 + 336 + 7 * 4);  // embedding, norms, head, values, scales
  CHECK(plan["derived"]["bytes_per_s"] > 1e5);
  CHECK(Has(model.PlanOfTwo({"--derive", model.path() + "/fp8.json"}).text, "derived fp8-block: 7 weights"));
  CHECK_THAT(model.PlanOfTwo({"--derive", model.path()}).status,
             FailsWith(ErrorCode::kBadData, "config.json has no quantization_config"));
}

TEST_CASE("Descriptions that were written give the plan that wrote them") {
  const Model model;
  const std::string descriptions = model.path() + "/descriptions";
  const Json plan = PlanJson(model.PlanOfTwo({"--write-descriptions", descriptions, "--json"}));
  CHECK(PlanJson(Plan({"--descriptions", descriptions, "--json"})) == plan);
}

TEST_CASE("Sizes that are left out are Megatron's defaults and the smallest world") {
  const Model model;
  const auto ranks = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"--config", model.path() + "/config.json", "--json"});
    return PlanJson(Plan(words))["ranks"].size();
  };
  CHECK(ranks({}) == 1);
  CHECK(ranks({"--tp", "2", "--cp", "2"}) == 4);
  CHECK(ranks({"--tp", "2", "--world-size", "6"}) == 6);
  CHECK(ranks({"--tp", "2", "--ep", "3"}) == 6);
  CHECK(ranks({"--tp", "2", "--ep", "3", "--etp", "1"}) == 6);
  CHECK(ranks({"--ep", "2", "--etp", "1"}) == 2);
}

TEST_CASE("A wrong question is a usage error") {
  const Model model;
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"--config", model.path(), "--descriptions", model.path()},
                                             {"--descriptions", model.path(), "--tp", "2"},
                                             {"--config", model.path(), "--tp", "0"},
                                             {"--config", model.path(), "--tp", "1048576", "--cp", "1048576"},
                                             {"--config", model.path(), "--tp", "1048576", "--pp", "2"},
                                             {"--config", model.path(), "--agent", "127.0.0.1:1"},
                                             {"--config", model.path(), "--bucket-bytes", "1"},
                                             {"--config", model.path(), "--rank", "1"}}) {
    CAPTURE(words);
    CHECK(ExitCode(Plan(words).status.code()) == 64);
  }
}

TEST_CASE("What is wrong in a file or a shape is reported with the file") {
  Model model;
  const Answer shape = model.PlanOfTwo({"--pipeline-parallel-size", "2"});
  CHECK(ExitCode(shape.status.code()) == 65);
  CHECK_THAT(shape.status, FailsWith(ErrorCode::kBadData, "config.json"));

  const Answer nowhere = Plan({"--config", model.path() + "/nowhere"});
  CHECK_THAT(nowhere.status, FailsWith(ErrorCode::kNotFound, "/nowhere"));
  CHECK(Plan({"--descriptions", model.path() + "/nowhere"}).status.code() == ErrorCode::kNotFound);
  CHECK(Plan({"--descriptions", model.path()}).status.code() == ErrorCode::kNotFound);

  REQUIRE(model.PlanOfTwo({"--write-descriptions", model.path(), "--quiet"}).text.empty());
  model.Write("rank-00001.json", R"({"format": 1, "on_agent_host": true, "part": []})");
  const Answer description = Plan({"--descriptions", model.path()});
  CHECK(ExitCode(description.status.code()) == 65);
  CHECK_THAT(description.status, FailsWith(ErrorCode::kBadData, "rank-00001.json", "\"parts\" is missing"));

  model.Write("rank-00003.json", "{}");
  model.Write("rank-00001.json", "");
  std::ifstream first(model.path() + "/rank-00000.json");
  std::ostringstream text;
  text << first.rdbuf();
  model.Write("rank-00001.json", text.str());
  const Answer hole = Plan({"--descriptions", model.path()});
  CHECK_THAT(hole.status, FailsWith(ErrorCode::kNotFound, "rank-00002.json"));
}

}  // namespace
}  // namespace lockstep::ctl
