#include "common/model/model_name.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::model {

Status CheckModelName(std::string_view model) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  if (!model.empty() && model.size() <= kMaxModelName && model != "." && model != ".." &&
      std::all_of(model.begin(), model.end(), allowed)) {
    return OkStatus();
  }
  return {ErrorCode::kBadData, Cat("model name \"", CleanText(model, kMaxModelName),
                                   "\": use 1 to 128 letters, digits, '.', '_' and '-', and neither \".\" nor \"..\"")};
}

}  // namespace lockstep::model
