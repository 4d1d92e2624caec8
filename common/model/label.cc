#include "common/model/label.h"

#include "common/base/text.h"

namespace lockstep::model {

Status CheckLabel(std::string_view label) {
  if (CleanText(label, kMaxLabel) == label && label.find_first_of("\n\t") == label.npos) return OkStatus();
  return {ErrorCode::kBadData, Cat("label \"", CleanText(label, kMaxLabel), "\": a label is UTF-8 of at most ",
                                   kMaxLabel, " bytes without control characters")};
}

}  // namespace lockstep::model
