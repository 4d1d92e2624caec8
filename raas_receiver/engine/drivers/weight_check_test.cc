#include "raas_receiver/engine/drivers/weight_check.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "raas_receiver/engine/drivers/tensor_digests.h"

namespace lockstep::engine {
namespace {

Result<std::vector<std::string>> Sha256(ByteView bytes) {
  return std::vector<std::string>{Sha256Hex(bytes)};
}

// Versions of three tensors, "a", "b" and "c", of four bytes each, and what ranks say of them.
class Versions {
 public:
  // The directory of a version whose tensors have these bytes.
  std::string Directory(const std::vector<std::string>& tensors) {
    const std::string directory = files_.File(Cat("v", ++count_));
    std::string header = "{", data;
    for (size_t i = 0; i < tensors.size(); ++i) {
      header += Cat(i > 0 ? "," : "", R"(")", static_cast<char>('a' + i),
                    R"(":{"dtype":"U8","shape":[4],"data_offsets":[)", 4 * i, ",", 4 * i + 4, "]}");
      data += tensors[i];
    }
    header += "}";
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    REQUIRE(os::MakeDirs(directory).ok());
    REQUIRE(os::WriteFileAtomic(directory + "/model.safetensors", file + header + data).ok());
    return directory;
  }

  Result<size_t> Compare(const std::vector<RankDigests>& ranks, const std::vector<std::string>& tensors) {
    return check_.Compare(ranks, Directory(tensors), Sha256);
  }

 private:
  const os::TempDir files_;
  int count_ = 0;
  WeightCheck check_;
};

RankDigests RankOf(const std::string& name, const std::vector<std::pair<std::string, std::string>>& parameters) {
  RankDigests rank{.rank = name, .parameters = {}};
  for (const auto& [parameter, bytes] : parameters)
    rank.parameters[parameter] = Sha256Hex(AsBytes(std::string_view(bytes)));
  return rank;
}

// A rank that has "a" whole, and "b" cut.
RankDigests RankWith(const std::string& name, const std::string& a) {
  return RankOf(name, {{"a", a}, {"b", "half"}, {"qkv", "fused"}});
}

}  // namespace

TEST_CASE("A digest is what the engines compute of a tensor's bytes") {
  CHECK(Sha256Hex(AsBytes(std::string_view("abc"))) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  // Computed by SGLang's own kernels, of the bytes 3, 10, 17, ...
  const auto hash = [](size_t size) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(7 * i + 3);
    return SglangGpuHash(AsBytes(std::string_view(bytes)));
  };
  CHECK(hash(0) == "0000000000000000");
  CHECK(hash(1) == "6749ef3bb532e503");
  CHECK(hash(10) == "b99c0f04322f1d03");
  CHECK(hash(1000) == "e0298467ae1217f1");
  CHECK(hash(8192 * 4) == "323bca06d16df637");
  CHECK(hash(8192 * 4 + 6) == "b9e7d8cd90918dae");
}

TEST_CASE("What all ranks have with a tensor's bytes is compared, and nothing else") {
  Versions versions;
  CHECK(*versions.Compare({RankWith("tp0", "aaa1"), RankWith("tp1", "aaa1")}, {"aaa1", "bbb1", "ccc1"}) == 1);
  CHECK(*versions.Compare({RankWith("tp0", "aaa2"), RankWith("tp1", "aaa2")}, {"aaa2", "bbb2", "ccc2"}) == 1);
}

TEST_CASE("A rank that has not read the version is named") {
  Versions versions;
  CHECK_THAT(versions.Compare({RankWith("tp0", "aaa1"), RankWith("tp1", "aaa0")}, {"aaa1", "bbb1"}).status(),
             FailsWith(ErrorCode::kCorrupt, "parameter a of tp1"));
}

TEST_CASE("What was not read fails again, however often the server says that it was") {
  Versions versions;
  const std::vector<RankDigests> ranks = {RankOf("tp0", {{"a", "same"}, {"b", "bbb1"}}),
                                          RankOf("tp1", {{"a", "same"}, {"b", "bbb0"}})};
  for (int attempt = 0; attempt < 2; ++attempt) {
    CHECK_THAT(versions.Compare(ranks, {"same", "bbb1"}).status(),
               FailsWith(ErrorCode::kCorrupt, "parameter b of tp1"));
  }
}

TEST_CASE("A tensor that is comparable later than others is compared from then on") {
  Versions versions;
  REQUIRE(*versions.Compare({RankOf("tp0", {{"a", "aaa1"}, {"b", "bbb0"}})}, {"aaa1", "bbb1"}) == 1);
  REQUIRE(*versions.Compare({RankOf("tp0", {{"a", "aaa2"}, {"b", "bbb2"}})}, {"aaa2", "bbb2"}) == 2);
  CHECK_THAT(versions.Compare({RankOf("tp0", {{"a", "aaa3"}, {"b", "bbb2"}})}, {"aaa3", "bbb3"}).status(),
             FailsWith(ErrorCode::kCorrupt, "parameter b of tp0"));
}

TEST_CASE("Of a server that was compared before it is enough that no rank has read the version") {
  Versions versions;
  const std::vector<RankDigests> ranks = {RankWith("tp0", "aaa1"), RankWith("tp1", "aaa1")};
  REQUIRE(versions.Compare(ranks, {"aaa1", "bbb1"}).ok());
  CHECK_THAT(versions.Compare(ranks, {"aaa2", "bbb2"}).status(), FailsWith(ErrorCode::kCorrupt, "parameter a of tp0"));
}

TEST_CASE("A server with another number of ranks may have cut what was whole") {
  Versions versions;
  REQUIRE(*versions.Compare({RankOf("tp0", {{"a", "aaa1"}, {"b", "bbb1"}})}, {"aaa1", "bbb1"}) == 2);
  CHECK(*versions.Compare({RankWith("tp0", "aaa2"), RankWith("tp1", "aaa2")}, {"aaa2", "bbb2"}) == 1);
}

TEST_CASE("Where nothing can be compared nothing is proved") {
  Versions versions;
  CHECK_THAT(versions.Compare({RankOf("tp0", {{"qkv", "fused"}})}, {"aaa1"}).status(),
             FailsWith(ErrorCode::kState, "leave out --engine-check"));
  CHECK_THAT(WeightCheck().Compare({}, "/no/such/version", Sha256).status(),
             FailsWith(ErrorCode::kNotFound, "/no/such/version/model.safetensors"));
}

}  // namespace lockstep::engine
