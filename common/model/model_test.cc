#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/model/layout.h"
#include "common/model/manifest.h"
#include "common/model/model_name.h"
#include "common/model/parts.h"
#include "common/model/safetensors.h"

namespace lockstep::model {
namespace {

std::vector<TensorMeta> Mixed() {
  return {{"embed", DType::kBF16, {100, 64}, 0},
          {"bias", DType::kF32, {7}, 12800},
          {"scalar", DType::kF32, {}, 12828},
          {"empty", DType::kF64, {0, 3}, 12832},
          {"q", DType::kI8, {5}, 12832}};
}

Status Refusal(std::vector<TensorMeta> tensors, uint32_t block_bytes = kMinBlockBytes) {
  return ModelLayout::Create(std::move(tensors), block_bytes).status();
}

TEST_CASE("A layout knows its blocks, units and tensors") {
  const auto layout = *ModelLayout::Create(Mixed(), 4096);
  CHECK(layout->data_bytes() == 12837);
  CHECK(layout->block_count() == 4);
  CHECK(layout->block_range(3) == ByteRange{12288, 549});
  CHECK(layout->block_unit(0) == 2);
  CHECK(layout->block_unit(3) == 1);
  CHECK(layout->tensor_bytes(3) == 0);
  CHECK(layout->tensors()[layout->TensorAt(12830)].name == "scalar");
  CHECK(layout->tensors()[layout->TensorAt(12832)].name == "q");
  CHECK(TensorsInBlocks(*layout, {3}) == std::vector<std::string>{"embed", "bias", "scalar", "q"});
}

TEST_CASE("The canonical encoding round-trips and names the layout") {
  const auto layout = *ModelLayout::Create(Mixed());
  const auto decoded = *ModelLayout::Decode(layout->encoded());
  CHECK(decoded->tensors() == layout->tensors());
  CHECK(decoded->digest() == layout->digest());
  auto renamed = Mixed();
  renamed[0].name = "other";
  CHECK((*ModelLayout::Create(renamed))->digest() != layout->digest());
  CHECK((*ModelLayout::Create(Mixed(), 4096))->digest() != layout->digest());
}

TEST_CASE("Every truncation and every foreign start of an encoding is refused") {
  const Bytes encoded = (*ModelLayout::Create(Mixed()))->encoded();
  for (size_t cut = 0; cut < encoded.size(); ++cut) {
    CHECK_THAT(ModelLayout::Decode(ByteView(encoded).first(cut)),
               FailsWith(ErrorCode::kProtocol, "encoded layout: truncated"));
  }
  Bytes bad = encoded;
  bad[0] = std::byte{'X'};
  CHECK_THAT(ModelLayout::Decode(bad), FailsWith(ErrorCode::kProtocol, "does not start with \"LSLAYOUT\""));
  bad = encoded;
  bad[8] = std::byte{1};
  CHECK_THAT(ModelLayout::Decode(bad), FailsWith(ErrorCode::kProtocol, "format 1 is not known here (known: 2)"));
  bad = encoded;
  bad[10] = std::byte{33};
  CHECK_THAT(ModelLayout::Decode(bad), FailsWith(ErrorCode::kProtocol, "its header has 33 bytes, not 32"));
  bad = encoded;
  bad.push_back(std::byte{0});
  CHECK_THAT(ModelLayout::Decode(bad), FailsWith(ErrorCode::kProtocol, "encoded layout: bytes after its last entry"));
}

TEST_CASE("Overlaps, gaps, duplicates and misalignment are refused by name") {
  auto tensors = Mixed();
  tensors[1].offset -= 4;
  CHECK_THAT(Refusal(tensors), FailsWith(ErrorCode::kBadData, "tensor \"bias\": it starts at byte 12796"));
  tensors = Mixed();
  tensors[4].offset += 1;
  CHECK_THAT(Refusal(tensors), FailsWith(ErrorCode::kBadData, "there is a gap"));
  tensors = Mixed();
  tensors[1].name = "embed";
  CHECK_THAT(Refusal(tensors), FailsWith(ErrorCode::kBadData, "given twice"));
  CHECK_THAT(Refusal({{"a", DType::kU8, {1}, 0}, {"b", DType::kBF16, {1}, 1}}),
             FailsWith(ErrorCode::kBadData, "falling element size"));
}

TEST_CASE("Absurd sizes, unknown dtypes and bad names are refused before anything is allocated") {
  const uint64_t huge = uint64_t{1} << 63;
  CHECK_THAT(Refusal({{"a", DType::kBF16, {huge, huge}, 0}}), FailsWith(ErrorCode::kBadData, "overflows"));
  CHECK_THAT(Refusal({{"a", DType::kF64, {kMaxDataBytes}, 0}}), FailsWith(ErrorCode::kBadData, "larger than"));
  CHECK_THAT(Refusal({{"a", static_cast<DType>(99), {4}, 0}}), FailsWith(ErrorCode::kBadData, "unknown dtype"));
  CHECK_THAT(Refusal({{"", DType::kU8, {4}, 0}}), FailsWith(ErrorCode::kBadData, "name"));
  CHECK_THAT(Refusal({{"a\n", DType::kU8, {4}, 0}}), FailsWith(ErrorCode::kBadData, "control"));
  CHECK_THAT(Refusal({{"\xff", DType::kU8, {4}, 0}}), FailsWith(ErrorCode::kBadData, "UTF-8"));
  CHECK_THAT(Refusal({{"__metadata__", DType::kU8, {4}, 0}}), FailsWith(ErrorCode::kBadData, "reserved"));
  CHECK_THAT(Refusal({{"a", DType::kF4, {3}, 0}}), FailsWith(ErrorCode::kBadData, "whole number of bytes"));
  CHECK_THAT(Refusal({}), FailsWith(ErrorCode::kBadData, "no bytes"));
  CHECK_THAT(Refusal({{"a", DType::kU8, {4}, 0}}, 5000), FailsWith(ErrorCode::kBadData, "power of two"));
  CHECK_THAT(Refusal({{"a", DType::kU8, std::vector<uint64_t>(17, 1), 0}}), FailsWith(ErrorCode::kBadData, "rank 17"));
}

TEST_CASE("Offsets follow the given order unless that would misalign a tensor") {
  std::vector<TensorMeta> tensors = {{"a", DType::kBF16, {3}, 9}, {"b", DType::kBF16, {1}, 9}};
  REQUIRE(AssignOffsets(tensors).ok());
  CHECK(tensors[1].offset == 6);
  tensors = {{"a", DType::kU8, {3}, 0}, {"b", DType::kF32, {1}, 0}, {"c", DType::kF32, {2}, 0}};
  REQUIRE(AssignOffsets(tensors).ok());
  CHECK(tensors[0].name == "b");
  CHECK(tensors[2].offset == 12);
  CHECK(ModelLayout::Create(tensors).ok());
}

TEST_CASE("A slot's header is a safetensors header that starts its data on a page") {
  const auto layout = *ModelLayout::Create(Mixed());
  const Bytes header = SafetensorsHeader(*layout);
  CHECK(header.size() % kDataAlignment == 0);
  const auto file = ParseSafetensors(header, ImageBytes(*layout));
  REQUIRE(file.ok());
  CHECK(file->data_offset == header.size());
  CHECK(file->tensors == layout->tensors());
}

TEST_CASE("A header's JSON escapes what names may hold, and its size is known without writing it") {
  std::vector<TensorMeta> tensors;
  for (const std::string name : {R"(a"quote)", R"(\\)", R"(\"")", "gr\u00fc\u00df", " ", "/'{}[],:"}) {
    tensors.push_back({.name = name, .dtype = DType::kF32, .shape = {}});
  }
  tensors.push_back({.name = "wide", .dtype = DType::kBF16, .shape = {1, 18'446, 7, 0}});
  tensors.push_back({.name = "long" + std::string(kMaxTensorName - 4, '"'), .dtype = DType::kU8, .shape = {3}});
  REQUIRE(AssignOffsets(tensors).ok());
  for (int padding = 0; padding < 40; ++padding) {  // over the edge of a page
    tensors.push_back(
        {.name = "x" + std::to_string(padding) + std::string(200, 'x'), .dtype = DType::kU8, .shape = {1}});
    REQUIRE(AssignOffsets(tensors).ok());
    const auto layout = *ModelLayout::Create(tensors);
    const Bytes header = SafetensorsHeader(*layout);
    CHECK(ImageBytes(*layout) == header.size() + layout->data_bytes());
    const auto file = ParseSafetensors(header, ImageBytes(*layout));
    REQUIRE(file.ok());
    CHECK(file->tensors == layout->tensors());
  }
}

TEST_CASE("The tensors of blocks are named once, in layout order, whatever the order of the blocks") {
  std::vector<TensorMeta> tensors;
  for (uint64_t i = 0; i < 300; ++i) {
    tensors.push_back({.name = std::to_string(i), .dtype = DType::kU8, .shape = {i * i % 7 * 1000}});
  }
  REQUIRE(AssignOffsets(tensors).ok());
  const auto layout = *ModelLayout::Create(tensors, kMinBlockBytes);
  for (const BlockIndex step : {1, 2, 5, 50}) {
    std::vector<BlockIndex> blocks;
    for (BlockIndex block = 0; block < layout->block_count(); block += step) blocks.push_back(block);
    std::vector<std::string> names;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const ByteRange tensor{tensors[i].offset, layout->tensor_bytes(i)};
      const bool touched = std::any_of(blocks.begin(), blocks.end(), [&](BlockIndex block) {
        const ByteRange range = layout->block_range(block);
        return tensor.bytes > 0 && tensor.offset < range.end() && range.offset < tensor.end();
      });
      if (touched) names.push_back(tensors[i].name);
    }
    CHECK(TensorsInBlocks(*layout, blocks) == names);
    std::reverse(blocks.begin(), blocks.end());
    CHECK(TensorsInBlocks(*layout, blocks) == names);
  }
}

TEST_CASE("Broken safetensors headers are refused with the reason") {
  const auto refuse = [](const std::string& json, uint64_t data_bytes) {
    Bytes head;
    Append(head, static_cast<uint64_t>(json.size()));
    AppendBytes(head, AsBytes(std::string_view(json)));
    return ParseSafetensors(head, head.size() + data_bytes);
  };
  CHECK_THAT(refuse("[]", 0), FailsWith(ErrorCode::kBadData, "no JSON object"));
  CHECK_THAT(refuse("{\"a\":", 0), FailsWith(ErrorCode::kBadData, "no JSON object"));
  CHECK_THAT(refuse(R"({"a":{"dtype":"BF17","shape":[1],"data_offsets":[0,2]}})", 2),
             FailsWith(ErrorCode::kBadData, "BF17"));
  CHECK_THAT(refuse(R"({"a":{"dtype":"BF16","shape":[1],"data_offsets":[0,4]}})", 4),
             FailsWith(ErrorCode::kBadData, "takes 2"));
  CHECK_THAT(refuse(R"({"a":{"dtype":"BF16","shape":[-1],"data_offsets":[0,4]}})", 4),
             FailsWith(ErrorCode::kBadData, "no count"));
  CHECK_THAT(refuse(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", 2),
             FailsWith(ErrorCode::kBadData, "truncated"));
  CHECK_THAT(refuse(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", 6),
             FailsWith(ErrorCode::kBadData, "take 4"));
  CHECK_THAT(refuse(R"({"a":{"dtype":"BF16"}})", 6), FailsWith(ErrorCode::kBadData, "lacks"));
  CHECK_THAT(refuse(R"({"a":7})", 6), FailsWith(ErrorCode::kBadData, "lacks"));
  CHECK_THAT(refuse(R"({"a":[{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}]})", 4),
             FailsWith(ErrorCode::kBadData, "lacks"));
  const std::string twice = R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]})";
  CHECK_THAT(refuse("{" + twice + "," + twice + "}", 4), FailsWith(ErrorCode::kBadData, "take 8"));
  const Bytes short_head(4);
  CHECK_THAT(ParseSafetensors(short_head, 4), FailsWith(ErrorCode::kBadData, "the file is shorter than 8 bytes"));
}

TEST_CASE("Safetensors tensors that overlap are refused, though their sizes add up") {
  const auto parse = [](const std::string& json) {
    Bytes head;
    Append(head, static_cast<uint64_t>(json.size()));
    AppendBytes(head, AsBytes(std::string_view(json)));
    return ParseSafetensors(head, head.size() + 8);
  };
  const std::string first = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const auto overlap = parse("{" + first + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})");
  REQUIRE_THAT(overlap,
               FailsWith(ErrorCode::kBadData, "\"b\" starts at byte 2, the tensors before it end at 4: they overlap"));
  const std::string second = R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]})";
  const std::string empty = R"("none":{"dtype":"F32","shape":[0],"data_offsets":[4,4]})";
  const auto whole = parse("{" + second + "," + empty + "," + first + "}");
  REQUIRE(whole.ok());
  CHECK(whole->tensors[1].name == "none");
}

TEST_CASE("A name that is refused does not spoil the message that says so") {
  const auto readable = [](const Status& status, const std::string& text) {
    CHECK_THAT(status, FailsWith(ErrorCode::kBadData, text));
    CHECK(CleanText(status.message()) == status.message());
  };
  Bytes encoded = (*ModelLayout::Create({{"name", DType::kU8, {1}, 0}}, kMinBlockBytes))->encoded();
  encoded[34] = std::byte{99};  // no dtype's number
  encoded[encoded.size() - 2] = std::byte{0x1b};
  encoded[encoded.size() - 1] = std::byte{0xff};
  readable(ModelLayout::Decode(encoded).status(), "tensor \"na??\": unknown dtype");
  Bytes head;
  const std::string_view json = R"({"a\u001b":7})";
  Append(head, uint64_t{json.size()});
  AppendBytes(head, AsBytes(json));
  readable(ParseSafetensors(head, head.size()).status(), "safetensors header: tensor \"a?\"");
  readable(CheckModelName("a\x1b\xff"), "model name \"a??\"");
}

TEST_CASE("A manifest digest depends on every block hash, on their order and on the layout") {
  const auto layout = *ModelLayout::Create(Mixed());
  const auto digest = ComputeManifestDigest(layout->digest(), {1, 2, 3});
  CHECK(digest == ComputeManifestDigest(layout->digest(), {1, 2, 3}));
  CHECK(digest != ComputeManifestDigest(layout->digest(), {1, 3, 2}));
  CHECK(digest != ComputeManifestDigest(LayoutDigest(), {1, 2, 3}));
}

TEST_CASE("Model names are directory names") {
  CHECK(CheckModelName("Qwen3-0.6B_actor").ok());
  for (const std::string bad : {"", ".", "..", "a/b", "a b", "\n"}) {
    CHECK_THAT(CheckModelName(bad), FailsWith(ErrorCode::kBadData, "use 1 to 128 letters"));
  }
  CHECK_THAT(CheckModelName(std::string(129, 'a')), FailsWith(ErrorCode::kBadData, "use 1 to 128 letters"));
}

std::shared_ptr<const ModelLayout> PartLayout(const std::string& prefix, uint64_t elements, uint32_t part) {
  return *ModelLayout::Create(
      {{prefix + ".a", DType::kBF16, {elements}, 0}, {prefix + ".b", DType::kF32, {4}, 2 * elements}}, 4096,
      {{"config.json", "{}"}, {std::string(kPartAttachment), Cat(R"({"part": )", part, R"(, "parts": 2})")}});
}

TEST_CASE("A joined layout has the parts' tensors one after the other, and their blocks") {
  const auto first = PartLayout("x", 5000, 0);   // 10,016 bytes: three blocks
  const auto second = PartLayout("y", 2048, 1);  // 4,112 bytes: two
  const auto joined = ModelLayout::Join({first, second});
  REQUIRE(joined.ok());
  const ModelLayout& whole = **joined;
  CHECK(whole.data_bytes() == 10'016 + 4'112);
  CHECK(whole.attachments() == Attachments{{"config.json", "{}"}});
  REQUIRE(whole.block_count() == 5);
  const std::vector<ByteRange> ranges = {{0, 4096}, {4096, 4096}, {8192, 1824}, {10'016, 4096}, {14'112, 16}};
  for (BlockIndex block = 0; block < 5; ++block) CHECK(whole.block_range(block) == ranges[block]);
  CHECK(whole.block_unit(2) == first->block_unit(2));
  CHECK(whole.block_unit(3) == second->block_unit(0));
  CHECK(whole.block_unit(4) == second->block_unit(1));
  CHECK(TensorsInBlocks(whole, {2, 3}) == std::vector<std::string>{"x.a", "x.b", "y.a"});

  const std::vector<uint64_t> hashes = {1, 2, 3, 4, 5};
  const std::vector<ManifestDigest> parts = {ComputeManifestDigest(*first, {1, 2, 3}),
                                             ComputeManifestDigest(*second, {4, 5})};
  CHECK(PartDigests(whole, hashes) == parts);
  CHECK(ComputeManifestDigest(whole, hashes) == JoinedDigest(whole, parts));
  CHECK(ComputeManifestDigest(whole, hashes) != ComputeManifestDigest(whole, {1, 2, 3, 5, 4}));

  CHECK_THAT(ModelLayout::Decode(whole.encoded()).status(), FailsWith(ErrorCode::kProtocol, "format 3"));
  const auto again = ModelLayout::Decode(whole.encoded(), /*joined=*/true);
  REQUIRE(again.ok());
  CHECK((*again)->digest() == whole.digest());
  CHECK((*again)->block_range(3) == ranges[3]);
  for (size_t bytes = 0; bytes < whole.encoded().size(); ++bytes) {
    CHECK_FALSE(ModelLayout::Decode(ByteView(whole.encoded()).first(bytes), /*joined=*/true).ok());
  }
}

TEST_CASE("A joined layout whose parts do not rise is refused") {
  const auto joined = *ModelLayout::Join({PartLayout("x", 2, 0), PartLayout("y", 2, 1)});
  const size_t second = joined->encoded().size() - 20;  // where its first tensor is
  for (const uint32_t first : {0U, 4U, 1000U, ~0U}) {
    Bytes encoded = joined->encoded();
    std::memcpy(encoded.data() + second, &first, sizeof first);
    CHECK_THAT(ModelLayout::Decode(encoded, /*joined=*/true).status(),
               FailsWith(ErrorCode::kBadData, "a part of the layout has no tensors"));
  }
}

TEST_CASE("Parts that do not make one model are not joined") {
  const auto refused = [](std::shared_ptr<const ModelLayout> other) {
    return ModelLayout::Join({PartLayout("x", 5000, 0), std::move(other)}).status();
  };
  CHECK_THAT(refused(PartLayout("x", 5000, 1)), FailsWith(ErrorCode::kBadData, "the name is given twice"));
  CHECK_THAT(refused(*ModelLayout::Create({{"y", DType::kU8, {1}, 0}}, 8192)),
             FailsWith(ErrorCode::kBadData, "the same --block-bytes"));
  CHECK_THAT(refused(*ModelLayout::Create({{"y", DType::kU8, {1}, 0}}, 4096, {{"config.json", "[]"}})),
             FailsWith(ErrorCode::kBadData, "different attachments \"config.json\""));
  CHECK_THAT(refused(*ModelLayout::Join({PartLayout("y", 2, 0), PartLayout("z", 2, 1)})),
             FailsWith(ErrorCode::kBadData, "a whole of parts itself"));
}

TEST_CASE("A layout's part is read from its attachment") {
  CHECK((*PartOf(*PartLayout("x", 2, 1)))->part == 1);
  CHECK((*PartOf(*PartLayout("x", 2, 1)))->parts == 2);
  CHECK_FALSE(*PartOf(**ModelLayout::Create({{"y", DType::kU8, {1}, 0}})));
  for (const char* text :
       {"[]", "{}", R"({"part": 2, "parts": 2})", R"({"part": -1, "parts": 2})", R"({"part": 0, "parts": 0})",
        R"({"part": 0, "parts": 1025})", R"({"part": "0", "parts": 2})"}) {
    const auto layout = ModelLayout::Create({{"y", DType::kU8, {1}, 0}}, 4096, {{std::string(kPartAttachment), text}});
    CHECK_THAT(PartOf(**layout).status(), FailsWith(ErrorCode::kBadData, "with M of 1 to 1024 and N below M"));
  }
}

}  // namespace
}  // namespace lockstep::model
