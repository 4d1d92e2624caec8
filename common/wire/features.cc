#include "common/wire/features.h"

#include "common/base/text.h"

namespace lockstep::wire {
namespace {

std::string FeatureOf(payload::CodecLevel level) {
  return Cat("codec-", level->name);
}

}  // namespace

peer::Peer Self(std::string_view program) {
  std::vector<std::string> features;
  for (const payload::CodecLevel level : payload::CodecLevel::All()) features.push_back(FeatureOf(level));
  features.emplace_back(kLaneTls);
  return peer::Self(program, std::move(features));
}

Result<peer::Peer> MeetPeer(const peer::Peer& self, std::string_view line) {
  LS_ASSIGN_OR_RETURN(peer::Peer other, peer::ParsePeer(line));
  LS_RETURN_IF_ERROR(peer::CheckPeer(self, other));
  return other;
}

std::vector<payload::CodecLevel> LevelsOf(const peer::Peer& peer) {
  std::vector<payload::CodecLevel> levels;
  for (const payload::CodecLevel level : payload::CodecLevel::All()) {
    if (levels.empty() || peer.Can(FeatureOf(level))) levels.push_back(level);
  }
  return levels;
}

}  // namespace lockstep::wire
