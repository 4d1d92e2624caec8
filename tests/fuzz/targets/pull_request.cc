// What a receiver asks an agent for by OpenPull (trainer_agent/serve/agent_protos.h). An input is a message in
// protobuf's encoding.
#include "common/peer/peer.h"
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
  request.set_peer(peer::SelfLine("raas_receiver"));
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
  const auto request = serve::FromProto(proto, kOwner);
  if (!request.ok()) return CheckRefusal(request.status(), {ErrorCode::kProtocol, ErrorCode::kBadData});
  LS_FUZZ_RULE(request->owner == kOwner);
  Accepted(input, {request->lanes > 100, request->force_full, request->model != "actor"});
}

}  // namespace lockstep::fuzz
