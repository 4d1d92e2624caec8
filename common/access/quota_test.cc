#include "common/access/quota.h"

#include <catch2/catch.hpp>
#include <vector>

#include "common/base/status_testing.h"

namespace lockstep::access {
namespace {

TEST_CASE("A caller that has used up its own leaves room for others, and what ends makes room") {
  Quota quota("streams", {.all = 5, .each = 2});
  std::vector<Quota::Lease> greedy;
  greedy.push_back(*quota.Take("greedy"));
  greedy.push_back(*quota.Take("greedy"));
  CHECK_THAT(quota.Take("greedy"), FailsWith(ErrorCode::kResourceExhausted, "2 streams of greedy are open"));
  CHECK(quota.Take("other").ok());
  greedy.pop_back();
  CHECK(quota.Take("greedy").ok());
}

TEST_CASE("There is a limit to all, which is the only one of those without a name") {
  Quota quota("streams", {.all = 3, .each = 1});
  std::vector<Quota::Lease> all;
  for (int i = 0; i < 3; ++i) all.push_back(*quota.Take(""));
  CHECK_THAT(quota.Take("other"), FailsWith(ErrorCode::kResourceExhausted, "3 streams are open, the limit"));
  all.clear();
  CHECK(quota.Take("other").ok());
}

}  // namespace
}  // namespace lockstep::access
