#include "tests/nccl/stand_in.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "tests/cuda/stand_in.h"

namespace {

// The message of one number from one rank to another. A side is known once its rank has begun it.
struct Transfer {
  const void* from = nullptr;
  void* to = nullptr;
  uint64_t sent = 0;
  uint64_t received = 0;
  bool begun[2] = {};    // by the sender, by the receiver
  bool reached[2] = {};  // in their streams
  bool copied = false;
};

// Ranks with one unique id.
struct World {
  int ranks = 0;
  std::set<int> came;
  std::map<std::pair<int, int>, std::vector<std::shared_ptr<Transfer>>> ways;
};

// A message that a rank has begun and that is not in its stream yet.
struct Begun {
  std::shared_ptr<Transfer> transfer;
  bool sends = false;
  bool first = false;  // between the two ranks
  cudaStream_t stream = nullptr;
};

}  // namespace

struct ncclComm {
  std::shared_ptr<World> world;
  int rank = 0;
  int device = 0;
  bool made = false;
  bool finalizing = false;
  std::shared_ptr<bool> aborted = std::make_shared<bool>(false);
  std::map<std::pair<int, bool>, size_t> count;  // of messages with a peer, sent or received
  std::optional<Begun> begun;
};

namespace {

struct Fault {
  std::string name;
  uint64_t nth;
  ncclResult_t result;
};

// Locked after the CUDA stand-in's own mutex, never before it.
struct Machine {
  std::mutex mutex;
  uint64_t ids = 0;
  std::map<std::string, std::shared_ptr<World>> worlds;
  std::vector<std::unique_ptr<ncclComm>> all;  // kept until Reset(): a handle is never used again
  std::set<ncclComm*> live;
  std::vector<Fault> faults;
  std::map<int, ncclResult_t> later;
  std::set<int> dead;
  std::vector<std::string> violations;
};

Machine& TheMachine() {
  static auto* const machine = new Machine;
  return *machine;
}

// With the lock.
std::optional<ncclResult_t> InjectedError(std::string_view name) {
  std::optional<ncclResult_t> error;
  for (Fault& fault : TheMachine().faults) {
    if (fault.name == name && --fault.nth == 0) error = fault.result;
  }
  std::erase_if(TheMachine().faults, [](const Fault& fault) { return fault.nth == 0; });
  return error;
}

// With the lock: whether a call may use `comm`; a violation if not.
bool Usable(ncclComm_t comm, std::string_view who, bool idle) {
  const bool live = TheMachine().live.contains(comm);
  if (live && !(idle && (!comm->made || comm->begun || comm->finalizing))) return true;
  TheMachine().violations.push_back(std::string(who) +
                                    (live ? " while another call is in progress" : " of no communicator"));
  return false;
}

// Of one side's work in its stream; with the CUDA stand-in's lock.
bool Ready(Transfer& transfer, bool sends, int rank, const bool& aborted) {
  const std::lock_guard lock(TheMachine().mutex);
  if (aborted) return true;
  if (TheMachine().dead.contains(rank)) return false;
  transfer.reached[sends ? 0 : 1] = true;
  return transfer.reached[0] && transfer.reached[1];
}

void Move(Transfer& transfer, const bool& aborted) {
  const std::lock_guard lock(TheMachine().mutex);
  if (aborted || transfer.copied) return;
  transfer.copied = true;
  if (transfer.sent == transfer.received) return void(std::memmove(transfer.to, transfer.from, transfer.sent));
  TheMachine().violations.push_back("sent " + std::to_string(transfer.sent) + " bytes where " +
                                    std::to_string(transfer.received) + " were to be received");
}

// Puts the message into its stream. Without the lock.
void Launch(const ncclComm& comm, const Begun& begun) {
  const auto transfer = begun.transfer;
  const auto aborted = comm.aborted;
  const bool sends = begun.sends;
  int before = 0;
  (void)cudaGetDevice(&before);
  (void)cudaSetDevice(comm.device);
  (void)lockstep::cuda::LaunchWhen(begun.stream, sends ? "ncclSend" : "ncclRecv", [=] { Move(*transfer, *aborted); },
                                   {.ready = [=, rank = comm.rank] { return Ready(*transfer, sends, rank, *aborted); },
                                    .memory = sends ? transfer->from : transfer->to,
                                    .bytes = sends ? transfer->sent : transfer->received});
  (void)cudaSetDevice(before);
}

ncclResult_t Begin(std::string_view name, ncclComm_t comm, int peer, bool sends, const void* data, size_t bytes,
                   cudaStream_t stream) {
  const std::lock_guard lock(TheMachine().mutex);
  if (!Usable(comm, name, true)) return ncclInvalidUsage;
  if (const auto injected = InjectedError(name)) return *injected;
  if (peer < 0 || peer >= comm->world->ranks || peer == comm->rank) return ncclInvalidArgument;
  const size_t number = comm->count[{peer, sends}]++;
  auto& way = comm->world->ways[sends ? std::pair(comm->rank, peer) : std::pair(peer, comm->rank)];
  if (way.size() <= number) way.push_back(std::make_shared<Transfer>());
  Transfer& transfer = *way[number];
  transfer.begun[sends ? 0 : 1] = true;
  if (sends) {
    std::tie(transfer.from, transfer.sent) = std::tuple(data, bytes);
  } else {
    std::tie(transfer.to, transfer.received) = std::tuple(const_cast<void*>(data), bytes);
  }
  comm->begun = Begun{way[number], sends, number == 0, stream};
  return ncclInProgress;
}

}  // namespace

namespace lockstep::nccl {

void Reset() {
  Machine& machine = TheMachine();
  const std::lock_guard lock(machine.mutex);
  machine.worlds.clear();
  machine.live.clear();
  machine.all.clear();
  machine.faults.clear();
  machine.later.clear();
  machine.dead.clear();
  machine.violations.clear();
}

void FailCall(std::string_view name, uint64_t nth, ncclResult_t result) {
  const std::lock_guard lock(TheMachine().mutex);
  TheMachine().faults.push_back({std::string(name), nth, result});
}

void FailLater(int rank, ncclResult_t result) {
  const std::lock_guard lock(TheMachine().mutex);
  TheMachine().later[rank] = result;
}

void Kill(int rank) {
  const std::lock_guard lock(TheMachine().mutex);
  TheMachine().dead.insert(rank);
}

uint64_t LiveCommunicators() {
  const std::lock_guard lock(TheMachine().mutex);
  return TheMachine().live.size();
}

std::vector<std::string> Violations() {
  const std::lock_guard lock(TheMachine().mutex);
  return TheMachine().violations;
}

}  // namespace lockstep::nccl

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unhandled error";
  }
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(TheMachine().mutex);
  if (const auto injected = InjectedError("ncclGetUniqueId")) return *injected;
  *id = {};
  std::strcpy(id->internal, std::to_string(++TheMachine().ids).c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  int device = 0;
  (void)cudaGetDevice(&device);
  Machine& machine = TheMachine();
  const std::lock_guard lock(machine.mutex);
  if (const auto injected = InjectedError("ncclCommInitRankConfig")) return *injected;
  if (config == nullptr || config->blocking != 0) {
    machine.violations.push_back("a communicator that blocks");
    return ncclInvalidArgument;
  }
  std::shared_ptr<World>& world = machine.worlds[id.internal];
  if (world == nullptr) world = std::make_shared<World>();
  world->ranks = ranks;
  if (rank < 0 || rank >= ranks || !world->came.insert(rank).second) return ncclInvalidArgument;
  *comm = machine.all.emplace_back(std::make_unique<ncclComm>()).get();
  (*comm)->world = world;
  (*comm)->rank = rank;
  (*comm)->device = device;
  machine.live.insert(*comm);
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  Begun begun;
  {
    const std::lock_guard lock(TheMachine().mutex);
    if (!Usable(comm, "ncclCommGetAsyncError", false)) return ncclInvalidArgument;
    if (const auto injected = InjectedError("ncclCommGetAsyncError")) return *injected;
    *error = ncclInProgress;
    if (const auto later = TheMachine().later.find(comm->rank); later != TheMachine().later.end()) {
      *error = later->second;
      return ncclSuccess;
    }
    if (TheMachine().dead.contains(comm->rank)) return ncclSuccess;
    if (!comm->made) {
      comm->made = comm->world->came.size() == static_cast<size_t>(comm->world->ranks);
      return ncclSuccess;  // it is told with the next question
    }
    *error = ncclSuccess;
    comm->finalizing = false;
    if (!comm->begun) return ncclSuccess;
    const Transfer& transfer = *comm->begun->transfer;
    if (comm->begun->first && !(transfer.begun[0] && transfer.begun[1])) {
      *error = ncclInProgress;
      return ncclSuccess;
    }
    begun = *std::exchange(comm->begun, std::nullopt);
  }
  Launch(*comm, begun);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(TheMachine().mutex);
  if (!Usable(comm, "ncclCommFinalize", true)) return ncclInvalidUsage;
  if (const auto injected = InjectedError("ncclCommFinalize")) return *injected;
  comm->finalizing = true;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(TheMachine().mutex);
  if (!Usable(comm, "ncclCommDestroy", true)) return ncclInvalidUsage;
  if (const auto injected = InjectedError("ncclCommDestroy")) return *injected;
  TheMachine().live.erase(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(TheMachine().mutex);
  if (!Usable(comm, "ncclCommAbort", false)) return ncclInvalidUsage;
  *comm->aborted = true;
  TheMachine().live.erase(comm);
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  return Begin("ncclSend", comm, peer, true, data, count, stream);
}

ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t, int peer, ncclComm_t comm, cudaStream_t stream) {
  return Begin("ncclRecv", comm, peer, false, data, count, stream);
}

}  // extern "C"
