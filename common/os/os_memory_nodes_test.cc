#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "common/os/memory_nodes.h"

namespace lockstep::os {
namespace {

int PolicyOfThisThread() {
  int mode = -1;
  (void)::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0);
  return mode;
}

TEST_CASE("Lists of nodes are read as the kernel writes them") {
  CHECK(ParseNodeList("0") == 0b1u);
  CHECK(ParseNodeList("0-1") == 0b11u);
  CHECK(ParseNodeList("0-1,4,6-7") == 0b1101'0011u);
  CHECK(ParseNodeList("63,64-70") == uint64_t{1} << 63);
  CHECK(ParseNodeList("").value() == 0);
}

TEST_CASE("What is no list of nodes is refused") {
  for (const char* list : {"x", "0-", "1-0", "0,", ",0", "0;1", "-1", "0 1"}) {
    CAPTURE(list);
    CHECK_FALSE(ParseNodeList(list).has_value());
  }
}

TEST_CASE("Pages are spread only while the request lives, and only where there are nodes to spread over") {
  const int before = PolicyOfThisThread();
  {
    const SpreadOverNodes spread;
    CHECK(PolicyOfThisThread() == (spread.active() ? MPOL_INTERLEAVE : before));
  }
  CHECK(PolicyOfThisThread() == before);
}

}  // namespace
}  // namespace lockstep::os
