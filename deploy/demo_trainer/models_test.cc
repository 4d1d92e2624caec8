#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "common/model/safetensors.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "deploy/demo_trainer/checkpoint.h"
#include "deploy/demo_trainer/shapes.h"

namespace lockstep::demo {
namespace {

// A checkpoint directory; every tensor is a bf16 vector of `length` filled with one byte.
class CheckpointDir {
 public:
  const std::string& path() const { return dir_.path(); }

  void WriteShard(const std::string& file, const std::vector<std::pair<std::string, int>>& named_fills,
                  uint64_t length = 5) {
    std::vector<TensorMeta> tensors;
    for (const auto& [name, fill] : named_fills)
      tensors.push_back({.name = name, .dtype = DType::kBF16, .shape = {length}});
    REQUIRE(AssignOffsets(tensors).ok());
    Bytes image = SafetensorsHeader(**ModelLayout::Create(tensors));
    for (const auto& [name, fill] : named_fills) image.resize(image.size() + 2 * length, static_cast<std::byte>(fill));
    WriteRaw(file, AsText(image));
  }
  void WriteIndex(const nlohmann::json& weight_map) {
    WriteRaw("model.safetensors.index.json", nlohmann::json{{"weight_map", weight_map}}.dump());
  }
  void WriteRaw(const std::string& file, std::string_view text) {
    REQUIRE(WriteFileAtomic(dir_.File(file), text).ok());
  }

  void CheckRefused(ErrorCode code, const std::string& because) const {
    const Result<InitialModel> model = OpenCheckpoint(path());
    REQUIRE_FALSE(model.ok());
    CHECK(model.status().code() == code);
    CHECK_THAT(model.status().message(), Catch::Contains(because));
    CHECK_THAT(model.status().message(), Catch::Contains(path()));
  }

 private:
  TempDir dir_;
};

int FillOf(const InitialModel& model, const std::string& name) {
  const auto& tensors = model.layout->tensors();
  const auto found = std::ranges::find(tensors, name, &TensorMeta::name);
  REQUIRE(found != tensors.end());
  const ByteView values = model.values[found - tensors.begin()];
  REQUIRE(values.size() == 10);
  REQUIRE(std::ranges::count(values, values[0]) == 10);
  return static_cast<int>(values[0]);
}

TEST_CASE("a checkpoint of one file is opened in the order of its offsets") {
  CheckpointDir dir;
  dir.WriteShard("model.safetensors", {{"z", 1}, {"a", 2}});
  const Result<InitialModel> model = OpenCheckpoint(dir.path());
  REQUIRE(model.ok());
  CHECK(model->layout->tensors()[0].name == "z");
  CHECK(FillOf(*model, "z") == 1);
  CHECK(FillOf(*model, "a") == 2);
}

TEST_CASE("a checkpoint in shards is one model, each tensor from the shard its index names") {
  CheckpointDir dir;
  dir.WriteShard("model-00001-of-00002.safetensors", {{"embed", 1}, {"shared", 7}});
  dir.WriteShard("model-00002-of-00002.safetensors", {{"head", 3}, {"shared", 8}});
  dir.WriteIndex({{"embed", "model-00001-of-00002.safetensors"},
                  {"head", "model-00002-of-00002.safetensors"},
                  {"shared", "model-00002-of-00002.safetensors"}});
  const Result<InitialModel> model = OpenCheckpoint(dir.path());
  REQUIRE(model.ok());
  CHECK(model->layout->tensors().size() == 3);
  CHECK(FillOf(*model, "embed") == 1);
  CHECK(FillOf(*model, "head") == 3);
  CHECK(FillOf(*model, "shared") == 8);
}

TEST_CASE("a directory that is no checkpoint is refused with the reason") {
  CheckpointDir dir;
  SECTION("nothing in it") {
    dir.CheckRefused(ErrorCode::kNotFound, "neither model.safetensors nor");
  }
  SECTION("a truncated file") {
    dir.WriteShard("model.safetensors", {{"w", 1}});
    std::string image = *ReadFile(dir.path() + "/model.safetensors");
    dir.WriteRaw("model.safetensors", image.substr(0, image.size() - 1));
    dir.CheckRefused(ErrorCode::kBadData, "model.safetensors");
  }
  SECTION("an empty file") {
    dir.WriteRaw("model.safetensors", "");
    dir.CheckRefused(ErrorCode::kBadData, "empty");
  }
  SECTION("no safetensors") {
    dir.WriteRaw("model.safetensors", "version https://git-lfs.github.com/spec/v1 ...");
    dir.CheckRefused(ErrorCode::kBadData, "model.safetensors");
  }
}

TEST_CASE("a bad index is refused with the reason") {
  CheckpointDir dir;
  dir.WriteShard("one.safetensors", {{"w", 1}});
  SECTION("no JSON") {
    dir.WriteRaw("model.safetensors.index.json", "{");
    dir.CheckRefused(ErrorCode::kBadData, "weight_map");
  }
  SECTION("no tensors") {
    dir.WriteIndex(nlohmann::json::object());
    dir.CheckRefused(ErrorCode::kBadData, "names no tensor");
  }
  SECTION("a shard that is not there") {
    dir.WriteIndex({{"w", "one.safetensors"}, {"x", "two.safetensors"}});
    dir.CheckRefused(ErrorCode::kNotFound, "two.safetensors");
  }
  SECTION("a tensor that is not in its shard") {
    dir.WriteIndex({{"w", "one.safetensors"}, {"x", "one.safetensors"}});
    dir.CheckRefused(ErrorCode::kBadData, "promises tensor \"x\"");
  }
  SECTION("a shard elsewhere") {
    dir.WriteIndex({{"w", "../one.safetensors"}});
    dir.CheckRefused(ErrorCode::kBadData, "shards lie beside their index");
  }
  SECTION("a shard that is no name") {
    dir.WriteIndex({{"w", 3}});
    dir.CheckRefused(ErrorCode::kBadData, "not a file name");
  }
}

TEST_CASE("the shapes have as many parameters as the models they are named after") {
  const auto parameters = [](std::string_view name) {
    return ModelOfShape(*FindShape(name))->layout->data_bytes() / 2;
  };
  CHECK(parameters("qwen3-0.6b") == 596'049'920);
  CHECK(parameters("qwen3-1.7b") == 1'720'574'976);
  CHECK(parameters("tiny") > 30'000'000);
  CHECK(parameters("tiny") < 60'000'000);
}

TEST_CASE("an unknown shape is refused with the known ones") {
  const Result<Qwen3Shape> shape = FindShape("llama");
  REQUIRE_FALSE(shape.ok());
  CHECK_THAT(shape.status().message(), Catch::Contains("qwen3-0.6b"));
}

}  // namespace
}  // namespace lockstep::demo
