#include "common/wire/rank_messages.h"

#include <catch2/catch.hpp>

#include "common/base/status_testing.h"
#include "common/base/text.h"

namespace lockstep::wire {
namespace {

TEST_CASE("An OPEN says model, layout, rank, run and share, and no prefix of one does") {
  const auto layout = *model::ModelLayout::Create({{"w", model::DType::kBF16, {4}, 0}}, 4096);
  OpenBody open{.rank = 1, .ranks = 2, .run = {{7}}};
  Share share;
  const StridedRange ranges[] = {{0, 2}, {2, 1, 3, 2}};
  CHECK(share.Add(ranges) == 0);
  CHECK(share.Add({}) == 1);
  CHECK(share.Add({ranges, 1}) == 2);
  CHECK(share.RangesOf(0).size() == 2);
  CHECK(share.RangesOf(1).empty());
  CHECK(share.BytesOf(0) == 5);
  const Bytes body = EncodeOpen(open, "actor", *layout, share);
  const auto opening = DecodeOpen(body);
  REQUIRE(opening.ok());
  CHECK(opening->model == "actor");
  CHECK(opening->layout->digest() == layout->digest());
  CHECK(opening->rank == 1);
  CHECK(opening->ranks == 2);
  CHECK(opening->run == open.run);
  CHECK(opening->share == share);
  for (size_t bytes = 0; bytes < body.size(); ++bytes) {
    CHECK_THAT(DecodeOpen(ByteView(body).first(bytes)), FailsWith(ErrorCode::kProtocol, "a malformed OPEN"));
  }
  Bytes longer = body;
  longer.push_back(std::byte{0});
  CHECK_THAT(DecodeOpen(longer), FailsWith(ErrorCode::kProtocol, "a malformed OPEN"));
  open.ranks = kMaxRanks + 1;
  CHECK_THAT(DecodeOpen(EncodeOpen(open, "actor", *layout, share)),
             FailsWith(ErrorCode::kProtocol, "a malformed OPEN"));
  open.ranks = 2;
  for (const std::vector<uint32_t>& ends : {std::vector<uint32_t>{2, 1, 3}, {2, 2}, {2, 2, 4}, {}}) {
    share.batch_ends = ends;
    CHECK_THAT(DecodeOpen(EncodeOpen(open, "actor", *layout, share)),
               FailsWith(ErrorCode::kProtocol, "the batches of an OPEN do not follow each other"));
  }
}

TEST_CASE("The numbers of batches come whole or not at all") {
  const std::vector<uint32_t> batches = {0, 7};
  const ByteView bytes = std::as_bytes(std::span(batches));
  CHECK(*DecodeBatches(bytes) == batches);
  CHECK(DecodeBatches({})->empty());
  CHECK_THAT(DecodeBatches(bytes.first(5)), FailsWith(ErrorCode::kProtocol, "malformed batches"));
}

TEST_CASE("An error arrives with its code and its sentence, fit to be read") {
  const Status sent(ErrorCode::kState, "version 2 is being written");
  CHECK(DecodeError(EncodeError(sent)).ToString() == sent.ToString());
  const Status spoilt = DecodeError(EncodeError({ErrorCode::kState, "a\x1b\xff"}));
  CHECK(spoilt.message() == "a??");
  CHECK(DecodeError(EncodeError({ErrorCode::kState, std::string(1 << 20, 'a')})).message().size() == 4096);
  CHECK_THAT(DecodeError({}), FailsWith(ErrorCode::kProtocol, "a malformed error message"));
  CHECK_THAT(DecodeError(AsBytes(ErrorBody{99})), FailsWith(ErrorCode::kProtocol, "a malformed error message"));
}

}  // namespace
}  // namespace lockstep::wire
