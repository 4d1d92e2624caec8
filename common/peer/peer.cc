#include "common/peer/peer.h"

#include <algorithm>
#include <charconv>

#include "common/base/text.h"
#include "common/base/version.h"

namespace lockstep::peer {
namespace {

constexpr std::string_view kProtocolKey = "protocol=";

// The text up to the next `separator`, which is taken from `rest` with it.
std::string_view TakeUntil(std::string_view& rest, char separator) {
  const size_t end = std::min(rest.find(separator), rest.size());
  const std::string_view taken = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return taken;
}

bool IsWord(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._+-").find(c) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, allowed);
}

bool TakeNumber(std::string_view text, uint32_t& number) {
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end && number > 0;
}

bool TakeProtocols(std::string_view text, Peer& peer) {
  if (!text.starts_with(kProtocolKey)) return false;
  text.remove_prefix(kProtocolKey.size());
  const std::string_view oldest = TakeUntil(text, '-');
  return TakeNumber(oldest, peer.oldest_protocol) && TakeNumber(text, peer.newest_protocol) &&
         peer.oldest_protocol <= peer.newest_protocol;
}

std::string Spoken(const Peer& peer) {
  if (peer.oldest_protocol == peer.newest_protocol) return Cat("protocol ", peer.newest_protocol);
  return Cat("protocols ", peer.oldest_protocol, " to ", peer.newest_protocol);
}

}  // namespace

bool Peer::Can(std::string_view feature) const {
  return std::ranges::find(features, feature) != features.end();
}

std::string Peer::name() const {
  return Cat(program, " ", release);
}

Peer Self(std::string_view program, std::vector<std::string> features) {
  return {.program = std::string(program), .release = std::string(kVersion), .features = std::move(features)};
}

std::string ToLine(const Peer& peer) {
  std::string line =
      Cat(peer.program, "/", peer.release, " ", kProtocolKey, peer.oldest_protocol, "-", peer.newest_protocol);
  for (const std::string& feature : peer.features) line += " " + feature;
  return line;
}

Result<Peer> ParsePeer(std::string_view line) {
  const Status malformed(ErrorCode::kProtocol, Cat("a peer says of itself \"", CleanText(line.substr(0, 128)),
                                                   "\", which is not NAME/RELEASE protocol=OLDEST-NEWEST FEATURE..."));
  if (line.size() > kMaxPeerBytes) return malformed;
  Peer peer;
  std::string_view release = TakeUntil(line, ' ');
  peer.program = TakeUntil(release, '/');
  peer.release = release;
  if (!IsWord(peer.program) || !IsWord(peer.release) || !TakeProtocols(TakeUntil(line, ' '), peer)) return malformed;
  while (!line.empty()) {
    peer.features.emplace_back(TakeUntil(line, ' '));
    if (!IsWord(peer.features.back())) return malformed;
  }
  return peer;
}

Status CheckPeer(const Peer& self, const Peer& other) {
  const bool other_is_older = other.newest_protocol < self.oldest_protocol;
  if (!other_is_older && self.newest_protocol >= other.oldest_protocol) return OkStatus();
  return {ErrorCode::kProtocol, Cat(self.name(), " speaks ", Spoken(self), ", ", other.name(), " speaks ",
                                    Spoken(other), "; upgrade the ", (other_is_older ? other : self).program)};
}

}  // namespace lockstep::peer
