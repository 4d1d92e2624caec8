// The log's head (FORMAT.md), a v1::LogHead: the one object of a log that changes.
//
// The reader trusts nothing that lies there. DecodeHead returns only heads whose histories pass CheckHistory.
#pragma once

#include <string>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/objects/sha256.h"
#include "common/versionlog/keys.h"
#include "proto/lockstep/v1/log.pb.h"

namespace lockstep::versionlog {

inline constexpr uint32_t kLogFormat = 1;
inline constexpr uint64_t kMaxPieceBytes = 256 << 20;

// Whether a writer may have made this epoch: it is of a clock, and no more than a day ahead of this host's. So there is
// always a higher one for whoever takes the log over.
bool IsEpoch(uint64_t epoch);

// The kinds of objects; each kind is also the directory that its objects lie in.
inline constexpr std::string_view kLayout = "layout";
inline constexpr std::string_view kManifest = "manifest";
inline constexpr std::string_view kDelta = "delta";
inline constexpr std::string_view kChunk = "chunk";

std::string HeadName(std::string_view model);
// `sha256` is 32 raw bytes.
std::string ObjectName(std::string_view model, std::string_view kind, std::string_view sha256);

// Whether it is the name of an object of a model's log, or of what a killed writer has left of one.
bool IsObjectName(std::string_view model, std::string_view name);

// Signed where `key` is not null.
Bytes EncodeHead(const v1::LogHead& head, const SigningKey* key);

// kCorrupt: what is there is not what was written. kPermission: not signed by a trusted key. kProtocol: another format,
// another model, or a history that breaks a rule.
Result<v1::LogHead> DecodeHead(ByteView bytes, std::string_view model, const TrustedKeys& trusted);

// The rules of a history: sizes and counts within the limits; steps consecutive, up to the newest version; chunks in
// their order, of versions that steps lead on from. `whole`: a chunk for each index, and every version from `oldest` on
// can be made. kProtocol names the rule that is broken.
Status CheckHistory(const v1::LogHistory& history, bool whole);

// OK when the history's numbers fit `layout`, the layout that it names, and may be used with it. `whole` as for
// CheckHistory. kProtocol otherwise.
Status CheckLayout(const v1::LogHistory& history, const model::ModelLayout& layout, bool whole);

// OK when a reader that has taken `seen` may take `next`. kState: `next` is of another log, older, or of another run in
// the same epoch.
Status CheckFollows(const v1::LogHead& seen, const v1::LogHead& next);

// A file that remembers a head across restarts: as much of it as CheckFollows needs. Its directory is made.
Status WriteRemembered(const std::string& path, const v1::LogHead& head);
// A head without an id: nothing is remembered there. kCorrupt: the file holds something else.
Result<v1::LogHead> ReadRemembered(const std::string& path);

}  // namespace lockstep::versionlog
