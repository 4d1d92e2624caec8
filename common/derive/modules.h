// Which weights of a model are quantised, by the names of its modules (FORMAT.md, "Which weights").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/derive/format.h"
#include "common/model/layout.h"

namespace lockstep::derive {

// Whether a weight of this dtype can be quantised.
bool IsFloat(model::DType dtype);

class Selection {
 public:
  // By `config` and the list of modules that its quantization_config leaves out. kBadData: the list has something other
  // than exact names.
  static Result<Selection> Create(const Json& config, const Json* left_out);

  // Whether the tensor is such a weight, of whatever dtype.
  bool Takes(const model::TensorMeta& tensor) const;
  // Whether the tensor has the weights of all experts of such a layer.
  bool HoldsExperts(const model::TensorMeta& tensor) const;

 private:
  // Whether the module, or tensor, is in a layer of the decoder and not left out.
  bool Reaches(std::string_view module) const;

  uint64_t layers_ = ~uint64_t{0};     // of the decoder; those beyond are of multi-token prediction
  std::vector<std::string> left_out_;  // sorted
};

}  // namespace lockstep::derive
