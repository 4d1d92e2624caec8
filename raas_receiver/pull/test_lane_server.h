// An agent's lane port for tests: plain sockets, one thread per lane, and faults where a test wants them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/text.h"
#include "common/wire/frame.h"
#include "kernels/hash.h"
#include "raas_receiver/replica/test_model.h"

namespace lockstep::pull {

enum class Fault {
  kNone,
  kRefuseTicket,
  kForeignWelcome,
  kCloseBeforeFrame,
  kCloseInPayload,
  kCorruptHeader,
  kCorruptPayload,
  kOtherBytes,    // of a full block, and their hash
  kForeignBlock,  // one that was not asked for
  kBlockTwice,
  kSkippedBlock,
  kOldVersion,
  kOtherPayload,  // a delta of another step
  kWrongEnd,      // kRequestEnd with another count
  kTooLarge,
  kStall,
};

// The code of the error that a receiver returns when a lane does so.
inline ErrorCode CodeOf(Fault fault) {
  switch (fault) {
    case Fault::kNone:
      return ErrorCode::kOk;
    case Fault::kRefuseTicket:
      return ErrorCode::kPermission;
    case Fault::kCloseBeforeFrame:
    case Fault::kCloseInPayload:
      return ErrorCode::kUnavailable;
    case Fault::kCorruptHeader:
    case Fault::kCorruptPayload:
    case Fault::kOtherBytes:
      return ErrorCode::kCorrupt;
    case Fault::kStall:
      return ErrorCode::kDeadline;
    default:
      return ErrorCode::kProtocol;
  }
}

// Serves `model`: full blocks at `full_version` (or what version_of says), and delta payloads by id.
class TestLaneServer {
 public:
  explicit TestLaneServer(const replica::TestModel& model) : model_(model) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    (void)::bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes);
    (void)::listen(listener_, 64);
    (void)::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~TestLaneServer() {
    stopping_ = true;
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    {
      std::lock_guard lock(mutex_);
      for (const int lane : lanes_) ::shutdown(lane, SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
    for (const int lane : lanes_) ::close(lane);
    ::close(listener_);
  }

  uint16_t port() const { return port_; }
  int connections() const { return connections_; }

  // Set before the first lane connects.
  std::function<Fault(int connection)> fault_of = [](int) { return Fault::kNone; };
  int at_frame = 5;  // of a connection: when the fault happens
  std::function<Version(BlockIndex)> version_of = [](BlockIndex) { return Version{1}; };
  std::map<uint64_t, std::vector<payload::DeltaBlock>> payloads;  // by id: from version id to id + 1
  std::function<Status(const wire::BlockRequest&)> refuse = [](const wire::BlockRequest&) { return OkStatus(); };
  // Stream requests wait until the version after their base is being made.
  std::function<bool(Version base)> begun = [](Version) { return true; };

 private:
  struct LaneState {
    int socket = -1;
    Fault fault = Fault::kNone;
    int frames = 0;
  };

  void Accept() {
    while (!stopping_) {
      const int lane = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (lane < 0) return;
      const Fault fault = fault_of(connections_++);
      std::lock_guard lock(mutex_);
      lanes_.push_back(lane);
      threads_.emplace_back([this, lane, fault] {
        Serve({lane, fault, 0});
        ::shutdown(lane, SHUT_RDWR);
      });
    }
  }

  void Serve(LaneState lane) {
    wire::LaneHello hello;
    if (!Read(lane, hello) || !wire::CheckHello(hello).ok()) return;
    wire::LaneWelcome welcome;
    if (lane.fault == Fault::kRefuseTicket) welcome.code = static_cast<uint32_t>(ErrorCode::kPermission);
    if (lane.fault == Fault::kForeignWelcome) welcome.magic ^= 1;
    wire::Seal(welcome);
    if (!Write(lane, AsBytes(welcome)) || welcome.code != 0) return;
    wire::BlockRequest request;
    while (Read(lane, request)) {
      if (!wire::CheckRequest(request, model_.layout()->block_count()).ok() || !Answer(lane, request)) return;
    }
  }

  bool Answer(LaneState& lane, const wire::BlockRequest& request) {
    const bool streams = request.kind == static_cast<uint8_t>(wire::RequestKind::kStream);
    while (streams && !begun(request.exact_version) && !stopping_)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (const Status refused = refuse(request); !refused.ok()) return SendError(lane, request, refused);
    uint32_t sent = 0;
    const bool full = request.kind == static_cast<uint8_t>(wire::RequestKind::kFull);
    const bool whole = streams ? SendStream(lane, request, sent)
                       : full  ? SendFull(lane, request, sent)
                               : SendDelta(lane, request, sent);
    if (!whole) return false;
    wire::FrameHeader end;
    if (streams) end.version = request.exact_version + 1;
    end.type = static_cast<uint8_t>(wire::FrameType::kRequestEnd);
    end.request_id = request.request_id;
    end.block = Due(lane, Fault::kWrongEnd) ? sent + 1 : sent;
    wire::Seal(end);
    return Write(lane, AsBytes(end));
  }

  bool SendFull(LaneState& lane, const wire::BlockRequest& request, uint32_t& sent) {
    for (BlockIndex block = request.first_block; block < request.first_block + request.block_count; ++block) {
      if (Due(lane, Fault::kSkippedBlock)) continue;
      const Version version = request.exact_version != 0 ? request.exact_version : version_of(block);
      const ByteView right = model_.block_of(version, block);
      Bytes bytes(right.begin(), right.end());
      if (Due(lane, Fault::kOtherBytes)) bytes[0] ^= std::byte{1};
      wire::FrameHeader frame;
      frame.codec = static_cast<uint8_t>(payload::Codec::kRaw);
      frame.version = version;
      frame.block_hash = frame.payload_hash = model::BlockHash(bytes);
      if (!SendBlock(lane, request, block, frame, bytes)) return false;
      ++sent;
    }
    return true;
  }

  bool SendDelta(LaneState& lane, const wire::BlockRequest& request, uint32_t& sent) {
    for (const payload::DeltaBlock& delta : payloads.at(request.payload_id)) {
      if (delta.block < request.first_block || delta.block >= request.first_block + request.block_count) continue;
      wire::FrameHeader frame;
      frame.codec = static_cast<uint8_t>(delta.codec);
      frame.version = request.payload_id + 1;
      frame.base_version = request.payload_id;
      frame.block_hash = delta.target_hash;
      frame.payload_hash = delta.data_hash;
      frame.changes = delta.changes;
      frame.payload_id = request.payload_id;
      if (!SendBlock(lane, request, delta.block, frame, delta.data)) return false;
      ++sent;
    }
    return true;
  }

  bool SendStream(LaneState& lane, const wire::BlockRequest& request, uint32_t& sent) {
    const Version base = request.exact_version;
    for (const payload::DeltaBlock& delta : payloads.at(base)) {
      if (delta.block % request.block_count != request.first_block) continue;
      wire::FrameHeader frame;
      frame.codec = static_cast<uint8_t>(delta.codec);
      frame.version = base + 1;
      frame.base_version = base;
      frame.block_hash = delta.target_hash;
      frame.payload_hash = delta.data_hash;
      frame.changes = delta.changes;
      if (!SendBlock(lane, request, delta.block, frame, delta.data)) return false;
      ++sent;
    }
    return true;
  }

  // Sends one block's frame, with the fault that is due.
  bool SendBlock(LaneState& lane, const wire::BlockRequest& request, BlockIndex block, wire::FrameHeader frame,
                 ByteView payload) {
    ++lane.frames;
    frame.type = static_cast<uint8_t>(wire::FrameType::kBlock);
    frame.request_id = request.request_id;
    frame.block = block;
    frame.payload_bytes = static_cast<uint32_t>(payload.size());
    if (Due(lane, Fault::kCloseBeforeFrame)) return false;
    if (Due(lane, Fault::kForeignBlock)) frame.block = request.first_block + request.block_count;
    if (Due(lane, Fault::kOldVersion)) frame.version = frame.base_version + (frame.base_version > 0 ? 7 : 0);
    if (Due(lane, Fault::kOtherPayload)) frame.payload_id += 100;
    if (Due(lane, Fault::kTooLarge)) frame.payload_bytes = 1 << 30;
    wire::Seal(frame);
    if (Due(lane, Fault::kCorruptHeader)) frame.block_hash ^= 1;
    if (Due(lane, Fault::kBlockTwice) && !(Write(lane, AsBytes(frame)) && Write(lane, payload))) return false;
    if (!Write(lane, AsBytes(frame))) return false;
    if (Due(lane, Fault::kStall)) Stall();
    if (Due(lane, Fault::kCloseInPayload)) return Write(lane, payload.first(payload.size() / 2)) && false;
    Bytes bytes(payload.begin(), payload.end());
    if (Due(lane, Fault::kCorruptPayload)) bytes[bytes.size() / 2] ^= std::byte{4};
    return Write(lane, bytes);
  }

  bool SendError(LaneState& lane, const wire::BlockRequest& request, const Status& why) {
    wire::FrameHeader frame;
    frame.type = static_cast<uint8_t>(wire::FrameType::kError);
    frame.request_id = request.request_id;
    frame.block = static_cast<uint32_t>(why.code());
    frame.payload_bytes = static_cast<uint32_t>(why.message().size());
    frame.payload_hash = Hash64(AsBytes(std::string_view(why.message())));
    wire::Seal(frame);
    return Write(lane, AsBytes(frame)) && Write(lane, AsBytes(std::string_view(why.message())));
  }

  bool Due(const LaneState& lane, Fault fault) const { return lane.fault == fault && lane.frames >= at_frame; }
  void Stall() {
    while (!stopping_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  template <typename T>
  static bool Read(const LaneState& lane, T& message) {
    return ::recv(lane.socket, &message, sizeof message, MSG_WAITALL) == static_cast<ssize_t>(sizeof message);
  }
  static bool Write(const LaneState& lane, ByteView bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::send(lane.socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (put <= 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(put));
    }
    return true;
  }

  const replica::TestModel& model_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> connections_ = 0;
  std::mutex mutex_;
  std::vector<int> lanes_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace lockstep::pull
