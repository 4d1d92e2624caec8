// A Llama-like model as the ranks of a tensor-parallel trainer hold it, with memory, for benchmarks.
#pragma once

#include <sys/mman.h>

#include <string>
#include <vector>

#include "common/layout/copy_plan.h"
#include "export_plugin/exporter/local_tensor.h"
#include "export_plugin/plan/shard_description.h"
#include "tests/bench/common/memory.h"
#include "tests/bench/common/or_die.h"

namespace lockstep::bench {

// About 1.4 GB in bf16.
constexpr uint64_t kLlamaBytes = 1'400'000'000;
constexpr char kLlamaConfig[] = R"({"model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 2,
  "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
  "intermediate_size": 14336, "vocab_size": 32000, "tie_word_embeddings": false})";

// About 22 MB.
constexpr char kSmallLlamaConfig[] = R"({"model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 2,
  "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
  "intermediate_size": 1792, "vocab_size": 4000, "tie_word_embeddings": false})";

// The small one when that is asked for, or when memory is too short for so many copies of the other.
inline const char* LlamaConfig(bool quick, uint64_t copies) {
  return quick || FittingBytes(kLlamaBytes, copies) < kLlamaBytes ? kSmallLlamaConfig : kLlamaConfig;
}

// Memory that exists: every page was written, with bytes that differ.
inline std::byte* FilledMemory(uint64_t bytes, uint8_t seed) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) Fail(ErrnoStatus(errno, "mmap"));
  auto* first = static_cast<std::byte*>(memory);
  for (uint64_t i = 0; i < bytes; ++i) first[i] = static_cast<std::byte>(seed + i * 31 + (i >> 12));
  return first;
}

// The tensors of one rank, one after the other in memory of their own.
struct RankMemory {
  std::vector<exporter::LocalTensor> locals;
  std::byte* memory = nullptr;
  uint64_t bytes = 0;
};

inline RankMemory MemoryOf(const plan::ShardDescription& description, uint8_t seed) {
  RankMemory rank;
  std::vector<uint64_t> offsets;
  for (const plan::DescribedLocal& local : plan::LocalsOf(description)) {
    const model::DType dtype = local.dtype.value_or(model::DType::kBF16);
    const layout::TensorView view = layout::TensorView::Contiguous(local.shape, 2, 0);
    rank.locals.push_back({.name = local.name, .dtype = dtype, .shape = view.shape, .strides = view.strides});
    offsets.push_back(rank.bytes);
    rank.bytes += layout::ElementCount(local.shape) * model::FindDType(dtype)->bits / 8;
  }
  rank.memory = FilledMemory(rank.bytes, seed);
  for (size_t i = 0; i < offsets.size(); ++i) rank.locals[i].address = rank.memory + offsets[i];
  return rank;
}

}  // namespace lockstep::bench
