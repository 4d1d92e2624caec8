// For tests: runs something once with each of Highway's targets that this machine has, as the one that is dispatched
// to.
#pragma once

#define HWY_WANT_AVX3_DL 1
#include <hwy/highway.h>

#include <catch2/catch.hpp>

namespace lockstep::kernels {

template <typename F>
void ForEachTarget(F run) {
  const int64_t all = hwy::SupportedTargets() & HWY_TARGETS;
  for (int64_t rest = all; rest != 0; rest &= rest - 1) {
    const int64_t target = rest & -rest;
    INFO("target " << hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    run();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(all);
}

}  // namespace lockstep::kernels
