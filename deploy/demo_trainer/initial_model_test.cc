#include "deploy/demo_trainer/initial_model.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/model/safetensors.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"

namespace lockstep::demo {
namespace {

constexpr uint64_t kLength = 5;

// A safetensors file with bf16 vectors, each filled with one byte.
void WriteShard(const std::string& path, const std::vector<std::pair<std::string, int>>& named_fills) {
  std::vector<model::TensorMeta> tensors;
  for (const auto& [name, fill] : named_fills)
    tensors.push_back({.name = name, .dtype = model::DType::kBF16, .shape = {kLength}});
  REQUIRE(model::AssignOffsets(tensors).ok());
  Bytes image = model::SafetensorsHeader(**model::ModelLayout::Create(tensors));
  for (const auto& [name, fill] : named_fills) image.resize(image.size() + 2 * kLength, static_cast<std::byte>(fill));
  REQUIRE(os::WriteFileAtomic(path, AsText(image)).ok());
}

TEST_CASE("A checkpoint in shards is one model, laid out by name") {
  const os::TempDir dir;
  WriteShard(dir.File("model-00001-of-00002.safetensors"), {{"z", 1}, {"embed", 2}});
  WriteShard(dir.File("model-00002-of-00002.safetensors"), {{"head", 3}});
  const std::string index = R"({"weight_map": {"embed": "model-00001-of-00002.safetensors",
      "z": "model-00001-of-00002.safetensors", "head": "model-00002-of-00002.safetensors"}})";
  REQUIRE(os::WriteFileAtomic(dir.File("model.safetensors.index.json"), index).ok());
  const Result<InitialModel> model = OpenCheckpoint(dir.path());
  REQUIRE(model.ok());
  const std::vector<std::pair<std::string, int>> expected = {{"embed", 2}, {"head", 3}, {"z", 1}};
  REQUIRE(model->values.size() == expected.size());
  CHECK(ElementCount(*model->layout) == expected.size() * kLength);
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(model->layout->tensors()[i].name == expected[i].first);
    const Bytes filled(2 * kLength, static_cast<std::byte>(expected[i].second));
    CHECK(std::ranges::equal(model->values[i], filled));
  }
}

TEST_CASE("A directory that is no checkpoint is refused with the reason") {
  const os::TempDir dir;
  CHECK(OpenCheckpoint(dir.path()).status().code() == ErrorCode::kNotFound);
  REQUIRE(os::WriteFileAtomic(dir.File("model.safetensors"), "version https://git-lfs.github.com/spec/v1 ...").ok());
  const Status status = OpenCheckpoint(dir.path()).status();
  CHECK_THAT(status, FailsWith(ErrorCode::kBadData, dir.File("model.safetensors")));
}

TEST_CASE("The shapes have as many parameters as the models they are named after") {
  const auto parameters = [](std::string_view name) {
    return ModelOfShape(*FindShape(name))->layout->data_bytes() / 2;
  };
  CHECK(parameters("qwen3-0.6b") == 596'049'920);
  CHECK(parameters("qwen3-1.7b") == 1'720'574'976);
  CHECK(parameters("tiny") > 30'000'000);
  CHECK(parameters("tiny") < 60'000'000);
}

TEST_CASE("An unknown shape is refused with the known ones") {
  const Result<Qwen3Shape> shape = FindShape("llama");
  REQUIRE_THAT(shape, FailsWith(ErrorCode::kUsage, "qwen3-0.6b"));
}

}  // namespace
}  // namespace lockstep::demo
