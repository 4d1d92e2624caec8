#include "export_plugin/exporter/importer.h"

#include "common/base/status_testing.h"
#include "common/model/safetensors.h"
#include "common/os/temp_dir.h"
#include "export_plugin/exporter/exporter_fixture.h"

namespace lockstep::exporter {
namespace {

// Writes `tensors` with the bytes of `image` as a safetensors file.
void WriteTensors(const std::string& path, std::vector<model::TensorMeta> tensors, const Image& image) {
  REQUIRE(model::AssignOffsets(tensors).ok());
  const auto layout = *model::ModelLayout::Create(tensors);
  Bytes file = model::SafetensorsHeader(*layout);
  for (const model::TensorMeta& tensor : layout->tensors()) AppendBytes(file, image.at(tensor.name));
  REQUIRE(os::WriteFileAtomic(path, file).ok());
}

// The HuggingFace tensors that `model` makes.
std::vector<model::TensorMeta> TensorsOf(const std::vector<Whole2D>& model) {
  std::vector<model::TensorMeta> tensors;
  for (const Whole2D& tensor : model) {
    if (tensor.into.empty()) tensors.push_back({tensor.name, tensor.dtype, {tensor.rows, tensor.columns}, 0});
    for (const auto& [name, rows] : tensor.into) tensors.push_back({name, tensor.dtype, {rows, tensor.columns}, 0});
  }
  return tensors;
}

void WriteModel(const std::string& path, const std::vector<Whole2D>& model, Version version) {
  WriteTensors(path, TensorsOf(model), ExpectedImage(model, version));
}

Result<ImportStats> Import(const std::string& directory, const TestRank& rank, uint32_t threads = 1) {
  return ImportCheckpoint(directory, plan::ToJson(rank.description), rank.locals, threads);
}

void Clear(TestRank& rank) {
  for (auto& memory : rank.memory) std::fill(memory.begin(), memory.end(), std::byte{0xee});
}

TEST_CASE("What was exported imports as what was there, on every rank") {
  Fleet fleet(SmallModel(), {.shards = 4, .beside = {true, false, true, false}});
  fleet.Open();
  fleet.Publish(3);
  const os::TempDir directory;
  WriteTensors(directory.File("model.safetensors"), fleet.exporter(0).layout().tensors(), fleet.Served(3));
  for (uint32_t r = 0; r < 4; ++r) {
    TestRank& rank = fleet.rank(r);
    const auto filled = rank.memory;
    Clear(rank);
    const auto stats = Import(directory.path(), rank, 1 + r);
    INFO(stats.status().ToString());
    REQUIRE(stats.ok());
    CHECK(rank.memory == filled);
    CHECK(stats->tensors_read == 6);  // a quarter of qkv lies in one of q, k and v
    uint64_t bytes = 0;
    for (const auto& memory : filled) bytes += memory.size();
    CHECK(stats->bytes_read == bytes);
  }
}

TEST_CASE("Checkpoints of several files are read by their index, others by their only file") {
  const std::vector<Whole2D> model{{"a", model::DType::kBF16, 8, 4, Cut::kRows},
                                   {"b", model::DType::kF32, 4, 8, Cut::kColumns}};
  const os::TempDir directory;
  WriteModel(directory.File("part-1.safetensors"), {model[0]}, 1);
  WriteModel(directory.File("part-2.safetensors"), {model[1]}, 1);
  TestRank rank(model, true, 1, 2);
  CHECK_THAT(Import(directory.path(), rank), FailsWith(ErrorCode::kNotFound, "several other *.safetensors"));
  const auto index = [&](const std::string& text) {
    REQUIRE(os::WriteFileAtomic(directory.File("model.safetensors.index.json"), text).ok());
    Clear(rank);
    return Import(directory.path(), rank).status();
  };
  REQUIRE(index(R"({"weight_map": {"a": "part-1.safetensors", "b": "part-2.safetensors"}})").ok());
  TestRank expected(model, true, 1, 2);
  expected.Fill(model, 1);
  CHECK(rank.memory == expected.memory);
  CHECK_THAT(index(R"({"weight_map": {"a": "part-2.safetensors"}})"), FailsWith(ErrorCode::kBadData, "it does not"));
  CHECK_THAT(index(R"({"weight_map": {"a": "../part-1.safetensors"}})"),
             FailsWith(ErrorCode::kBadData, "no file of this directory"));
  CHECK_THAT(index(R"({"weight_map": {"a": 1}})"), FailsWith(ErrorCode::kBadData, "is no string"));
  CHECK_THAT(index(R"([1, 2])"), FailsWith(ErrorCode::kBadData, "weight_map"));
  CHECK(index(R"({"weight_map": {"a": "part-3.safetensors"}})").code() == ErrorCode::kNotFound);
  const os::TempDir one;
  WriteModel(one.File("anything.safetensors"), model, 1);
  CHECK(Import(one.path(), rank).ok());
  CHECK(rank.memory == expected.memory);
  CHECK(Import(one.File("nothing"), rank).status().code() == ErrorCode::kNotFound);
}

TEST_CASE("BF16 checkpoints fill F32 tensors exactly") {
  const std::vector<Whole2D> model{{"w", model::DType::kBF16, 32, 64, Cut::kColumns}};
  const os::TempDir directory;
  WriteModel(directory.File("model.safetensors"), model, 1);
  TestRank narrow(model, true, 1, 2);
  narrow.Fill(model, 1);
  TestRank wide(model, true, 1, 2);
  std::vector<uint32_t> values(32 * 32);
  wide.locals[0].dtype = model::DType::kF32;
  wide.locals[0].address = values.data();
  REQUIRE(Import(directory.path(), wide).ok());
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t element;
    std::memcpy(&element, narrow.memory[0].data() + 2 * i, 2);
    REQUIRE(values[i] == static_cast<uint32_t>(element) << 16);
  }
}

TEST_CASE("Rows that the checkpoint does not have become zero, and gaps between rows stay as they are") {
  const std::vector<Whole2D> model{{"w", model::DType::kBF16, 6, 4, Cut::kNone}};
  const os::TempDir directory;
  WriteModel(directory.File("model.safetensors"), model, 1);
  // Padded to 8 rows of 4, which lie 5 apart.
  TestRank rank(model, true, 0, 1);
  std::get<std::vector<plan::TensorDescription>>(rank.description.parts[0])[0].local_shape = {8, 4};
  std::vector<uint16_t> memory(8 * 5, 0xabcd);
  rank.locals[0] = {"w", model::DType::kBF16, {8, 4}, {5, 1}, memory.data()};
  REQUIRE(Import(directory.path(), rank).ok());
  for (size_t row = 0; row < 8; ++row) {
    for (size_t column = 0; column < 5; ++column) {
      const auto element = static_cast<uint16_t>(row < 6 && column < 4 ? ElementOf(model[0], row, column, 1) : 0);
      CHECK(memory[row * 5 + column] == (column == 4 ? 0xabcd : element));
    }
  }
}

TEST_CASE("Everything is checked before anything is written") {
  const std::vector<Whole2D> model{{"a", model::DType::kBF16, 8, 4, Cut::kRows},
                                   {"b", model::DType::kBF16, 4, 8, Cut::kRows}};
  TestRank rank(model, true, 0, 2);
  Clear(rank);
  const auto untouched = rank.memory;
  const auto fails = [&](const std::vector<Whole2D>& stored) {
    const os::TempDir directory;
    WriteModel(directory.File("model.safetensors"), stored, 1);
    const Status status = Import(directory.path(), rank).status();
    CHECK(rank.memory == untouched);
    return status;
  };
  CHECK_THAT(fails({model[0]}), FailsWith(ErrorCode::kBadData, "no tensor \"b\""));
  CHECK_THAT(fails({model[0], {"b", model::DType::kBF16, 8, 4}}),
             FailsWith(ErrorCode::kBadData, "\"b\" has shape [8, 4]", "[4, 8]"));
  CHECK_THAT(fails({model[0], {"b", model::DType::kF32, 4, 8}}),
             FailsWith(ErrorCode::kBadData, "\"b\" is F32", "is BF16"));
  rank.locals[1].address = nullptr;
  CHECK_THAT(fails(model), FailsWith(ErrorCode::kBadData, "\"b\" has no address"));
}

TEST_CASE("A file that is cut short, or is no safetensors file, is refused with its path") {
  const std::vector<Whole2D> model{{"a", model::DType::kBF16, 8, 4, Cut::kRows}};
  TestRank rank(model, true, 0, 2);
  const os::TempDir directory;
  const std::string path = directory.File("model.safetensors");
  WriteModel(path, model, 1);
  const std::string whole = *os::ReadFile(path);
  for (const size_t bytes : {whole.size() - 1, size_t{4096}, size_t{100}, size_t{7}}) {
    REQUIRE(os::WriteFileAtomic(path, whole.substr(0, bytes)).ok());
    const Status status = Import(directory.path(), rank).status();
    CHECK_THAT(status, FailsWith(ErrorCode::kBadData, path));
  }
  REQUIRE(os::WriteFileAtomic(path, std::string_view("")).ok());
  CHECK_THAT(Import(directory.path(), rank),
             FailsWith(ErrorCode::kBadData, path, "of 0 bytes there is nothing to map"));
}

}  // namespace
}  // namespace lockstep::exporter
