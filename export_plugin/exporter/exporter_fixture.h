// A trainer in one process: ranks as threads, a model of sharded tensors with known values, an agent, an exchange.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "export_plugin/exporter/exporter.h"
#include "export_plugin/exporter/in_process_exchange.h"
#include "export_plugin/plan/shard_description.h"
#include "kernels/hash.h"
#include "trainer_agent/run/publish_fixture.h"

namespace lockstep::exporter {

enum class Cut { kNone, kRows, kColumns };

// A whole training tensor of two dimensions. Values follow from name, place and version.
struct Whole2D {
  std::string name;
  model::DType dtype = model::DType::kBF16;  // of the HuggingFace tensors
  uint64_t rows = 0;
  uint64_t columns = 0;
  Cut cut = Cut::kNone;
  bool frozen = false;
  std::vector<std::pair<std::string, uint64_t>> into;  // names and rows of what it is split into; none: itself
};

inline uint64_t BytesOf(model::DType dtype) {
  return model::FindDType(dtype)->bits / 8;
}

// The element of `tensor` at (row, column) in `version`: its first `bytes` bytes. Odd bytes, so that no element is 0.
inline uint32_t ElementOf(const Whole2D& tensor, uint64_t row, uint64_t column, Version version) {
  const uint64_t seed[] = {std::hash<std::string>()(tensor.name), row, column, tensor.frozen ? 0 : version};
  return static_cast<uint32_t>(Hash64(seed, sizeof(seed))) | 0x0101'0101;
}

using Image = std::map<std::string, std::vector<std::byte>>;

// What must come out: every HuggingFace tensor's bytes.
inline Image ExpectedImage(const std::vector<Whole2D>& model, Version version) {
  Image image;
  for (const Whole2D& tensor : model) {
    auto into = tensor.into;
    if (into.empty()) into = {{tensor.name, tensor.rows}};
    uint64_t row = 0;
    for (const auto& [name, rows] : into) {
      std::vector<std::byte>& bytes = image[name];
      for (const uint64_t end = row + rows; row < end; ++row) {
        for (uint64_t column = 0; column < tensor.columns; ++column) {
          const uint32_t element = ElementOf(tensor, row, column, version);
          const auto* first = reinterpret_cast<const std::byte*>(&element);
          bytes.insert(bytes.end(), first, first + BytesOf(tensor.dtype));
        }
      }
    }
  }
  return image;
}

// One rank's description and memory: shard `shard` of `shards`.
struct TestRank {
  plan::ShardDescription description;
  std::vector<LocalTensor> locals;
  std::vector<std::vector<std::byte>> memory;
  std::vector<layout::Piece> boxes;  // of each local in its whole

  TestRank(const std::vector<Whole2D>& model, bool on_agent_host, uint64_t shard, uint64_t shards) {
    description.on_agent_host = on_agent_host;
    std::vector<plan::TensorDescription> tensors;
    for (const Whole2D& tensor : model) {
      layout::Extents size{tensor.rows, tensor.columns};
      layout::Extents at{0, 0};
      if (tensor.cut != Cut::kNone) {
        const size_t dim = tensor.cut == Cut::kRows ? 0 : 1;
        size[dim] /= shards;
        at[dim] = shard * size[dim];
      }
      boxes.push_back({{0, 0}, at, size});
      plan::TensorDescription described{.name = tensor.name,
                                        .dtype = tensor.dtype,
                                        .shape = {tensor.rows, tensor.columns},
                                        .local_shape = size,
                                        .boxes = {boxes.back()},
                                        .frozen = tensor.frozen};
      uint64_t row = 0;
      for (const auto& [name, rows] : tensor.into) {
        described.into.push_back({name, {rows, tensor.columns}, {row, 0}});
        row += rows;
      }
      tensors.push_back(std::move(described));
      memory.emplace_back(size[0] * size[1] * BytesOf(tensor.dtype));
      locals.push_back({tensor.name, tensor.dtype, size, {size[1], 1}, memory.back().data()});
    }
    description.parts.push_back(std::move(tensors));
  }

  void Fill(const std::vector<Whole2D>& model, Version version) {
    for (size_t i = 0; i < model.size(); ++i) {
      const layout::Piece& box = boxes[i];
      const uint64_t bytes = BytesOf(model[i].dtype);
      for (uint64_t row = 0; row < box.size[0]; ++row) {
        for (uint64_t column = 0; column < box.size[1]; ++column) {
          const uint32_t element = ElementOf(model[i], box.target[0] + row, box.target[1] + column, version);
          std::memcpy(memory[i].data() + (row * box.size[1] + column) * bytes, &element, bytes);
        }
      }
    }
  }
};

struct FleetOptions {
  uint32_t shards = 2;
  std::vector<bool> beside = {true, true};  // of each rank; rank r holds shard r % shards
  uint64_t bucket_bytes = kMinBucketBytes;
  uint32_t threads = 1;
  std::function<std::unique_ptr<Exchange>(uint32_t rank)> exchange;  // in place of the hub's; asked once for a rank
  std::function<void(uint32_t rank)> filled;  // after a rank's memory was given a version's values
  std::function<void(uint32_t rank)> fills;   // in place of both
};

// In place of a version: the rank fails before it comes to publishing, and says nothing.
inline constexpr Version kLeftOut = 0;

// A trainer. Verbs act on all ranks, each on a thread of its own.
class Fleet {
 public:
  Fleet(std::vector<Whole2D> model, FleetOptions options, std::shared_ptr<ExchangeHub> hub = nullptr)
      : model_(std::move(model)),
        options_(std::move(options)),
        hub_(hub ? std::move(hub) : std::make_shared<ExchangeHub>()) {
    for (uint32_t rank = 0; rank < options_.beside.size(); ++rank) {
      ranks_.emplace_back(model_, options_.beside[rank], rank % options_.shards, options_.shards);
      descriptions_.push_back(plan::ToJson(ranks_.back().description));
    }
  }

  ExporterOptions OptionsOf(uint32_t rank) {
    exchanges_.push_back(options_.exchange ? options_.exchange(rank) : hub_->Of(rank));
    return {.agent = {.socket_path = host_.socket(),
                      .model = "actor",
                      .connect_timeout = std::chrono::milliseconds(2000),
                      .reconnect_timeout = std::chrono::milliseconds(5000),
                      .call_timeout = std::chrono::milliseconds(20'000)},
            .descriptions = descriptions_,
            .rank = rank,
            .locals = ranks_[rank].locals,
            .bucket_bytes = options_.bucket_bytes,
            .threads = options_.threads,
            .exchange = exchanges_.back().get()};
  }

  // Makes all descriptions say that tensor `tensor` is frozen, whatever its values do.
  void Freeze(size_t tensor) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      std::get<std::vector<plan::TensorDescription>>(ranks_[rank].description.parts[0])[tensor].frozen = true;
      descriptions_[rank] = plan::ToJson(ranks_[rank].description);
    }
  }

  void Open() {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      auto exporter = Exporter::Open(OptionsOf(rank));
      INFO(exporter.status().ToString());
      REQUIRE(exporter.ok());
      exporters_.push_back(*std::move(exporter));
    }
  }

  // The rank dies, and another process takes its place in the run.
  void Replace(uint32_t rank) {
    ExporterOptions options = OptionsOf(rank);
    options.agent.run = exporters_[rank]->run();
    exporters_[rank].reset();
    auto exporter = Exporter::Open(std::move(options));
    INFO(exporter.status().ToString());
    REQUIRE(exporter.ok());
    exporters_[rank] = *std::move(exporter);
  }

  // Each rank's outcome. `versions`: what each publishes, where they differ.
  std::vector<Status> TryPublish(Version version, std::map<uint32_t, Version> versions = {}) {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      if (options_.fills) {
        options_.fills(rank);
        continue;
      }
      ranks_[rank].Fill(model_, version);
      if (options_.filled) options_.filled(rank);
    }
    std::vector<Status> outcomes(exporters_.size());
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < exporters_.size(); ++rank) {
      if (exporters_[rank] == nullptr) continue;
      const Version its = versions.count(rank) ? versions[rank] : version;
      const std::vector<const void*>& addresses = addresses_[rank];
      if (its == kLeftOut) continue;
      threads.emplace_back([&, rank, its] { outcomes[rank] = exporters_[rank]->Publish(its, addresses); });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }

  void Publish(Version version) {
    const std::vector<Status> outcomes = TryPublish(version);
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      INFO("rank " << rank << ": " << outcomes[rank].ToString());
      REQUIRE(outcomes[rank].ok());
    }
  }

  // The bytes that are served as `version`.
  Image Served(Version version) {
    host_.Await(version);
    run::ServedRun& run = host_.run();
    Bytes data;
    const auto copy = [&](const model::Manifest&, ByteView bytes) { data.assign(bytes.begin(), bytes.end()); };
    REQUIRE(run.UseBlocks(version, true, 0, run.layout().block_count(), copy).ok());
    Image image;
    for (size_t i = 0; i < run.layout().tensors().size(); ++i) {
      const auto first = data.begin() + static_cast<ptrdiff_t>(run.layout().tensors()[i].offset);
      image[run.layout().tensors()[i].name].assign(first, first + static_cast<ptrdiff_t>(run.layout().tensor_bytes(i)));
    }
    return image;
  }

  void CheckServed(Version version) {
    const Image served = Served(version);
    for (const auto& [name, bytes] : ExpectedImage(model_, version)) {
      INFO("version " << version << ", tensor " << name);
      REQUIRE(served.count(name) == 1);
      CHECK(served.at(name) == bytes);
    }
  }

  Exporter& exporter(uint32_t rank) { return *exporters_[rank]; }
  TestRank& rank(uint32_t rank) { return ranks_[rank]; }
  ExchangeHub& hub() { return *hub_; }
  run::Host& host() { return host_; }
  void Kill(uint32_t rank) {
    hub_->Break(rank);
    exporters_[rank].reset();
  }
  // Gives `rank` these addresses from now on; none: as opened.
  void SetAddresses(uint32_t rank, std::vector<const void*> addresses) { addresses_[rank] = std::move(addresses); }

  template <typename Field>
  uint64_t Sum(Field field) {
    uint64_t sum = 0;
    for (const auto& exporter : exporters_) sum += exporter->stats().*field;
    return sum;
  }

 private:
  const std::vector<Whole2D> model_;
  const FleetOptions options_;
  const std::shared_ptr<ExchangeHub> hub_;
  run::Host host_;
  std::vector<TestRank> ranks_;
  std::vector<std::string> descriptions_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<std::unique_ptr<Exporter>> exporters_;
  std::map<uint32_t, std::vector<const void*>> addresses_;
};

// A bit of everything; several buckets of the smallest size.
inline std::vector<Whole2D> SmallModel() {
  return {{"embed", model::DType::kBF16, 64, 32, Cut::kRows},
          {"qkv", model::DType::kBF16, 512, 1024, Cut::kRows, false, {{"q", 256}, {"k", 128}, {"v", 128}}},
          {"o", model::DType::kBF16, 512, 2048, Cut::kColumns},
          {"norm", model::DType::kF32, 1, 64, Cut::kNone},
          {"base", model::DType::kBF16, 16, 128, Cut::kNone, true},
          {"head", model::DType::kBF16, 33, 32, Cut::kColumns}};
}

}  // namespace lockstep::exporter
