// Where a test rank has the tensors of a TestModel, and what its memory is at each version. For tests.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "raas_receiver/engine/placement/description/description.h"
#include "raas_receiver/replica/test_model.h"

namespace lockstep::engine {

// What one of two ranks that share a TestModel holds in its memory: "embed" by columns, "codes" in two parts, each
// padded; the rest both have.
class TestRankMemory {
 public:
  // `without`: a tensor that the rank does not have.
  TestRankMemory(const replica::TestModel& model, uint32_t rank, const std::string& without = "")
      : model_(model), rank_(rank) {
    for (const model::TensorMeta& tensor : model.layout()->tensors()) {
      if (tensor.name != without) Add(tensor);
    }
    bytes_ = (bytes_ + 4095) / 4096 * 4096;
  }

  uint64_t bytes() const { return bytes_; }

  RankDescription Describe() const {
    RankDescription description{.rank = rank_, .world = 2};
    description.memories = {bytes_};
    description.parameters = parameters_;
    return description;
  }

  // The memory at `version`.
  Bytes Expected(Version version) const {
    Bytes expected(bytes_);
    Fill(expected.data());
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const model::TensorMeta& tensor = *tensors_[i];
      const Slice& slice = parameters_[i].slices[0];
      const uint64_t unit = UnitOf(tensor);
      const uint64_t columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
      const uint64_t taken = slice.shape.size() == 2 ? slice.shape[1] : 1;
      const uint64_t rows = slice.shape.empty() ? 1 : slice.shape[0];
      for (uint64_t row = 0; row < rows; ++row) {
        const uint64_t first = slice.shape.empty() ? 0 : slice.from[0];
        const uint64_t column = slice.shape.size() == 2 ? slice.from[1] : 0;
        std::copy_n(model_.data(version).data() + tensor.offset + ((first + row) * columns + column) * unit,
                    taken * unit, expected.data() + parameters_[i].offset + row * taken * unit);
      }
      for (const Padding& padding : parameters_[i].padding) {
        std::fill_n(expected.data() + parameters_[i].offset + padding.at[0], padding.shape[0], std::byte{0});
      }
    }
    return expected;
  }

  // Whether `memory` is `version`, element by element; what no parameter has must still be as Fill left it.
  bool Is(Version version, const std::byte* memory) const {
    const Bytes expected = Expected(version);
    return std::equal(expected.begin(), expected.end(), memory);
  }
  void Fill(std::byte* memory) const { std::fill(memory, memory + bytes_, std::byte{0xa5}); }

  // Of the memory: the first byte of padding.
  uint64_t padding() const {
    for (const EngineParameter& parameter : parameters_) {
      if (!parameter.padding.empty()) return parameter.offset + parameter.padding[0].at[0];
    }
    return bytes_;
  }

 private:
  static constexpr uint64_t kPadding = 5;

  void Add(const model::TensorMeta& tensor) {
    Slice slice{.tensor = tensor.name,
                .from = layout::Extents(tensor.shape.size()),
                .shape = tensor.shape,
                .at = layout::Extents(tensor.shape.size())};
    if (tensor.name == "embed") {
      slice.shape[1] /= 2;
      slice.from[1] = rank_ * slice.shape[1];
    }
    if (tensor.name == "codes") {
      const uint64_t first = tensor.shape[0] / 3;
      slice.from[0] = rank_ == 0 ? 0 : first;
      slice.shape[0] = rank_ == 0 ? first : tensor.shape[0] - first;
    }
    EngineParameter parameter{.name = "p_" + tensor.name, .dtype = tensor.dtype, .shape = slice.shape};
    if (tensor.name == "codes") {
      parameter.shape[0] += kPadding;
      parameter.padding = {{{slice.shape[0]}, {kPadding}}};
    }
    parameter.strides = layout::Extents(slice.shape.size(), 1);
    for (size_t dim = slice.shape.size(); dim-- > 1;) {
      parameter.strides[dim - 1] = parameter.strides[dim] * std::max<uint64_t>(slice.shape[dim], 1);
    }
    parameter.offset = bytes_;
    parameter.slices = {slice};
    uint64_t elements = 1;
    for (const uint64_t size : parameter.shape) elements *= size;
    bytes_ = (bytes_ + elements * UnitOf(tensor) + 64 + 255) / 256 * 256;
    parameters_.push_back(parameter);
    tensors_.push_back(&tensor);
  }

  static uint64_t UnitOf(const model::TensorMeta& tensor) {
    return tensor.dtype == model::DType::kBF16 ? 2 : tensor.dtype == model::DType::kF32 ? 4 : 1;
  }

  const replica::TestModel& model_;
  const uint32_t rank_;
  std::vector<EngineParameter> parameters_;
  std::vector<const model::TensorMeta*> tensors_;  // by parameter
  uint64_t bytes_ = 0;
};

}  // namespace lockstep::engine
