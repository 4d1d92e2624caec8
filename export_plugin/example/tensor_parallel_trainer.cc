// A tensor-parallel trainer in C++: one process for each rank, a small Llama in Megatron's layout, Adam on made-up
// gradients, and one Lockstep call a step.
//
//     tensor_parallel_trainer --socket /run/trainer-agent/export.sock --ranks 2 --steps 5
//
// --remote N plays the last N ranks on another host: they never touch the agent, and send their shards to a rank
// on its host. --dump DIR writes what each rank holds at each step, for a test that puts it together by itself.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "export_plugin/lockstep.hpp"

namespace {

namespace ls = lockstep::trainer;

struct Arguments {
  std::string socket;
  std::string model = "actor";
  std::string dump;
  uint32_t ranks = 2;
  uint32_t remote = 0;
  uint64_t steps = 5;
};

// ---- The model, as Megatron-core holds it. -------------------------------------------------------------------------

constexpr uint64_t kLayers = 2, kHidden = 64, kHeads = 8, kGroups = 4, kHeadDim = 8, kFfn = 96;
constexpr uint64_t kPaddedWords = 256;

const char kConfig[] = R"({"model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 2, "hidden_size": 64,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 96, "vocab_size": 200,
  "tie_word_embeddings": false})";

// A parameter of one rank: BF16 weights that are published, and Adam's FP32 state.
struct Parameter {
  std::string name;
  ls::Shape shape;
  bool sharded = false;  // else all ranks hold the same
  std::vector<uint16_t> weights;
  std::vector<float> master, mean, variance;
};

std::vector<Parameter> MakeParameters(uint64_t tensor_size) {
  std::vector<Parameter> parameters;
  const auto add = [&](const std::string& name, ls::Shape shape, bool sharded) {
    parameters.push_back({name, std::move(shape), sharded, {}, {}, {}, {}});
  };
  const uint64_t qkv_rows = (kHeads + 2 * kGroups) * kHeadDim;
  add("embedding.word_embeddings.weight", {kPaddedWords / tensor_size, kHidden}, true);
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "decoder.layers." + std::to_string(layer) + ".";
    add(prefix + "input_layernorm.weight", {kHidden}, false);
    add(prefix + "self_attention.linear_qkv.weight", {qkv_rows / tensor_size, kHidden}, true);
    add(prefix + "self_attention.linear_proj.weight", {kHidden, kHeads * kHeadDim / tensor_size}, true);
    add(prefix + "pre_mlp_layernorm.weight", {kHidden}, false);
    add(prefix + "mlp.linear_fc1.weight", {2 * kFfn / tensor_size, kHidden}, true);
    add(prefix + "mlp.linear_fc2.weight", {kHidden, kFfn / tensor_size}, true);
  }
  add("decoder.final_layernorm.weight", {kHidden}, false);
  add("output_layer.weight", {kPaddedWords / tensor_size, kHidden}, true);
  return parameters;
}

uint16_t RoundToBF16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The same numbers on every rank that holds the same parameter.
std::mt19937 Generator(const Parameter& parameter, uint32_t rank, uint64_t step) {
  std::seed_seq seed{std::hash<std::string>()(parameter.name), uint64_t{parameter.sharded ? rank + 1 : 0}, step};
  return std::mt19937(seed);
}

void Initialise(Parameter& parameter, uint32_t rank) {
  uint64_t elements = 1;
  for (const uint64_t extent : parameter.shape) elements *= extent;
  std::mt19937 random = Generator(parameter, rank, 0);
  std::normal_distribution<float> value(0, 0.02f);
  for (auto* state : {&parameter.master, &parameter.mean, &parameter.variance}) state->assign(elements, 0);
  for (float& weight : parameter.master) weight = value(random);
  parameter.weights.resize(elements);
}

void AdamStep(Parameter& parameter, uint32_t rank, uint64_t step) {
  constexpr float kRate = 1e-4f, kBeta1 = 0.9f, kBeta2 = 0.99f;
  std::mt19937 random = Generator(parameter, rank, step);
  std::normal_distribution<float> gradient;
  for (size_t i = 0; i < parameter.master.size(); ++i) {
    const float g = gradient(random);
    parameter.mean[i] = kBeta1 * parameter.mean[i] + (1 - kBeta1) * g;
    parameter.variance[i] = kBeta2 * parameter.variance[i] + (1 - kBeta2) * g * g;
    parameter.master[i] -= kRate * parameter.mean[i] / (std::sqrt(parameter.variance[i]) + 1e-8f);
    parameter.weights[i] = RoundToBF16(parameter.master[i]);
  }
}

// ---- What a real trainer has from MPI, NCCL or torch: pairs of sockets between the ranks. --------------------------

bool WriteAll(int fd, const void* data, uint64_t bytes) {
  for (const char* at = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t wrote = ::send(fd, at, bytes, MSG_NOSIGNAL);
    if (wrote <= 0) return false;
    at += wrote;
    bytes -= static_cast<uint64_t>(wrote);
  }
  return true;
}

bool ReadAll(int fd, void* data, uint64_t bytes) {
  for (char* at = static_cast<char*>(data); bytes > 0;) {
    const ssize_t got = ::read(fd, at, bytes);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<uint64_t>(got);
  }
  return true;
}

// wires[a][b] is rank a's end towards rank b.
using Wires = std::vector<std::vector<int>>;

Wires ConnectAll(uint32_t ranks) {
  Wires wires(ranks, std::vector<int>(ranks, -1));
  for (uint32_t a = 0; a < ranks; ++a) {
    for (uint32_t b = 0; b < a; ++b) {
      int ends[2];
      if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
      wires[a][b] = ends[0];
      wires[b][a] = ends[1];
    }
  }
  return wires;
}

// A rank keeps its own ends alone: a rank that dies is noticed by the others.
void KeepOwn(const Wires& wires, uint32_t rank) {
  for (uint32_t a = 0; a < wires.size(); ++a) {
    for (const int end : wires[a]) {
      if (a != rank && end >= 0) ::close(end);
    }
  }
}

// All ranks' texts, in rank order. Every rank writes first: descriptions of this size fit the sockets' own memory.
std::vector<std::string> AllGather(const std::vector<int>& wires, uint32_t rank, const std::string& mine) {
  std::vector<std::string> all(wires.size());
  const uint64_t bytes = mine.size();
  for (const int wire : wires) {
    if (wire >= 0 && !(WriteAll(wire, &bytes, 8) && WriteAll(wire, mine.data(), bytes))) std::exit(1);
  }
  for (uint32_t peer = 0; peer < wires.size(); ++peer) {
    uint64_t theirs = 0;
    if (peer == rank) continue;
    if (!ReadAll(wires[peer], &theirs, 8)) std::exit(1);
    all[peer].resize(theirs);
    if (!ReadAll(wires[peer], all[peer].data(), theirs)) std::exit(1);
  }
  all[rank] = mine;
  return all;
}

// Sends at once; receives when they are waited for, which is in the order in which they were started.
class SocketExchange : public ls::Exchange {
 public:
  explicit SocketExchange(const std::vector<int>& wires) : wires_(wires) {}

  ls::Error StartSend(uint32_t peer, const void* data, uint64_t bytes, uint64_t& transfer) override {
    transfer = ++last_;
    return WriteAll(wires_[peer], data, bytes) ? ls::Error{} : Gone(peer);
  }
  ls::Error StartReceive(uint32_t peer, void* data, uint64_t bytes, uint64_t& transfer) override {
    transfer = ++last_;
    receives_[transfer] = {peer, data, bytes};
    return {};
  }
  ls::Error Wait(uint64_t transfer) override {
    const auto found = receives_.find(transfer);
    if (found == receives_.end()) return {};
    const Receive receive = found->second;
    receives_.erase(found);
    return ReadAll(wires_[receive.peer], receive.data, receive.bytes) ? ls::Error{} : Gone(receive.peer);
  }

 private:
  struct Receive {
    uint32_t peer = 0;
    void* data = nullptr;
    uint64_t bytes = 0;
  };

  static ls::Error Gone(uint32_t peer) {
    return {LOCKSTEP_UNAVAILABLE, "rank " + std::to_string(peer) + " closed its connection"};
  }

  const std::vector<int> wires_;
  std::map<uint64_t, Receive> receives_;
  uint64_t last_ = 0;
};

// ---- A rank. -------------------------------------------------------------------------------------------------------

bool Dump(const std::string& directory, uint32_t rank, uint64_t step, const std::vector<Parameter>& parameters) {
  std::ofstream file(directory + "/step-" + std::to_string(step) + "-rank-" + std::to_string(rank), std::ios::binary);
  for (const Parameter& parameter : parameters) {
    file.write(reinterpret_cast<const char*>(parameter.weights.data()),
               static_cast<std::streamsize>(2 * parameter.weights.size()));
  }
  return file.flush().good();
}

int Fail(uint32_t rank, const std::string& what) {
  std::cerr << "rank " + std::to_string(rank) + ": " + what + "\n";
  return 1;
}

int RunRank(const Arguments& arguments, uint32_t rank, const std::vector<int>& wires) {
  std::vector<Parameter> parameters = MakeParameters(arguments.ranks);
  ls::ShardDescription description(rank < arguments.ranks - arguments.remote);
  std::vector<ls::Tensor> tensors;
  for (Parameter& parameter : parameters) {
    Initialise(parameter, rank);
    tensors.push_back({parameter.name, "BF16", parameter.shape, parameter.weights.data(), {}, false});
  }
  ls::Place place;
  place.tensor_rank = place.expert_tensor_rank = rank;
  place.tensor_size = place.expert_tensor_size = arguments.ranks;
  description.AddMegatron(kConfig, place, tensors);

  SocketExchange exchange(wires);
  ls::Options options;
  options.socket_path = arguments.socket;
  options.model = arguments.model;
  options.descriptions = AllGather(wires, rank, description.Json());
  options.rank = rank;
  options.locals = description.locals();
  options.exchange = &exchange;
  ls::Publisher publisher;
  if (const ls::Error error = ls::Publisher::Open(options, publisher)) return Fail(rank, error.message);

  for (uint64_t step = 1; step <= arguments.steps; ++step) {
    for (Parameter& parameter : parameters) AdamStep(parameter, rank, step);
    if (!arguments.dump.empty() && !Dump(arguments.dump, rank, step, parameters)) return Fail(rank, "cannot dump");
    if (const ls::Error error = publisher.Publish(step)) return Fail(rank, error.message);
    const lockstep_publish_stats stats = publisher.stats();
    std::cout << "rank " + std::to_string(rank) + " step " + std::to_string(step) + ": copied " +
                     std::to_string(stats.bytes_copied) + " sent " + std::to_string(stats.bytes_sent) + " received " +
                     std::to_string(stats.bytes_received) + " bytes in " + std::to_string(stats.total_us) + " us\n"
              << std::flush;
  }
  return 0;
}

bool Parse(int count, char** words, Arguments& arguments) {
  const std::map<std::string, std::string*> texts{
      {"--socket", &arguments.socket}, {"--model", &arguments.model}, {"--dump", &arguments.dump}};
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = words[i];
    const auto number = std::strtoul(words[i + 1], nullptr, 10);
    if (texts.count(name) > 0) {
      *texts.at(name) = words[i + 1];
    } else if (name == "--ranks") {
      arguments.ranks = static_cast<uint32_t>(number);
    } else if (name == "--remote") {
      arguments.remote = static_cast<uint32_t>(number);
    } else if (name == "--steps") {
      arguments.steps = number;
    } else {
      return false;
    }
  }
  const bool divides = arguments.ranks == 1 || arguments.ranks == 2 || arguments.ranks == 4;
  return count % 2 == 1 && !arguments.socket.empty() && divides && arguments.remote < arguments.ranks;
}

}  // namespace

int main(int count, char** words) {
  Arguments arguments;
  if (!Parse(count, words, arguments)) {
    std::cerr << "usage: " << words[0]
              << " --socket PATH [--model NAME] [--ranks 1|2|4] [--remote N] [--steps N] [--dump DIR]\n";
    return 64;
  }
  const Wires wires = ConnectAll(arguments.ranks);
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < arguments.ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      KeepOwn(wires, rank);
      std::exit(RunRank(arguments, rank, wires[rank]));
    }
    children.push_back(child);
  }
  KeepOwn(wires, arguments.ranks);
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    failed |= status;
  }
  return failed == 0 ? 0 : 1;
}
