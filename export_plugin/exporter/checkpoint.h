// Checkpoint: a HuggingFace directory's tensors, mapped read-only.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "common/model/layout.h"
#include "common/os/segment.h"

namespace lockstep::exporter {

// Immutable once opened; it must outlive what points into it. The files must not be cut short meanwhile.
class Checkpoint {
 public:
  struct Tensor {
    model::TensorMeta meta;
    const std::byte* data = nullptr;
  };

  // `directory` holds model.safetensors, or model.safetensors.index.json and the files that it names, or one file
  // *.safetensors. Links are followed. kNotFound, kIo and kBadData name the file, and the tensor that the index
  // promises in vain.
  static Result<Checkpoint> Open(const std::string& directory);

  // Null when there is none of this name.
  const Tensor* Find(const std::string& name) const;
  // By name.
  const std::unordered_map<std::string, Tensor>& tensors() const { return tensors_; }

 private:
  // Maps one file and takes its tensors. kBadData for a tensor that another file has too.
  Status AddFile(const std::string& path);

  std::vector<os::MappedSegment> files_;
  std::unordered_map<std::string, Tensor> tensors_;
};

}  // namespace lockstep::exporter
