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

bool TakeProtocol(std::string_view text, uint32_t& number) {
  if (!text.starts_with(kProtocolKey)) return false;
  text.remove_prefix(kProtocolKey.size());
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  return parsed.ec == std::errc() && parsed.ptr == end && number > 0;
}

}  // namespace

std::string SelfLine(std::string_view program) {
  return Cat(program, "/", kVersion, " ", kProtocolKey, kProtocol);
}

Result<Peer> ParsePeer(std::string_view line) {
  const Status malformed(ErrorCode::kProtocol, Cat("a peer says of itself \"", CleanText(line.substr(0, 128)),
                                                   "\", which is not NAME/RELEASE protocol=NUMBER"));
  if (line.size() > kMaxPeerBytes) return malformed;
  Peer peer;
  std::string_view release = TakeUntil(line, ' ');
  peer.program = TakeUntil(release, '/');
  peer.release = release;
  if (!IsWord(peer.program) || !IsWord(peer.release) || !TakeProtocol(TakeUntil(line, ' '), peer.protocol)) {
    return malformed;
  }
  return peer;
}

Status CheckPeer(std::string_view program, std::string_view line) {
  LS_ASSIGN_OR_RETURN(const Peer other, ParsePeer(line));
  if (other.protocol == kProtocol) return OkStatus();
  return {ErrorCode::kProtocol, Cat(program, " ", kVersion, " speaks protocol ", kProtocol, ", ", other.program, " ",
                                    other.release, " speaks protocol ", other.protocol, "; upgrade the ",
                                    other.protocol < kProtocol ? std::string_view(other.program) : program)};
}

}  // namespace lockstep::peer
