#include "export_plugin/exporter/checkpoint.h"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/base/text.h"
#include "common/model/safetensors.h"
#include "common/os/file.h"
#include "common/os/unique_fd.h"

namespace lockstep::exporter {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;

// Tensor name to file name, as an index says.
using WeightMap = std::map<std::string, std::string>;

Result<WeightMap> ReadIndex(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, os::ReadFile(path, kMaxIndexBytes));
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto wrong = [&](std::string_view what) { return Status(ErrorCode::kBadData, Cat(path, ": ", what)); };
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return wrong("there is no object \"weight_map\"");
  }
  WeightMap files;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!file.is_string()) return wrong(Cat("the file of tensor \"", CleanText(tensor), "\" is no string"));
    const auto name = file.get<std::string>();
    if (name.empty() || name[0] == '.' || name.find('/') != std::string::npos || name.find('\0') != std::string::npos) {
      return wrong(Cat("tensor \"", CleanText(tensor), "\" is said to be in \"", CleanText(name),
                       "\", which is no file of this directory"));
    }
    files[tensor] = name;
  }
  return files;
}

// The directory's only *.safetensors.
Result<std::string> OnlyFile(const std::string& directory) {
  std::error_code error;
  std::set<std::string> found;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") found.insert(entry->path().string());
  }
  if (error) return ErrnoStatus(error.value(), Cat("cannot read directory ", directory));
  if (found.size() == 1) return *found.begin();
  return Status(ErrorCode::kNotFound,
                Cat(directory, " has neither model.safetensors nor model.safetensors.index.json, and ",
                    found.empty() ? "no" : "several", " other *.safetensors"));
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

}  // namespace

Result<Checkpoint> Checkpoint::Open(const std::string& directory) {
  Checkpoint checkpoint;
  const std::string whole = directory + "/model.safetensors";
  const std::string index = directory + "/model.safetensors.index.json";
  if (Exists(whole)) {
    LS_RETURN_IF_ERROR(checkpoint.AddFile(whole));
    return checkpoint;
  }
  if (!Exists(index)) {
    LS_ASSIGN_OR_RETURN(const std::string only, OnlyFile(directory));
    LS_RETURN_IF_ERROR(checkpoint.AddFile(only));
    return checkpoint;
  }
  LS_ASSIGN_OR_RETURN(const WeightMap weights, ReadIndex(index));
  std::set<std::string> files;
  for (const auto& [tensor, file] : weights) files.insert(file);
  for (const std::string& file : files) LS_RETURN_IF_ERROR(checkpoint.AddFile(directory + "/" + file));
  for (const auto& [tensor, file] : weights) {
    if (checkpoint.Find(tensor) != nullptr) continue;
    return Status(ErrorCode::kBadData,
                  Cat(index, " says that ", file, " has tensor \"", CleanText(tensor), "\"; it does not"));
  }
  return checkpoint;
}

const Checkpoint::Tensor* Checkpoint::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Status Checkpoint::AddFile(const std::string& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) return ErrnoStatus(error.value(), Cat("cannot read ", path));
  // Links are followed, unlike those of segments: a checkpoint is the user's own, and huggingface_hub's files are
  // links.
  os::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, Cat("open ", path));
  LS_ASSIGN_OR_RETURN(os::MappedSegment file, os::AdoptSegment(std::move(fd), bytes, os::Access::kReadOnly, path));
  file.CloseFd();
  const Result<model::SafetensorsFile> parsed = model::ParseSafetensors(file.span(), bytes);
  if (!parsed.ok()) return parsed.status().WithContext(path);
  for (const model::TensorMeta& tensor : parsed->tensors) {
    const std::byte* data = file.data() + parsed->data_offset + tensor.offset;
    if (!tensors_.emplace(tensor.name, Tensor{tensor, data}).second) {
      return {ErrorCode::kBadData, Cat(path, " has tensor \"", tensor.name, "\", as another file has")};
    }
  }
  files_.push_back(std::move(file));
  return OkStatus();
}

}  // namespace lockstep::exporter
