#include "raas_receiver/session/config_check.h"

#include <catch2/catch.hpp>

namespace lockstep::session {
namespace {

std::shared_ptr<const model::ModelLayout> WithEmbedding(const std::string& name, std::vector<uint64_t> shape) {
  return *model::ModelLayout::Create({{.name = name, .dtype = model::DType::kBF16, .shape = std::move(shape)}});
}

TEST_CASE("A configuration of another embedding is told, with both sizes and the tensor") {
  const auto layout = WithEmbedding("model.embed_tokens.weight", {320, 64});
  for (const char* config :
       {R"({"vocab_size": 320, "hidden_size": 128})", R"({"vocab_size": 1000, "hidden_size": 64})",
        R"({"hidden_size": 64, "vocab_size": 320, "text_config": {"vocab_size": 320, "hidden_size": 128}})"}) {
    CHECK_THAT(ConfigMismatch(config, *layout),
               Catch::Contains("but tensor \"model.embed_tokens.weight\" is [320, 64]"));
  }
  CHECK_THAT(ConfigMismatch(R"({"vocab_size": 1000, "hidden_size": 64})", *layout),
             Catch::Contains("vocab_size is 1000 and hidden_size 64"));
}

TEST_CASE("Nothing is told of a configuration that fits, or of which no embedding is known") {
  const auto layout = WithEmbedding("model.embed_tokens.weight", {320, 64});
  for (const char* config :
       {R"({"vocab_size": 320, "hidden_size": 64})", R"({"text_config": {"vocab_size": 320, "hidden_size": 64}})",
        R"({"vocab_size": 320})", R"({"vocab_size": -1, "hidden_size": "64"})", "[]", "no JSON", ""}) {
    INFO(config);
    CHECK(ConfigMismatch(config, *layout).empty());
  }
  const char* other = R"({"vocab_size": 1000, "hidden_size": 64})";
  CHECK(ConfigMismatch(other, *WithEmbedding("model.decoder.embed_tokens.weight", {320, 64})).empty());
  CHECK(ConfigMismatch(other, *WithEmbedding("model.embed_tokens.weight", {320})).empty());
}

}  // namespace
}  // namespace lockstep::session
