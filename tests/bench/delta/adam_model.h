// Two consecutive versions of a model in training, for benchmarks: weights that Adam moves, rounded to bf16.
//
// What Adam adds to a weight follows from its gradients alone. So a small tile of elements is trained, and the sums of
// its updates serve every weight of a model of any size, without any state per element:
//
//   weight(version) = bf16(checkpoint + learning_rate · sum(version)), checkpoint = bf16(base + scale(tensor, row) · z)
//
// That training starts from a checkpoint in bf16 matters: a large weight, in the middle of its rounding interval, needs
// many steps to leave it. z comes from a tile of normal numbers; each part of a row takes from places of its own in
// both tiles, so that pairs hardly ever meet again. Densities, gaps and steps thus come of Adam and of rounding, and
// are not put in: adam_model_test checks them against what is known of real deltas.
//
// Scales are 0.01 to 0.05 by tensor and log-normal by row. Norms are near 1; every twentieth tensor never changes; of
// embeddings some rows do. A density is reached by its learning rate. Immutable, so thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/worker_pool.h"
#include "common/model/layout.h"

namespace lockstep::bench {

class AdamModel {
 public:
  // Of tensors in bf16; version 0 is the one after `first_step` steps of training, version 1 the next.
  explicit AdamModel(std::shared_ptr<const model::ModelLayout> layout, uint32_t first_step = 40);

  const std::shared_ptr<const model::ModelLayout>& layout() const { return layout_; }

  // The whole data section. REQUIRES data.size() == layout()->data_bytes(), and the same rate for all versions that
  // are to follow each other. Not from a task of `pool`.
  void Write(uint32_t version, double learning_rate, std::span<std::byte> data, WorkerPool& pool) const;

  // The rate at which about this share of all elements differs between versions 0 and 1: from a sample, within a few
  // per cent.
  double LearningRateFor(double density) const;

 private:
  // Rows of one tensor that are written together.
  struct Rows {
    uint32_t tensor = 0;
    uint64_t first = 0;
    uint64_t count = 0;
  };

  double DensityOf(std::span<const Rows> sample, double learning_rate) const;
  void WriteRows(const Rows& rows, uint32_t version, double learning_rate, uint16_t* to) const;
  void WriteRow(uint32_t tensor, uint64_t row, uint32_t version, double learning_rate, uint16_t* to) const;

  const std::shared_ptr<const model::ModelLayout> layout_;
  std::vector<Rows> work_;
  std::vector<float> normals_;
  std::vector<std::vector<float>> sums_;  // by version: of all updates up to it
};

}  // namespace lockstep::bench
