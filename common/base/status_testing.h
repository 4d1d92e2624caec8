// How tests hold a refusal to its code and its text: CHECK_THAT(Parse(bad), FailsWith(ErrorCode::kBadData, "line 7")).
#pragma once

#include <catch2/catch.hpp>
#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace lockstep {

// Matches a Status or Result<T> with `code` and a message that contains every one of `texts`.
class FailsWith {
 public:
  template <std::convertible_to<std::string>... Texts>
  explicit FailsWith(ErrorCode code, std::string text, Texts... more)
      : code_(code), texts_{std::move(text), std::move(more)...} {}

  template <typename Outcome>
  bool match(const Outcome& outcome) const {
    const Status& status = ToStatus(outcome);
    if (status.code() != code_) return false;
    for (const std::string& text : texts_) {
      if (status.message().find(text) == std::string::npos) return false;
    }
    return true;
  }

  std::string toString() const {
    std::string wanted = "fails with " + std::string(Label(code_));
    for (const std::string& text : texts_) wanted += " and \"" + text + '"';
    return wanted;
  }

 private:
  ErrorCode code_;
  std::vector<std::string> texts_;
};

}  // namespace lockstep

namespace Catch {

template <>
struct StringMaker<lockstep::Status> {
  static std::string convert(const lockstep::Status& status) { return status.ToString(); }
};

template <typename T>
struct StringMaker<lockstep::Result<T>> {
  static std::string convert(const lockstep::Result<T>& result) { return result.status().ToString(); }
};

}  // namespace Catch
