// What a receiver asks an agent for by OpenPull (trainer_agent/serve/agent_protos.h). An input is a message in
// protobuf's encoding.
#include "common/wire/features.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"
#include "trainer_agent/serve/agent_protos.h"

namespace lockstep::fuzz {
namespace {

const std::string kOwner = "spiffe://test/receiver";

v1::OpenPullRequest Request() {
  v1::OpenPullRequest request;
  request.set_model("actor");
  request.set_receiver("infer-0");
  request.set_layout_digest(ToBytes(SmallLayout()->digest()));
  request.set_lanes_wanted(4);
  request.set_peer(peer::ToLine(wire::Self("raas_receiver")));
  return request;
}

Bytes InputOf(const v1::OpenPullRequest& request) {
  const std::string encoded = request.SerializeAsString();
  const ByteView bytes = AsBytes(std::string_view(encoded));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::vector<Bytes> Seeds() {
  v1::OpenPullRequest pull = Request();
  serve::ToProto(VersionRef{SmallRun(), 3}, pull.mutable_held());
  pull.set_held_digest(ToBytes(SmallManifest(3).digest));
  v1::OpenPullRequest standing = Request();
  standing.set_standing(true);
  return {InputOf(pull), InputOf(standing)};
}

void TestInput(ByteView input) {
  v1::OpenPullRequest proto;
  if (!proto.ParseFromArray(input.data(), static_cast<int>(input.size()))) return;
  const serve::LaneOffer plain{":7701", false};
  const serve::LaneOffer encrypted{":7701", true};
  const auto request = serve::FromProto(proto, plain, kOwner);
  const auto strict = serve::FromProto(proto, encrypted, kOwner);
  LS_FUZZ_RULE(request.ok() || !strict.ok());
  for (const auto& one : {request, strict}) {
    if (!one.ok()) CheckRefusal(one.status(), {ErrorCode::kProtocol, ErrorCode::kBadData});
  }
  if (!request.ok()) return;
  LS_FUZZ_RULE(request->owner == kOwner);
  Accepted(input, {request->lanes > 100, request->force_full, request->model != "actor"});
}

}  // namespace lockstep::fuzz
