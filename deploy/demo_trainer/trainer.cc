#include "deploy/demo_trainer/trainer.h"

#include <openssl/evp.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "common/base/ids.h"
#include "common/base/text.h"
#include "deploy/demo_trainer/adam.h"
#include "deploy/demo_trainer/noise.h"

namespace lockstep::demo {
namespace {

constexpr uint64_t kSliceElements = 256 * 1024;
constexpr uint64_t kBucketBytes = 32 << 20;  // what becomes final at once: large against a message to the agent
constexpr uint32_t kFrozenOneIn = 20;
constexpr uint32_t kRowTouchedOneIn = 8;
constexpr uint64_t kFloatsPerCacheLine = 16;

// What a random number is for; each purpose has streams of its own.
enum class Draw : uint32_t { kFrozen = 1, kSigma, kRowScale, kWeight, kMeanGradient, kNoise, kTouchedRows, kLowBits };

uint32_t SeedOf(uint64_t seed, Draw draw, uint32_t tensor, uint64_t step = 0) {
  uint32_t hash = Mix(static_cast<uint32_t>(seed) ^ 0x6c0c5e9du);
  for (const uint64_t part : {seed >> 32, static_cast<uint64_t>(draw), static_cast<uint64_t>(tensor), step}) {
    hash = HashAt(hash, static_cast<uint32_t>(part));
  }
  return hash;
}

// One tensor of every twenty, at random.
bool IsFrozen(uint64_t seed, uint32_t tensor) {
  return tensor % kFrozenOneIn == SeedOf(seed, Draw::kFrozen, tensor / kFrozenOneIn) % kFrozenOneIn;
}
bool IsNorm(std::string_view name) {
  return name.find("norm") != std::string_view::npos;
}
bool IsEmbedding(const model::TensorMeta& tensor) {
  return tensor.shape.size() == 2 && tensor.name.find("embed") != std::string::npos;
}

// Weights as trained networks have them: a sigma per tensor between 0.01 and 0.05, and rows of different strength.
// Norms near 1.
void DrawWeights(uint64_t seed, uint32_t tensor, bool norm, uint64_t row, uint64_t first, uint64_t count, float* out) {
  constexpr float kNormSigma = 0.02f;
  constexpr float kRowSpread = 0.3f;
  const float sigma = norm ? kNormSigma : 0.01f + 0.04f * Uniform(SeedOf(seed, Draw::kSigma, tensor), 0);
  const uint32_t weights = SeedOf(seed, Draw::kWeight, tensor);
  const uint32_t rows = SeedOf(seed, Draw::kRowScale, tensor);
  for (uint64_t i = 0; i < count;) {
    const uint64_t index = first + i;
    const uint64_t until = std::min(count, i + row - index % row);
    const float log_scale = norm ? 0.0f : kRowSpread * FineNormal(rows, static_cast<uint32_t>(index / row));
    const float scale = sigma * std::exp(log_scale);
    const float center = norm ? 1.0f : 0.0f;
    for (; i < until; ++i) out[i] = center + scale * FineNormal(weights, static_cast<uint32_t>(first + i));
  }
}

}  // namespace

uint64_t Trainer::Tensor::array_floats() const {
  return (elements + kFloatsPerCacheLine - 1) / kFloatsPerCacheLine * kFloatsPerCacheLine;
}

std::vector<Trainer::Tensor> Trainer::Describe(const InitialModel& model, uint64_t seed) {
  const auto& metas = model.layout->tensors();
  std::vector<Tensor> tensors;
  uint64_t floats = 0;
  for (size_t i = 0; i < metas.size(); ++i) {
    Tensor tensor{.dtype = metas[i].dtype,
                  .name = metas[i].name,
                  .ordinal = static_cast<uint32_t>(i),
                  .offset = metas[i].offset,
                  .elements = model.layout->tensor_bytes(i),
                  .state_at = floats};
    if (!model.values.empty()) tensor.values = model.values[i];
    const bool frozen = IsFrozen(seed, tensor.ordinal) && !IsEmbedding(metas[i]);
    if (IsTrainable(tensor.dtype) && !(frozen && !model.values.empty())) {
      tensor.element_bytes = model::FindDType(tensor.dtype)->unit_bytes;
      tensor.elements /= tensor.element_bytes;
      tensor.row = metas[i].shape.empty() ? 1 : std::max<uint64_t>(metas[i].shape.back(), 1);
      tensor.sparse = IsEmbedding(metas[i]);
      tensor.arrays = frozen ? 1 : 3;
    }
    floats += tensor.arrays * tensor.array_floats();
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

uint64_t Trainer::StateBytes(const InitialModel& model, uint64_t seed) {
  const Tensor last = Describe(model, seed).back();
  return (last.state_at + last.arrays * last.array_floats()) * sizeof(float);
}

void Trainer::Unmap::operator()(float* memory) const {
  ::munmap(memory, bytes);
}

// Zeroed memory that costs nothing until it is touched: pages are faulted in by whoever first writes them, which on a
// virtual machine is the slowest thing a trainer does at start. Huge pages where the kernel gives them.
Result<Trainer::State> Trainer::Reserve(uint64_t bytes) {
  if (bytes == 0) return State();
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return ErrnoStatus(errno, Cat("reserving ", HumanBytes(bytes), " for the optimizer's state"));
  }
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);  // best effort: some kernels have no huge pages
  return State(static_cast<float*>(memory), Unmap{bytes});
}

Result<std::unique_ptr<Trainer>> Trainer::Create(InitialModel model, const TrainerOptions& options) {
  std::unique_ptr<Trainer> trainer(new Trainer(std::move(model), options));
  LS_ASSIGN_OR_RETURN(trainer->state_, Reserve(StateBytes(trainer->model_, options.seed)));
  return trainer;
}

Trainer::Trainer(InitialModel model, const TrainerOptions& options)
    : model_(std::move(model)),
      options_(options),
      elements_(ElementCount(layout())),
      tensors_(Describe(model_, options.seed)) {
  if (options_.threads > 1) helpers_.emplace(options_.threads - 1);
  CutSlices();
}

void Trainer::CutSlices() {
  for (const Tensor& tensor : tensors_) {
    const uint64_t whole_rows = std::max(tensor.row, kSliceElements / tensor.row * tensor.row);
    const uint64_t step = tensor.sparse ? whole_rows : kSliceElements;
    for (uint64_t first = 0; first < tensor.elements; first += step) {
      const Slice slice{&tensor, first, std::min(step, tensor.elements - first)};
      const ByteRange range{tensor.offset + first * tensor.element_bytes, slice.count * tensor.element_bytes};
      if (buckets_.empty() || buckets_.back().range.bytes >= kBucketBytes) {
        buckets_.push_back({.first_slice = slices_.size(), .range = {.offset = range.offset}});
      }
      slices_.push_back(slice);
      ++buckets_.back().slices;
      buckets_.back().range.bytes += range.bytes;
    }
  }
}

Result<uint64_t> Trainer::Pass(std::byte* data, const RangeDone& done, const SliceWork& work) {
  std::atomic<uint64_t> changed = 0;
  for (const Bucket& bucket : buckets_) {
    const auto body = [&](size_t i) {
      const Slice& slice = slices_[bucket.first_slice + i];
      changed += work(slice, data + slice.tensor->offset + slice.first * slice.tensor->element_bytes);
    };
    if (helpers_) {
      helpers_->ParallelFor(bucket.slices, body);
    } else {
      for (size_t i = 0; i < bucket.slices; ++i) body(i);
    }
    LS_RETURN_IF_ERROR(done(bucket.range));
  }
  return changed.load();
}

Status Trainer::PublishInitial(std::byte* data, const RangeDone& done) {
  const auto make = [this](const Slice& slice, std::byte* out) -> uint64_t {
    MakeMasters(slice);
    EncodeSlice(slice, out);
    return 0;
  };
  return Pass(data, done, make).status();
}

Result<uint64_t> Trainer::StepAndPublish(std::byte* data, const RangeDone& done) {
  ++step_;
  return Pass(data, done, [this](const Slice& slice, std::byte* out) { return StepSlice(slice, out); });
}

void Trainer::MakeMasters(const Slice& slice) const {
  const Tensor& tensor = *slice.tensor;
  if (tensor.arrays == 0) return;
  float* out = Masters(tensor) + slice.first;
  if (tensor.values.empty()) {
    return DrawWeights(options_.seed, tensor.ordinal, IsNorm(tensor.name), tensor.row, slice.first, slice.count, out);
  }
  Decode(tensor.dtype, tensor.values.data() + slice.first * tensor.element_bytes, slice.count,
         SeedOf(options_.seed, Draw::kLowBits, tensor.ordinal), static_cast<uint32_t>(slice.first), out);
}

void Trainer::EncodeSlice(const Slice& slice, std::byte* out) const {
  const Tensor& tensor = *slice.tensor;
  if (tensor.arrays == 0) {
    std::memcpy(out, tensor.values.data() + slice.first, slice.count);
  } else {
    Encode(tensor.dtype, Masters(tensor) + slice.first, slice.count, out);
  }
}

uint64_t Trainer::StepSlice(const Slice& slice, std::byte* out) const {
  const Tensor& tensor = *slice.tensor;
  if (tensor.arrays < 3) {
    EncodeSlice(slice, out);
    return 0;
  }
  const AdamStep step =
      MakeAdamStep(options_.learning_rate, step_, SeedOf(options_.seed, Draw::kMeanGradient, tensor.ordinal),
                   SeedOf(options_.seed, Draw::kNoise, tensor.ordinal, step_));
  const auto step_run = [&](const Slice& part, std::byte* to) {
    float* const masters = Masters(tensor) + part.first;
    return StepAndEncode(tensor.dtype, step,
                         {.master = masters,
                          .first_moment = masters + tensor.array_floats(),
                          .second_moment = masters + 2 * tensor.array_floats(),
                          .index = static_cast<uint32_t>(part.first),
                          .count = part.count},
                         to);
  };
  if (!tensor.sparse) return step_run(slice, out);

  const uint32_t touched = SeedOf(options_.seed, Draw::kTouchedRows, tensor.ordinal, step_);
  uint64_t changed = 0;
  for (uint64_t first = slice.first; first < slice.first + slice.count; first += tensor.row) {
    const Slice row{&tensor, first, tensor.row};
    std::byte* to = out + (first - slice.first) * tensor.element_bytes;
    if (HashAt(touched, static_cast<uint32_t>(first / tensor.row)) % kRowTouchedOneIn == 0) {
      changed += step_run(row, to);
    } else {
      EncodeSlice(row, to);
    }
  }
  return changed;
}

// OpenSSL's calls fail here only for want of memory or of the algorithm; EVP_sha256() is always there.
std::string Trainer::Digest() const {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> sha256(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  EVP_DigestInit_ex(sha256.get(), EVP_sha256(), nullptr);
  Bytes scratch(kSliceElements * sizeof(float));
  for (const Slice& slice : slices_) {
    const uint64_t bytes = slice.count * slice.tensor->element_bytes;
    if (scratch.size() < bytes) scratch.resize(bytes);
    EncodeSlice(slice, scratch.data());
    EVP_DigestUpdate(sha256.get(), scratch.data(), bytes);
  }
  std::array<uint8_t, 32> digest{};
  EVP_DigestFinal_ex(sha256.get(), digest.data(), nullptr);
  return HexEncode(digest);
}

}  // namespace lockstep::demo
