#include "ctl/daemon/verify.h"

#include <algorithm>

#include "common/base/text.h"
#include "ctl/output/table.h"

namespace lockstep::ctl {
namespace {

constexpr size_t kTensorsNamed = 10;

bool OwnDigestsAgree(const v1::VerifyResult& result) {
  return result.bad_blocks().empty() && result.computed_digest() == result.recorded_digest();
}

std::string JoinedNames(const google::protobuf::RepeatedPtrField<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += Cat(text.empty() ? "" : "; ", name);
  return text;
}

std::string DerivedText(const v1::VerifyResult& result) {
  if (!result.not_derived_again().empty()) return Cat("not derived again: ", result.not_derived_again(), "\n");
  if (result.derived_again_from().empty()) return "";
  const std::string_view verdict = result.wrong_tensors().empty() ? ": equal\n" : ": NOT equal\n";
  return Cat("derived again from model ", result.derived_again_from(), verdict);
}

// The first of `count` names.
std::string TensorNames(const google::protobuf::RepeatedPtrField<std::string>& names, size_t count) {
  const size_t shown = std::min({kTensorsNamed, count, static_cast<size_t>(names.size())});
  std::string text;
  for (size_t i = 0; i < shown; ++i) text += " " + names[static_cast<int>(i)];
  return count > shown ? Cat(text, " and ", count - shown, " more") : text;
}

}  // namespace

Status Judge(const Verification& verification) {
  const v1::VerifyResult& result = verification.result;
  const std::string what =
      Cat(verification.daemon, ": model ", verification.model, " version ", result.held().version());
  if (!OwnDigestsAgree(result)) {
    return {ErrorCode::kCorrupt,
            Cat(what, ": ", result.bad_blocks_size(), " blocks differ from the manifest, in tensors",
                TensorNames(result.bad_tensors(), static_cast<size_t>(result.bad_tensors_size())),
                "; pull it again in full")};
  }
  if (!result.wrong_tensors().empty()) {
    return {ErrorCode::kCorrupt,
            Cat(what, ": it does not follow from model ", result.derived_again_from(), ", in tensors",
                TensorNames(result.wrong_tensors(), static_cast<size_t>(result.wrong_tensors_size())),
                "; publish again, and report this defect")};
  }
  if (!result.engine_error().empty()) return {ErrorCode::kCorrupt, Cat(what, ": ", result.engine_error())};
  if (const auto& agent = verification.agent; agent.has_value()) {
    if (agent->held.run() != result.held().run()) {
      return {ErrorCode::kCorrupt, Cat(what, ": is of run ", Hex(result.held().run()), ", the agent ", agent->address,
                                       " is in run ", Hex(agent->held.run()))};
    }
    if (agent->digest != result.computed_digest()) {
      return {ErrorCode::kCorrupt, Cat(what, ": digest ", Hex(result.computed_digest()), " is not the ",
                                       Hex(agent->digest), " of agent ", agent->address, "; pull it again in full")};
    }
  }
  if (verification.needs_engines && result.engines() == 0) {
    return {ErrorCode::kState, Cat(what, ": no engine is attached at --engine-socket, so none was compared")};
  }
  if (verification.needs_engines && !result.not_compared().empty()) {
    return {ErrorCode::kState, Cat(what, ": ", result.not_compared_size(), " of ",
                                   result.not_compared_size() + static_cast<int>(result.engines()),
                                   " engines were not compared: ", JoinedNames(result.not_compared()))};
  }
  return OkStatus();
}

Json ToJson(const Verification& verification) {
  Json json = {{"daemon", verification.daemon}, {"model", verification.model}, {"equal", Judge(verification).ok()}};
  json.update(ToJson(verification.result));
  json["agent"] = nullptr;
  if (const auto& agent = verification.agent; agent.has_value()) {
    json["agent"] = {{"address", agent->address}, {"held", ToJson(agent->held)}, {"digest", Hex(agent->digest)}};
  }
  return json;
}

std::string VerificationText(const Verification& verification) {
  const v1::VerifyResult& result = verification.result;
  Table table({"DIGEST", "OF"});
  table.AddRow({Hex(result.computed_digest()), Cat("the bytes of ", verification.daemon, " now")});
  table.AddRow({Hex(result.recorded_digest()), "its manifest"});
  if (const auto& agent = verification.agent; agent.has_value()) {
    table.AddRow({Hex(agent->digest), Cat("the manifest of agent ", agent->address)});
  }
  const Status judged = Judge(verification);
  const std::string_view verdict = judged.ok()                          ? ": equal\n"
                                   : judged.code() == ErrorCode::kState ? ": equal, but for engines not compared\n"
                                                                        : ": NOT equal\n";
  const std::string engines =
      result.engines() == 0 ? "" : Cat("engines whose memory was compared, too: ", result.engines(), "\n");
  std::string missing;
  for (const std::string& engine : result.not_compared())
    missing += Cat("engine that was not compared: ", engine, "\n");
  if (result.not_comparing() != 0) {
    missing +=
        Cat("engines that serve what they loaded, and have no rank that compares it: ", result.not_comparing(), "\n");
  }
  const std::string unused = result.unused() == 0 ? ""
                                                  : Cat("tensors that no parameter of an engine takes:",
                                                        TensorNames(result.unused_tensors(), result.unused()), "\n");
  return Cat(verification.model, " version ", result.held().version(), verdict, table.ToString(), DerivedText(result),
             engines, missing, unused);
}

}  // namespace lockstep::ctl
