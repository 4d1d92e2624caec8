#include "deploy/demo_trainer/checkpoint.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "common/base/text.h"
#include "common/model/safetensors.h"
#include "common/os/file.h"

namespace lockstep::demo {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// File name to the tensors that are wanted from it; no set: all that it holds.
using Shards = std::map<std::string, std::optional<std::set<std::string>>>;

Result<Shards> ReadIndex(const std::string& path) {
  const auto bad = [&](std::string_view what) { return Status(ErrorCode::kBadData, Cat(path, ": ", what)); };
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxSafetensorsHeader));
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return bad("not an index: it has no object \"weight_map\"");
  }
  Shards shards;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string()) return bad(Cat("the shard of tensor \"", tensor, "\" is not a file name"));
    const auto name = file.get<std::string>();
    if (name.empty() || name.find('/') != std::string::npos) {
      return bad(Cat("tensor \"", tensor, "\" is in \"", name, "\": shards lie beside their index"));
    }
    auto& wanted = shards[name];
    if (!wanted) wanted.emplace();
    wanted->insert(tensor);
  }
  if (shards.empty()) return bad("it names no tensor");
  return shards;
}

Result<Shards> FindShards(const std::string& directory) {
  std::error_code ignored;
  const auto has = [&](const char* file) { return fs::exists(fs::path(directory) / file, ignored); };
  if (has(kSingleFile)) return Shards{{kSingleFile, std::nullopt}};
  if (has(kIndexFile)) return ReadIndex(directory + "/" + kIndexFile);
  return Status(ErrorCode::kNotFound, Cat("checkpoint ", directory, " has neither ", kSingleFile, " nor ", kIndexFile,
                                          ": give a HuggingFace model directory with safetensors weights"));
}

Result<MappedSegment> MapFile(const std::string& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) return ErrnoStatus(error.value(), path);
  if (bytes == 0) return Status(ErrorCode::kBadData, Cat(path, ": the file is empty"));
  return OpenSegment(path, bytes, Access::kReadOnly);
}

// Collects the tensors of all shards before the layout decides where each goes.
struct Gathered {
  std::vector<TensorMeta> tensors;
  std::unordered_map<std::string, ByteView> values;
  std::vector<MappedSegment> files;
};

Status GatherShard(const std::string& path, std::optional<std::set<std::string>> wanted, Gathered& gathered) {
  LS_ASSIGN_OR_RETURN(MappedSegment file, MapFile(path));
  const ByteView image = file.span();
  Result<SafetensorsFile> parsed = ParseSafetensors(image, image.size());
  if (!parsed.ok()) return parsed.status().WithContext(path);
  for (TensorMeta& tensor : parsed->tensors) {
    if (wanted && wanted->erase(tensor.name) == 0) continue;
    LS_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor));
    const ByteView values = image.subspan(parsed->data_offset + tensor.offset, bytes);
    if (!gathered.values.emplace(tensor.name, values).second) {
      return Status(ErrorCode::kBadData, Cat(path, ": tensor \"", tensor.name, "\" is in an earlier shard, too"));
    }
    gathered.tensors.push_back(std::move(tensor));
  }
  if (wanted && !wanted->empty()) {
    return Status(ErrorCode::kBadData,
                  Cat(path, ": ", kIndexFile, " promises tensor \"", *wanted->begin(), "\" here; it is not"));
  }
  gathered.files.push_back(std::move(file));
  return OkStatus();
}

}  // namespace

Result<InitialModel> OpenCheckpoint(const std::string& directory) {
  LS_ASSIGN_OR_RETURN(Shards shards, FindShards(directory));
  Gathered gathered;
  for (auto& [file, wanted] : shards) {
    LS_RETURN_IF_ERROR(GatherShard(directory + "/" + file, std::move(wanted), gathered));
  }
  LS_RETURN_IF_ERROR(AssignOffsets(gathered.tensors));

  InitialModel model;
  Result<std::shared_ptr<const ModelLayout>> layout = ModelLayout::Create(std::move(gathered.tensors));
  if (!layout.ok()) return layout.status().WithContext(directory);
  model.layout = *std::move(layout);
  for (const TensorMeta& tensor : model.layout->tensors()) model.values.push_back(gathered.values.at(tensor.name));
  model.files = std::move(gathered.files);
  return model;
}

}  // namespace lockstep::demo
