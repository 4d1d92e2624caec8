// C++ trainers: descriptions, publisher and importer over the C ABI of lockstep.h. Header-only, C++17, throws nothing
// of its own.
//
//     lockstep::trainer::ShardDescription description(on_agent_host);
//     description.AddMegatron(config_json, place, parameters);
//     options.descriptions = gather(description.Json());          // of all ranks, by whatever the trainer has
//     options.locals = description.locals();
//     lockstep::trainer::Publisher publisher;
//     if (auto error = lockstep::trainer::Publisher::Open(options, publisher)) ...
//     if (auto error = publisher.Publish(version)) ...    // once a step, on every rank
//
// A complete trainer is in example/tensor_parallel_trainer.cc.
#ifndef LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_HPP_
#define LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_HPP_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep.h"

namespace lockstep::trainer {

// True when something failed: `if (auto error = ...) report(error.message)`.
struct [[nodiscard]] Error {
  int code = LOCKSTEP_OK;
  std::string message;

  explicit operator bool() const { return code != LOCKSTEP_OK; }
};

using Shape = std::vector<uint64_t>;

// A tensor in this process's memory.
struct Tensor {
  std::string name;
  std::string dtype;  // as safetensors names it
  Shape shape;
  void* address = nullptr;
  Shape strides;  // in elements; none: contiguous
  bool frozen = false;
  bool convert = false;  // may be exported as BF16 though it is F32
};

// Where a rank stands among Megatron's parallel groups, and their sizes.
struct Place {
  uint32_t tensor_rank = 0;
  uint32_t tensor_size = 1;
  uint32_t pipeline_rank = 0;
  uint32_t expert_rank = 0;
  uint32_t expert_size = 1;
  uint32_t expert_tensor_rank = 0;
  uint32_t expert_tensor_size = 1;
};

// What a local tensor is of a whole one.
struct Shard {
  struct Box {
    Shape local;   // where it starts in the local tensor
    Shape global;  // and in the whole one
    Shape size;
  };
  struct Into {
    std::string name;
    Shape shape;
    Shape from;
  };

  Tensor tensor;      // the local one, under the name of the whole
  std::string dtype;  // of the whole; none: the local one's
  Shape shape;        // of the whole
  std::vector<Box> boxes;
  std::vector<Into> into;  // HuggingFace tensors made of the whole; none: one of the same name
};

// A rank's description (plan/FORMAT.md), and the local tensors in its order.
class ShardDescription {
 public:
  explicit ShardDescription(bool on_agent_host) : on_agent_host_(on_agent_host) {}

  // `config_json`: the HuggingFace config.json, the same on every rank. Names as plan/FORMAT.md wants them.
  void AddMegatron(const std::string& config_json, const Place& place, const std::vector<Tensor>& parameters) {
    std::string part =
        "{\"kind\":\"megatron\",\"config\":" + config_json + ",\"place\":" + PlaceText(place) + ",\"parameters\":[";
    for (const Tensor& parameter : parameters) {
      if (&parameter != &parameters.front()) part += ',';
      part += "{\"name\":" + Quoted(parameter.name) + ",\"dtype\":" + Quoted(parameter.dtype) +
              ",\"shape\":" + Numbers(parameter.shape) + Frozen(parameter) + "}";
      locals_.push_back(parameter);
    }
    AddPart(part + "]}");
  }

  void AddTensors(const std::vector<Shard>& shards) {
    std::string part = "{\"kind\":\"tensors\",\"tensors\":[";
    for (const Shard& shard : shards) {
      if (&shard != &shards.front()) part += ',';
      part += ShardText(shard);
      locals_.push_back(shard.tensor);
    }
    AddPart(part + "]}");
  }

  std::string Json() const {
    return std::string("{\"format\":1,\"on_agent_host\":") + (on_agent_host_ ? "true" : "false") + ",\"parts\":[" +
           parts_ + "]}";
  }
  const std::vector<Tensor>& locals() const { return locals_; }

 private:
  static std::string Quoted(const std::string& text) {
    std::string quoted = "\"";
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x20) {
        char escaped[8];
        std::snprintf(escaped, sizeof(escaped), "\\u%04x", c);
        quoted += escaped;
      } else {
        if (c == '"' || c == '\\') quoted += '\\';
        quoted += c;
      }
    }
    return quoted + "\"";
  }

  static std::string Numbers(const Shape& numbers) {
    std::string text = "[";
    for (size_t i = 0; i < numbers.size(); ++i) text += (i > 0 ? "," : "") + std::to_string(numbers[i]);
    return text + "]";
  }

  static std::string Frozen(const Tensor& tensor) { return tensor.frozen ? ",\"frozen\":true" : ""; }

  static std::string PlaceText(const Place& place) {
    return "{\"tensor_rank\":" + std::to_string(place.tensor_rank) +
           ",\"tensor_size\":" + std::to_string(place.tensor_size) +
           ",\"pipeline_rank\":" + std::to_string(place.pipeline_rank) +
           ",\"expert_rank\":" + std::to_string(place.expert_rank) +
           ",\"expert_size\":" + std::to_string(place.expert_size) +
           ",\"expert_tensor_rank\":" + std::to_string(place.expert_tensor_rank) +
           ",\"expert_tensor_size\":" + std::to_string(place.expert_tensor_size) + "}";
  }

  static std::string ShardText(const Shard& shard) {
    std::string text = "{\"name\":" + Quoted(shard.tensor.name) +
                       ",\"dtype\":" + Quoted(shard.dtype.empty() ? shard.tensor.dtype : shard.dtype) +
                       ",\"shape\":" + Numbers(shard.shape) + ",\"local_shape\":" + Numbers(shard.tensor.shape) +
                       Frozen(shard.tensor) + ",\"boxes\":[";
    for (const Shard::Box& box : shard.boxes) {
      if (&box != &shard.boxes.front()) text += ',';
      text += "{\"local\":" + Numbers(box.local) + ",\"global\":" + Numbers(box.global) +
              ",\"size\":" + Numbers(box.size) + "}";
    }
    text += "]";
    if (shard.into.empty()) return text + "}";
    text += ",\"into\":[";
    for (const Shard::Into& into : shard.into) {
      if (&into != &shard.into.front()) text += ',';
      text += "{\"name\":" + Quoted(into.name) + ",\"shape\":" + Numbers(into.shape) +
              ",\"from\":" + Numbers(into.from) + "}";
    }
    return text + "]}";
  }

  void AddPart(const std::string& part) { parts_ += (parts_.empty() ? "" : ",") + part; }

  bool on_agent_host_;
  std::string parts_;
  std::vector<Tensor> locals_;
};

// How bytes get from a rank on another host to one on the agent's host: what lockstep_exchange says, as a class.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // The GPU with all messages in its memory; kHostMemory: they are in host memory.
  static constexpr int kHostMemory = -1;
  virtual int device() const { return kHostMemory; }
  virtual Error StartSend(uint32_t peer, const void* data, uint64_t bytes, uint64_t& transfer) = 0;
  virtual Error StartReceive(uint32_t peer, void* data, uint64_t bytes, uint64_t& transfer) = 0;
  virtual Error Wait(uint64_t transfer) = 0;
};

struct Options {
  std::string socket_path;
  std::string model;
  std::vector<std::string> descriptions;  // of all ranks
  uint32_t rank = 0;
  std::vector<Tensor> locals;    // ShardDescription::locals()
  uint32_t threads = 0;          // as in lockstep_options
  uint64_t bucket_bytes = 0;     // 0: 512 MiB
  Exchange* exchange = nullptr;  // outlives the publisher; null when all ranks are on the agent's host
  std::string attachments;       // a JSON object, file name to text; none: empty
  std::string guard;             // as of lockstep_options; none: empty
  std::string run;               // none: a new run
  uint32_t connect_timeout_ms = 0;
  uint32_t reconnect_timeout_ms = 0;
  uint32_t call_timeout_ms = 0;
  int (*interrupted)(void* context) = nullptr;  // as lockstep_options has it
  void* context = nullptr;
};

namespace internal {

// The C views of tensors; they point into `tensors`.
inline std::vector<lockstep_local_tensor> Views(const std::vector<Tensor>& tensors) {
  std::vector<lockstep_local_tensor> views;
  for (const Tensor& tensor : tensors) {
    views.push_back({tensor.name.c_str(), tensor.dtype.c_str(), tensor.shape.data(),
                     tensor.strides.empty() ? nullptr : tensor.strides.data(),
                     static_cast<uint32_t>(tensor.shape.size()), tensor.address, tensor.convert ? 1u : 0u});
  }
  return views;
}

inline std::vector<const char*> Texts(const std::vector<std::string>& strings) {
  std::vector<const char*> texts;
  for (const std::string& string : strings) texts.push_back(string.c_str());
  return texts;
}

// An Exchange behind the C callbacks.
struct Callbacks {
  Exchange* exchange = nullptr;
  std::string error;
  lockstep_exchange table{};

  explicit Callbacks(Exchange* exchange) : exchange(exchange) {
    table.context = this;
    table.in_gpu_memory = exchange->device() == Exchange::kHostMemory ? 0u : 1u;
    table.device = exchange->device();
    table.start_send = [](void* self, uint32_t peer, const void* data, uint64_t bytes, uint64_t* transfer) {
      return Of(self).Outcome(Of(self).exchange->StartSend(peer, data, bytes, *transfer));
    };
    table.start_receive = [](void* self, uint32_t peer, void* data, uint64_t bytes, uint64_t* transfer) {
      return Of(self).Outcome(Of(self).exchange->StartReceive(peer, data, bytes, *transfer));
    };
    table.wait = [](void* self, uint64_t transfer) { return Of(self).Outcome(Of(self).exchange->Wait(transfer)); };
    table.error = [](void* self) { return Of(self).error.c_str(); };
  }
  Callbacks(const Callbacks&) = delete;
  Callbacks& operator=(const Callbacks&) = delete;

  static Callbacks& Of(void* self) { return *static_cast<Callbacks*>(self); }
  int Outcome(Error outcome) {
    error = std::move(outcome.message);
    return outcome.code;
  }
};

}  // namespace internal

// A rank's part in a sharded model; closed with its owner. Movable. Calls must not overlap.
class Publisher {
 public:
  Publisher() = default;  // not open

  // Compiles, proves and connects. On failure `publisher` stays as it was.
  static Error Open(const Options& options, Publisher& publisher) {
    Publisher opened;
    if (options.exchange != nullptr) opened.callbacks_ = std::make_unique<internal::Callbacks>(options.exchange);
    const std::vector<const char*> descriptions = internal::Texts(options.descriptions);
    const std::vector<lockstep_local_tensor> locals = internal::Views(options.locals);
    lockstep_options converted{};
    converted.abi_version = LOCKSTEP_ABI_VERSION;
    converted.socket_path = options.socket_path.c_str();
    converted.model = options.model.c_str();
    converted.descriptions = descriptions.data();
    converted.ranks = static_cast<uint32_t>(descriptions.size());
    converted.rank = options.rank;
    converted.locals = locals.data();
    converted.local_count = locals.size();
    converted.threads = options.threads;
    converted.bucket_bytes = options.bucket_bytes;
    converted.exchange = opened.callbacks_ == nullptr ? nullptr : &opened.callbacks_->table;
    converted.attachments = options.attachments.empty() ? nullptr : options.attachments.c_str();
    converted.guard = options.guard.empty() ? nullptr : options.guard.c_str();
    converted.run = options.run.empty() ? nullptr : options.run.c_str();
    converted.connect_timeout_ms = options.connect_timeout_ms;
    converted.reconnect_timeout_ms = options.reconnect_timeout_ms;
    converted.call_timeout_ms = options.call_timeout_ms;
    converted.interrupted = options.interrupted;
    converted.context = options.context;
    lockstep_publisher* handle = nullptr;
    const int code = lockstep_open(&converted, &handle);
    if (code != LOCKSTEP_OK) return {code, lockstep_last_error(nullptr)};
    opened.handle_.reset(handle);
    opened.locals_ = locals.size();
    publisher = std::move(opened);
    return {};
  }

  // This rank's part of `version`, which is called `label` beside its number: see lockstep_publish. `addresses`, where
  // given, are one for each local tensor.
  Error Publish(uint64_t version, const std::string& label = {}, const std::vector<const void*>& addresses = {}) {
    if (!addresses.empty() && addresses.size() != locals_) {
      return {LOCKSTEP_BAD_DATA, std::to_string(addresses.size()) + " addresses were given for " +
                                     std::to_string(locals_) + " local tensors"};
    }
    const void* const* given = addresses.empty() ? nullptr : addresses.data();
    return Outcome(lockstep_publish(handle_.get(), version, label.c_str(), given));
  }

  // In place of Publish(), on a rank that failed before it came to it: the others get an error, and the next one works.
  Error Abort(uint64_t version, const std::string& reason) {
    return Outcome(lockstep_abort(handle_.get(), version, reason.c_str()));
  }

  // Writes `bytes` bytes of the data section from `offset` on to `target`, in host or GPU memory.
  Error Fill(uint64_t offset, uint64_t bytes, void* target) {
    return Outcome(lockstep_fill(handle_.get(), nullptr, offset, bytes, target));
  }

  bool is_open() const { return handle_ != nullptr; }
  std::string run() const { return lockstep_run(handle_.get()); }
  uint64_t committed_version() const { return lockstep_committed_version(handle_.get()); }
  // Of the last publish; all 0 when not open.
  lockstep_publish_stats stats() const {
    lockstep_publish_stats stats{};
    (void)lockstep_stats(handle_.get(), &stats);
    return stats;
  }
  // JSON, as lockstep_describe says.
  std::string Describe() { return lockstep_describe(handle_.get()); }

 private:
  struct Close {
    void operator()(lockstep_publisher* publisher) const { lockstep_close(publisher); }
  };

  Error Outcome(int code) const { return {code, code == LOCKSTEP_OK ? "" : lockstep_last_error(handle_.get())}; }

  std::unique_ptr<internal::Callbacks> callbacks_;
  std::unique_ptr<lockstep_publisher, Close> handle_;  // uses the callbacks: goes first
  size_t locals_ = 0;
};

// Fills the description's local tensors from the HuggingFace checkpoint in `directory`.
inline Error Import(const std::string& directory, const ShardDescription& description, uint32_t threads = 1) {
  const std::vector<lockstep_local_tensor> locals = internal::Views(description.locals());
  const int code =
      lockstep_import(directory.c_str(), description.Json().c_str(), locals.data(), locals.size(), threads);
  return {code, code == LOCKSTEP_OK ? "" : lockstep_last_error(nullptr)};
}

// tensors_meta of these descriptions as JSON: the dry run.
inline Error TensorsMeta(const std::vector<std::string>& descriptions, std::string& json) {
  const std::vector<const char*> texts = internal::Texts(descriptions);
  char* made = nullptr;
  const int code = lockstep_tensors_meta(texts.data(), static_cast<uint32_t>(texts.size()), &made);
  if (code != LOCKSTEP_OK) return {code, lockstep_last_error(nullptr)};
  json = made;
  lockstep_free(made);
  return {};
}

// Waits until receivers serve a version. `json` is as of lockstep_wait_served; empty: the agent did not answer.
inline Error WaitServed(const lockstep_served_query& query, std::string& json) {
  char* answer = nullptr;
  const int code = lockstep_wait_served(&query, &answer);
  json = answer == nullptr ? "" : answer;
  lockstep_free(answer);
  return {code, code == LOCKSTEP_OK ? "" : lockstep_last_error(nullptr)};
}

}  // namespace lockstep::trainer

#endif  // LOCKSTEP_EXPORT_PLUGIN_LOCKSTEP_HPP_
