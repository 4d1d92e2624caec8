// Ranges of the data section, filled from one rank's tensors.
#include "export_plugin/exporter/section_filler.h"

#include <bit>
#include <random>

#include "common/base/status_testing.h"
#include "common/base/worker_pool.h"
#include "export_plugin/exporter/exporter_fixture.h"

namespace lockstep::exporter {
namespace {

constexpr std::byte kUntouched{0xEE};

// What the exporter makes of these descriptions.
std::shared_ptr<const model::ModelLayout> LayoutOf(const std::vector<plan::ShardDescription>& descriptions) {
  const auto model = plan::BuildTrainingModel(descriptions);
  REQUIRE(model.ok());
  return *model::ModelLayout::Create(model->tensors);
}

std::vector<std::byte> DataSection(const model::ModelLayout& layout, const Image& image) {
  std::vector<std::byte> data(layout.data_bytes());
  for (const model::TensorMeta& tensor : layout.tensors()) {
    std::memcpy(data.data() + tensor.offset, image.at(tensor.name).data(), image.at(tensor.name).size());
  }
  return data;
}

TEST_CASE("Every range of the data section is what publishing would write there, and no byte around it is touched") {
  const std::vector<Whole2D> model = SmallModel();
  TestRank rank(model, true, 0, 1);
  const auto layout = LayoutOf({rank.description});
  WorkerPool pool(2);
  const std::unique_ptr<CopyEngine> engines[] = {NewHostCopyEngine(nullptr), NewHostCopyEngine(&pool)};
  const auto filler = SectionFiller::Create(plan::ToJson(rank.description), rank.locals, layout);
  REQUIRE(filler.ok());
  std::mt19937_64 random(7);
  for (Version version = 1; version <= 40; ++version) {
    CAPTURE(version);
    if (version % 20 == 1) rank.Fill(model, version);
    const std::vector<std::byte> expected = DataSection(*layout, ExpectedImage(model, version < 21 ? 1 : 21));
    // All of it, a little, or anything.
    const uint64_t longest = version % 3 == 0 ? layout->data_bytes() : 64;
    const uint64_t offset = version == 1 ? 0 : random() % layout->data_bytes() / 4 * 4;
    const uint64_t bytes =
        version == 1 ? layout->data_bytes() : std::min(layout->data_bytes() - offset, 4 + random() % longest / 4 * 4);
    std::vector<std::byte> target(bytes + 2, kUntouched);
    REQUIRE((*filler)->Fill({offset, bytes}, target.data() + 1, rank.locals, *engines[version % 2]).ok());
    CHECK(target.front() == kUntouched);
    CHECK(target.back() == kUntouched);
    CHECK(std::equal(target.begin() + 1, target.end() - 1, expected.begin() + static_cast<ptrdiff_t>(offset)));
  }
}

TEST_CASE("Float32 tensors, strided ones too, are rounded to bfloat16 in whatever ranges they are filled") {
  // A transposed tensor of 5 by 3. All its values but one are exact in bfloat16.
  std::vector<float> values(15);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  values[4] = std::bit_cast<float>(0x3F80'8001u);  // rounds up to 0x3F81
  plan::ShardDescription description;
  description.parts.push_back(std::vector<plan::TensorDescription>{{.name = "w",
                                                                    .dtype = model::DType::kBF16,
                                                                    .shape = {5, 3},
                                                                    .local_shape = {5, 3},
                                                                    .boxes = layout::Whole({5, 3})}});
  const std::vector<LocalTensor> locals{{"w", model::DType::kF32, {5, 3}, {1, 5}, values.data(), true}};
  const auto filler = SectionFiller::Create(plan::ToJson(description), locals, LayoutOf({description}));
  REQUIRE(filler.ok());
  std::vector<uint16_t> expected;
  for (size_t row = 0; row < 5; ++row) {
    for (size_t column = 0; column < 3; ++column) {
      const size_t at = column * 5 + row;
      expected.push_back(at == 4 ? 0x3F81 : static_cast<uint16_t>(std::bit_cast<uint32_t>(values[at]) >> 16));
    }
  }
  const auto engine = NewHostCopyEngine(nullptr);
  for (uint64_t first = 0; first < 15; ++first) {
    for (uint64_t last = first + 1; last <= 15; ++last) {
      CAPTURE(first, last);
      std::vector<uint16_t> target(last - first);
      const ByteRange range{2 * first, 2 * (last - first)};
      REQUIRE((*filler)->Fill(range, reinterpret_cast<std::byte*>(target.data()), locals, *engine).ok());
      CHECK(std::equal(target.begin(), target.end(), expected.begin() + static_cast<ptrdiff_t>(first)));
    }
  }
}

TEST_CASE("A rank that holds a shard of a tensor fills nothing, and the tensor is named") {
  const std::vector<Whole2D> model = SmallModel();
  const TestRank first(model, true, 0, 2);
  const TestRank second(model, true, 1, 2);
  const auto refused = SectionFiller::Create(plan::ToJson(first.description), first.locals,
                                             LayoutOf({first.description, second.description}))
                           .status();
  CHECK_THAT(refused, FailsWith(ErrorCode::kBadData, "holds the whole model", "\"embed\""));
}

TEST_CASE("A rank whose description alone is not the model of all ranks fills nothing") {
  const TestRank small({{"w", model::DType::kBF16, 4, 4}}, true, 0, 1);
  const TestRank other({{"w", model::DType::kBF16, 4, 4}, {"v", model::DType::kBF16, 4, 4}}, true, 0, 1);
  const auto refused =
      SectionFiller::Create(plan::ToJson(small.description), small.locals, LayoutOf({other.description})).status();
  CHECK_THAT(refused, FailsWith(ErrorCode::kBadData, "another model (1 tensors) than all ranks together (2)"));
}

TEST_CASE("Ranges that leave the data section or cut an element, and tensors without an address, are refused") {
  TestRank rank({{"w", model::DType::kBF16, 4, 4}, {"norm", model::DType::kF32, 1, 4}}, true, 0, 1);
  const auto layout = LayoutOf({rank.description});
  const auto filler = SectionFiller::Create(plan::ToJson(rank.description), rank.locals, layout);
  REQUIRE(filler.ok());
  const auto engine = NewHostCopyEngine(nullptr);
  std::vector<std::byte> target(layout->data_bytes(), kUntouched);
  const auto refusal = [&](ByteRange range) { return (*filler)->Fill(range, target.data(), rank.locals, *engine); };
  for (const ByteRange range : {ByteRange{0, 49}, {48, 1}, {49, 1}, {0, 0}, {4, ~uint64_t{0}}, {~uint64_t{0}, 4}}) {
    CHECK_THAT(refusal(range), FailsWith(ErrorCode::kBadData, "are no range of a data section of 48 bytes"));
  }
  CHECK_THAT(refusal({1, 8}), FailsWith(ErrorCode::kBadData, "byte 1 is within an element of tensor"));
  CHECK_THAT(refusal({0, 34}),
             FailsWith(ErrorCode::kBadData, "byte 34 is within an element of tensor \"norm\" (F32 from byte 32"));
  for (LocalTensor& local : rank.locals) local.address = nullptr;
  CHECK_THAT(refusal({0, 48}), FailsWith(ErrorCode::kBadData, "local tensor \"w\" has no address"));
  CHECK(target == std::vector<std::byte>(layout->data_bytes(), kUntouched));
}

TEST_CASE("An exporter fills ranges with what it publishes, from new addresses when they are given") {
  const std::vector<Whole2D> model = SmallModel();
  Fleet fleet(model, {.shards = 1, .beside = {true}});
  fleet.Open();
  fleet.Publish(1);
  Exporter& exporter = fleet.exporter(0);
  std::vector<std::byte> target(exporter.layout().data_bytes());
  REQUIRE(exporter.Fill({0, target.size()}, target.data()).ok());
  CHECK(target == DataSection(exporter.layout(), ExpectedImage(model, 1)));
  TestRank moved(model, true, 0, 1);
  moved.Fill(model, 2);
  std::vector<const void*> addresses;
  for (const LocalTensor& local : moved.locals) addresses.push_back(local.address);
  REQUIRE(exporter.Fill({0, target.size()}, target.data(), addresses).ok());
  CHECK(target == DataSection(exporter.layout(), ExpectedImage(model, 2)));
  CHECK(exporter.Fill({0, 2}, target.data(), std::span(addresses).first(1)).code() == ErrorCode::kBadData);
}

}  // namespace
}  // namespace lockstep::exporter
