#include "raas_receiver/archive/log_writer.h"

#include <algorithm>
#include <vector>

#include "common/base/stop_wait.h"
#include "common/base/text.h"
#include "common/objects/sha256.h"
#include "common/telemetry/log.h"
#include "common/telemetry/timeline.h"
#include "common/versionlog/head.h"
#include "common/versionlog/history.h"

namespace lockstep::archive {
namespace {

constexpr std::chrono::hours kFindEvery{1};
constexpr std::chrono::minutes kRemoveAgain{1};  // after an error
constexpr size_t kRemoved = 64;                  // at once

uint64_t UnixSeconds() {
  return static_cast<uint64_t>(telemetry::UnixNanos()) / 1'000'000'000;
}

}  // namespace

LogWriter::LogWriter(LogWriterOptions options, WorkerPool& transfers)
    : options_(std::move(options)), transfers_(transfers), rate_(options_.bytes_per_s) {}

// What has signed the heads that this writer may build upon; nothing: any head may be.
versionlog::TrustedKeys LogWriter::Own() const {
  return options_.key ? options_.key->Verifier() : versionlog::TrustedKeys();
}

// The id and the epoch of what was written here before; no id: nothing was.
Result<v1::LogHead> LogWriter::Known() const {
  v1::LogHead known;
  if (!head_.id().empty()) {
    known = head_;
  } else if (!options_.remembered_path.empty()) {
    LS_ASSIGN_OR_RETURN(known, versionlog::ReadRemembered(options_.remembered_path));
  }
  known.clear_history();
  known.clear_next();
  if (!versionlog::IsEpoch(known.epoch())) known.clear_epoch();  // no reader has taken it
  return known;
}

Status LogWriter::TakeOver(std::stop_token stop) {
  if (!options_.key) {
    LS_RETURN_IF_ERROR(options_.store->CheckOwn(options_.model)
                           .WithContext(Cat(options_.store->url(),
                                            " is written without a key, so only this user and root may write there")));
  }
  const std::string name = versionlog::HeadName(options_.model);
  LS_ASSIGN_OR_RETURN(const v1::LogHead known, Known());
  const auto there = options_.store->ReadChanged(name, "", {}, stop);
  v1::LogHead head = known;
  tag_.clear();
  if (there.ok()) {
    auto decoded = versionlog::DecodeHead((*there)->bytes, options_.model, Own());
    const ErrorCode code = decoded.status().code();
    if (options_.key && (code == ErrorCode::kPermission || code == ErrorCode::kCorrupt)) {
      // What this key has not signed before, it does not sign now: the log starts again, in a later epoch.
      const auto others = versionlog::DecodeHead((*there)->bytes, options_.model, {});
      if (others.ok()) head.set_epoch(std::max(head.epoch(), others->epoch()));
    } else if (!decoded.ok()) {
      return decoded.status().WithContext(Cat(options_.store->url(), "/", name));
    } else if (!known.id().empty() && decoded->id() != known.id()) {
      return {ErrorCode::kState, Cat(options_.store->url(), "/", name,
                                     " is of another log than the one that was written here; remove it, or ",
                                     options_.remembered_path, " if it is the right one")};
    } else {
      head = *std::move(decoded);
      head.set_epoch(std::max(head.epoch(), known.epoch()));
    }
    tag_ = (*there)->tag;
  } else if (there.status().code() != ErrorCode::kNotFound) {
    return there.status();
  }
  if (head.id().empty()) head.set_id(ToBytes(RandomId<RunId>()));
  taken_over_ = false;
  attempted_.clear();
  put_.clear();
  lost_.clear();
  unnamed_.clear();
  head_ = head;
  named_ = versionlog::ObjectNames(head_);
  find_again_ = remove_again_ = {};
  return SetHead(std::move(head), /*new_epoch=*/true, stop);
}

Status LogWriter::WriteObject(const std::string& name, ByteView bytes, const std::stop_token& stop) {
  const auto wait = rate_.Book(bytes.size());
  if (wait.count() > 0 && WaitForStop(wait, stop)) return {ErrorCode::kCancelled, "the receiver stops"};
  LS_RETURN_IF_ERROR(options_.store->Write(name, bytes, stop).WithContext(Cat(options_.store->url(), "/", name)));
  bytes_written_ += bytes.size();
  return OkStatus();
}

Result<v1::LogBytes> LogWriter::Put(std::string_view kind, ByteView bytes, uint64_t piece_bytes, std::stop_token stop) {
  v1::LogBytes put;
  put.set_bytes(bytes.size());
  put.set_piece_bytes(piece_bytes);
  const size_t count = (bytes.size() + piece_bytes - 1) / piece_bytes;
  std::vector<std::string> sums(count);
  LS_RETURN_IF_ERROR(transfers_.ParallelTry(count, [&](size_t i) {
    const ByteView rest = bytes.subspan(i * piece_bytes);
    const ByteView piece = rest.first(std::min<uint64_t>(rest.size(), piece_bytes));
    sums[i] = objects::AsRaw(objects::Sha256Of(piece));
    const std::string name = versionlog::ObjectName(options_.model, kind, sums[i]);
    // One that is about to be removed counts as gone.
    if ((named_.contains(name) && !lost_.contains(name)) || put_.contains(name)) return OkStatus();
    return WriteObject(name, piece, stop);
  }));
  for (std::string& sum : sums) {
    const std::string name = versionlog::ObjectName(options_.model, kind, sum);
    lost_.erase(name);
    put_.insert(name);
    put.add_pieces(std::move(sum));
  }
  return put;
}

Status LogWriter::SetHead(v1::LogHead next, bool new_epoch, std::stop_token stop) {
  next.set_format(versionlog::kLogFormat);
  next.set_model(options_.model);
  next.set_writer(options_.writer);
  next.set_written_unix_ns(telemetry::UnixNanos());
  // Of the clock, so that a log that was removed and started again goes on for those that have read it.
  next.set_epoch(new_epoch ? std::max(head_.epoch() + 1, UnixSeconds()) : head_.epoch());
  next.set_serial(new_epoch ? 1 : head_.serial() + 1);

  const std::string name = versionlog::HeadName(options_.model);
  const Bytes encoded = versionlog::EncodeHead(next, options_.key ? &*options_.key : nullptr);
  attempted_.emplace(objects::AsRaw(objects::Sha256Of(encoded)));
  Result<std::string> tag = options_.store->Replace(name, tag_, encoded, stop);
  if (tag.ok()) {
    tag_ = *std::move(tag);
  } else if (tag.status().code() == ErrorCode::kAborted) {
    LS_RETURN_IF_ERROR(FindOut(encoded, next.epoch(), stop));
  } else {
    return tag.status();
  }
  attempted_.clear();
  std::set<std::string> named = versionlog::ObjectNames(next);
  for (const std::string& before : named_) {
    if (!named.contains(before)) unnamed_.insert_or_assign(before, Clock::now() + options_.grace);
  }
  for (const std::string& now : named) {
    unnamed_.erase(now);
    put_.erase(now);
  }
  named_ = std::move(named);
  std::erase_if(lost_, [&](const std::string& name) { return !named_.contains(name); });
  head_ = std::move(next);
  if (!new_epoch || options_.remembered_path.empty()) return OkStatus();
  const Status noted = versionlog::WriteRemembered(options_.remembered_path, head_);
  if (!noted.ok()) telemetry::LogWarn("log_head_not_noted", noted, {{"model", options_.model}});
  return OkStatus();
}

bool LogWriter::HasLost(const v1::LogHistory& history) const {
  if (lost_.empty()) return false;
  v1::LogHead head;
  *head.mutable_history() = history;
  head.set_model(options_.model);
  return std::ranges::any_of(versionlog::ObjectNames(head), [&](const auto& name) { return lost_.contains(name); });
}

// Finds out which writer replaced the head: this one, in a call that lost its answer, or another one.
Status LogWriter::FindOut(const Bytes& encoded, uint64_t epoch, const std::stop_token& stop) {
  const std::string name = versionlog::HeadName(options_.model);
  LS_ASSIGN_OR_RETURN(const auto there, options_.store->ReadChanged(name, "", {}, stop));
  if (there->bytes == encoded) {
    tag_ = there->tag;
    return OkStatus();
  }
  if (attempted_.contains(std::string(objects::AsRaw(objects::Sha256Of(there->bytes))))) {
    tag_ = there->tag;
    return {ErrorCode::kUnavailable, Cat(options_.store->url(), "/", name, ": an answer was lost; tried again")};
  }
  const auto other = versionlog::DecodeHead(there->bytes, options_.model, Own());
  // What no reader takes after this writer's head stops no writer.
  const auto place = [](const v1::LogHead& head) { return std::pair(head.epoch(), head.serial()); };
  const ErrorCode code = other.status().code();
  const char* why = code == ErrorCode::kCorrupt                  ? " was damaged"
                    : code == ErrorCode::kPermission             ? " was replaced by one that this key has not signed"
                    : other.ok() && place(*other) < place(head_) ? " was replaced by an older one"
                                                                 : nullptr;
  if (why != nullptr) {
    tag_ = there->tag;
    // An unsigned writer that has taken the log finds a later epoch in turn, and stops.
    const auto others = versionlog::DecodeHead(there->bytes, options_.model, {});
    if (others.ok() && !other.ok()) head_.set_epoch(std::max(head_.epoch(), others->epoch() + 1));
    return {ErrorCode::kUnavailable, Cat(options_.store->url(), "/", name, why, "; it is written again")};
  }
  taken_over_ = true;
  const std::string by = other.ok() ? Cat(CleanText(other->writer(), 128), ", in epoch ", other->epoch()) : "another";
  return {ErrorCode::kAborted, Cat(options_.store->url(), "/", name, " was taken over by ", by,
                                   "; this receiver, in epoch ", epoch, ", writes no more until it is started again")};
}

Status LogWriter::FindUnnamed(const std::stop_token& stop) {
  LS_ASSIGN_OR_RETURN(const auto listed, options_.store->List(options_.model + "/", stop));
  lost_ = named_;
  for (const objects::ListedObject& object : listed) {
    lost_.erase(object.name);
    const bool of_use = named_.contains(object.name) || put_.contains(object.name);
    if (!of_use && versionlog::IsObjectName(options_.model, object.name))
      unnamed_.emplace(object.name, Clock::now() + options_.grace);
  }
  std::erase_if(lost_, [&](const std::string& name) {  // a list may lack what can be read
    const auto end = [](ByteView) { return Status(ErrorCode::kAborted, "it is there"); };
    return options_.store->Read(name, end, stop).code() != ErrorCode::kNotFound;
  });
  find_again_ = Clock::now() + kFindEvery;
  if (lost_.empty()) return OkStatus();
  const Status lost{ErrorCode::kCorrupt, Cat(options_.store->url(), "/", *lost_.begin(), " is lost")};
  telemetry::LogWarn("log_objects_lost", lost, {{"model", options_.model}, {"objects", lost_.size()}});
  return OkStatus();
}

Status LogWriter::TryRemove(const std::stop_token& stop) {
  if (Clock::now() >= find_again_) LS_RETURN_IF_ERROR(FindUnnamed(stop));
  std::vector<std::string> due;
  for (const auto& [name, when] : unnamed_) {
    if (when <= Clock::now() && !put_.contains(name)) due.push_back(name);
  }
  const std::string head = versionlog::HeadName(options_.model);
  for (size_t done = 0; done < due.size(); done += kRemoved) {
    // Another writer may have taken the log over, and named them again.
    LS_ASSIGN_OR_RETURN(const auto other, options_.store->ReadChanged(head, tag_, {}, stop));
    if (other) return SetHead(head_, /*new_epoch=*/false, stop);  // names the other
    const auto batch = std::span(due).subspan(done, std::min(kRemoved, due.size() - done));
    LS_RETURN_IF_ERROR(
        transfers_.ParallelTry(batch.size(), [&](size_t i) { return options_.store->Remove(batch[i], stop); }));
    for (const std::string& removed : batch) unnamed_.erase(removed);
  }
  if (due.empty()) return OkStatus();
  telemetry::Log(telemetry::LogLevel::kDebug, "log_objects_removed",
                 {{"model", options_.model}, {"objects", due.size()}});
  return OkStatus();
}

Result<bool> LogWriter::RemoveUnnamed(std::stop_token stop) {
  if (Clock::now() < remove_again_) return false;
  const bool had_lost = !lost_.empty();
  const Status tried = TryRemove(stop);
  if (tried.ok()) return !had_lost && !lost_.empty();
  if (taken_over_ || tried.code() == ErrorCode::kNotFound) return tried;
  remove_again_ = Clock::now() + kRemoveAgain;
  telemetry::LogWarn("log_objects_not_removed", tried, {{"model", options_.model}});
  return false;
}

}  // namespace lockstep::archive
