// A trainer without a GPU: fp32 masters and Adam state of a whole model, stepped and published in one pass.
//
// What is trained: every bf16, f16 and f32 tensor but one in twenty, which stays frozen, as some do in real runs;
// of an embedding only the rows that "occurred in the batch", one in eight. Tensors of any other dtype are carried
// unchanged.
//
// The caller's thread and threads - 1 of its own do the work; calls must not overlap. A run is a function of the model,
// the options and nothing else.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/base/worker_pool.h"
#include "deploy/demo_trainer/initial_model.h"

namespace lockstep::demo {

struct TrainerOptions {
  double learning_rate = 1e-6;
  uint64_t seed = 1;
  size_t threads = 1;
};

class Trainer {
 public:
  // Called with ranges of the data section as they become final, in ascending order, on the caller's thread. An error
  // ends the pass.
  using RangeDone = std::function<Status(ByteRange)>;

  // Memory that Create() reserves and the first passes fault in: 12 bytes per trained parameter, 4 per frozen one.
  static uint64_t StateBytes(const InitialModel& model, uint64_t seed);

  // kResourceExhausted when there is no memory for the state.
  static Result<std::unique_ptr<Trainer>> Create(InitialModel model, const TrainerOptions& options);

  // Makes the initial masters and writes them, as published, to `data`: the data section of the layout, all of it.
  Status PublishInitial(std::byte* data, const RangeDone& done);

  // One optimizer step; writes all of `data` again. Returns how many elements changed against the previous publication.
  // REQUIRES that PublishInitial has been called.
  Result<uint64_t> StepAndPublish(std::byte* data, const RangeDone& done);

  // SHA-256, in hex, of the data section as last published, computed from the masters and never from where they were
  // published to: whatever happened to those bytes since then shows.
  std::string Digest() const;

  uint64_t elements() const { return elements_; }
  const model::ModelLayout& layout() const { return *model_.layout; }

 private:
  // A tensor as the passes see it. Without a state it is carried: its values are copied.
  struct Tensor {
    model::DType dtype = model::DType::kU8;
    std::string name;
    uint32_t ordinal = 0;   // in the layout; what its random numbers depend on
    uint64_t offset = 0;    // in the data section
    uint64_t elements = 0;  // of the encoding; bytes when carried
    uint64_t element_bytes = 1;
    uint64_t row = 1;       // elements of the innermost dimension
    bool sparse = false;    // an embedding: only some rows are touched per step
    ByteView values;        // of the checkpoint, or empty
    uint64_t arrays = 0;    // of the state: masters and, unless it is frozen, both moments; none when carried
    uint64_t state_at = 0;  // where these begin, in floats, one behind the other

    uint64_t array_floats() const;
  };
  struct Slice {  // work of one thread at a time
    const Tensor* tensor = nullptr;
    uint64_t first = 0;
    uint64_t count = 0;
  };
  struct Bucket {  // consecutive slices that are reported together
    size_t first_slice = 0;
    size_t slices = 0;
    ByteRange range;
  };
  using SliceWork = std::function<uint64_t(const Slice&, std::byte*)>;

  struct Unmap {
    uint64_t bytes;
    void operator()(float* memory) const;
  };
  using State = std::unique_ptr<float, Unmap>;

  static std::vector<Tensor> Describe(const InitialModel& model, uint64_t seed);
  static Result<State> Reserve(uint64_t bytes);

  Trainer(InitialModel model, const TrainerOptions& options);
  void CutSlices();
  float* Masters(const Tensor& tensor) const { return state_.get() + tensor.state_at; }
  Result<uint64_t> Pass(std::byte* data, const RangeDone& done, const SliceWork& work);
  void MakeMasters(const Slice& slice) const;
  void EncodeSlice(const Slice& slice, std::byte* out) const;
  uint64_t StepSlice(const Slice& slice, std::byte* out) const;

  InitialModel model_;
  TrainerOptions options_;
  uint64_t elements_ = 0;
  uint64_t step_ = 0;
  State state_;
  std::vector<Tensor> tensors_;
  std::vector<Slice> slices_;
  std::vector<Bucket> buckets_;
  std::optional<WorkerPool> helpers_;  // none for a single thread
};

}  // namespace lockstep::demo
