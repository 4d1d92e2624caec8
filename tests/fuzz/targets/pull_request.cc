// What a receiver asks an agent for by OpenPull and OpenLive (trainer_agent/serve/agent_protos.h). An input is a byte
// that says which, and a message in protobuf's encoding.
#include "common/wire/features.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/small_model.h"
#include "trainer_agent/serve/agent_protos.h"

namespace lockstep::fuzz {
namespace {

const std::string kOwner = "spiffe://test/receiver";

template <typename Proto>
Proto Request() {
  Proto request;
  request.set_model("actor");
  request.set_receiver("infer-0");
  request.set_layout_digest(ToBytes(SmallLayout()->digest()));
  request.set_lanes_wanted(4);
  request.set_peer(peer::ToLine(wire::Self("raas_receiver")));
  return request;
}

Bytes InputOf(bool live, const google::protobuf::Message& message) {
  Bytes input;
  Append(input, static_cast<uint8_t>(live));
  const std::string encoded = message.SerializeAsString();
  AppendBytes(input, AsBytes(std::string_view(encoded)));
  return input;
}

template <typename Proto>
void Test(ByteView message, ByteView input) {
  Proto proto;
  if (!proto.ParseFromArray(message.data(), static_cast<int>(message.size()))) return;
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

}  // namespace

std::vector<Bytes> Seeds() {
  auto pull = Request<v1::OpenPullRequest>();
  serve::ToProto(Held{SmallRun(), 3}, pull.mutable_held());
  pull.set_held_digest(ToBytes(SmallManifest(3).digest));
  return {InputOf(false, pull), InputOf(true, Request<v1::OpenLiveRequest>())};
}

void TestInput(ByteView input) {
  ByteReader reader(input);
  uint8_t live = 0;
  if (!reader.Take(live)) return;
  if (live != 0) return Test<v1::OpenLiveRequest>(reader.rest(), input);
  Test<v1::OpenPullRequest>(reader.rest(), input);
}

}  // namespace lockstep::fuzz
