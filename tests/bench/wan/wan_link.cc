// A wide-area link between two network namespaces of its own, for kernels without netem.
//
//   wan_link [--rate BITS_PER_S] [--rtt-us N] [--loss SHARE]
//
// Prints a JSON line {"ends": [PATH, PATH], "addresses": [IPv4, IPv4]} when the link is up: programs come into an end
// with nsenter --net=PATH. Each line on its standard input is answered by a line of totals, for each direction, since
// it started. Ends, and takes everything with it, when its standard input ends; nothing of it has a name outside of it,
// so nothing is left behind when it is killed. Exit status: 0; 64 bad usage; 77 not allowed here (no root, no
// /dev/net/tun).
//
// Faithful: rate (of IPv4 bytes), delay, loss and drop-tail queue for every segment by itself; congestion control,
// pacing, window scaling, retransmission and acknowledgements are those of the kernel. Not faithful: segments of one
// train arrive together, so acknowledgements are as few as with large receive offload; a direction waits for the
// scheduler ("late" of the totals counts trains that left more than 1 ms after they were due, "failed" those that could
// not be carried); no reordering, no jitter, no other traffic.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/base/text.h"
#include "common/os/unique_fd.h"
#include "tests/bench/wan/wan_path.h"

namespace lockstep::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDevice[] = "wan0";
constexpr int kDeviceQueue = 4096;  // trains; what waits here waits for this program, not for the wire
constexpr int kNotAllowed = 77;
constexpr const char* kAddresses[] = {"10.77.0.1", "10.77.0.2"};

struct End {
  os::UniqueFd space;   // the network namespace
  os::UniqueFd device;  // packets that leave it, and enter it
};

struct Options {
  uint64_t bits_per_s = 0;
  int64_t rtt_us = 0;
  double loss = 0;
};

ifreq Named(const char* device) {
  ifreq request{};
  std::strncpy(request.ifr_name, device, IFNAMSIZ - 1);
  return request;
}

sockaddr AddressOf(const char* text) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, text, &address.sin_addr);
  sockaddr plain{};
  std::memcpy(&plain, &address, sizeof plain);
  return plain;
}

Status Control(int fd, unsigned long request, void* argument, const char* what) {
  return ioctl(fd, request, argument) < 0 ? ErrnoStatus(errno, what) : OkStatus();
}

Status BringUp(const char* device) {
  const os::UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = Named(device);
  LS_RETURN_IF_ERROR(Control(socket.get(), SIOCGIFFLAGS, &request, "SIOCGIFFLAGS"));
  request.ifr_flags |= IFF_UP;
  return Control(socket.get(), SIOCSIFFLAGS, &request, "SIOCSIFFLAGS");
}

Status Configure(const char* address) {
  const os::UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request = Named(kDevice);
  request.ifr_qlen = kDeviceQueue;
  LS_RETURN_IF_ERROR(Control(socket.get(), SIOCSIFTXQLEN, &request, "SIOCSIFTXQLEN"));
  request.ifr_addr = AddressOf(address);
  LS_RETURN_IF_ERROR(Control(socket.get(), SIOCSIFADDR, &request, "SIOCSIFADDR"));
  request.ifr_netmask = AddressOf("255.255.255.252");
  LS_RETURN_IF_ERROR(Control(socket.get(), SIOCSIFNETMASK, &request, "SIOCSIFNETMASK"));
  LS_RETURN_IF_ERROR(BringUp("lo"));
  return BringUp(kDevice);
}

// A namespace with one end of the link in it; this thread stays there.
Result<End> MakeEnd(const char* address) {
  if (unshare(CLONE_NEWNET) < 0) return ErrnoStatus(errno, "a network namespace");
  End end;
  end.space = os::UniqueFd(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  end.device = os::UniqueFd(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!end.space.valid() || !end.device.valid()) return ErrnoStatus(errno, "/dev/net/tun");
  ifreq request = Named(kDevice);
  request.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR;
  LS_RETURN_IF_ERROR(Control(end.device.get(), TUNSETIFF, &request, "TUNSETIFF"));
  if (ioctl(end.device.get(), TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) < 0) return ErrnoStatus(errno, "TUNSETOFFLOAD");
  LS_RETURN_IF_ERROR(Configure(address));
  return end;
}

Json JsonOf(const WanTotals& totals) {
  return {{"segments", totals.segments}, {"bytes", totals.bytes},   {"lost", totals.lost}, {"dropped", totals.dropped},
          {"failed", totals.failed},     {"trains", totals.trains}, {"late", totals.late}};
}

void Print(const Json& line) {
  std::cout << line.dump() << std::endl;
}

// On time, as hardware would be: before ordinary threads, and woken when asked for.
void BecomePunctual() {
  const sched_param priority{.sched_priority = 1};
  sched_setscheduler(0, SCHED_FIFO, &priority);
  prctl(PR_SET_TIMERSLACK, 1);
}

void Carry(const Options& options, const End& left, const End& right) {
  // The queue has room for one round trip at the rate.
  const uint64_t queue = std::max<uint64_t>(64 << 10, options.bits_per_s / 8 * options.rtt_us / 1'000'000);
  WanPathOptions path{options.bits_per_s, options.rtt_us * 500, options.loss, queue, /*seed=*/1};
  WanPath there(left.device.get(), right.device.get(), path);
  path.seed = 2;
  WanPath back(right.device.get(), left.device.get(), path);
  const os::UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  std::vector<std::thread> threads;
  for (WanPath* direction : {&there, &back}) {
    threads.emplace_back([direction, &stop] {
      BecomePunctual();
      direction->Run(stop.get());
    });
  }
  const std::string process = Cat("/proc/", getpid(), "/fd/");
  Print({{"ends", {Cat(process, left.space.get()), Cat(process, right.space.get())}}, {"addresses", kAddresses}});
  for (std::string line; std::getline(std::cin, line);) Print({JsonOf(there.totals()), JsonOf(back.totals())});
  eventfd_write(stop.get(), 1);
  for (std::thread& thread : threads) thread.join();
}

Status Run(const Options& options) {
  LS_ASSIGN_OR_RETURN(const End left, MakeEnd(kAddresses[0]));
  LS_ASSIGN_OR_RETURN(const End right, MakeEnd(kAddresses[1]));
  Carry(options, left, right);
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("A wide-area link between two network namespaces.", "wan_link");
  app.add_option("--rate", options.bits_per_s, "bits a second; 0: no limit");
  app.add_option("--rtt-us", options.rtt_us, "round trip")->check(CLI::Range(0, 10'000'000));
  app.add_option("--loss", options.loss, "share of segments lost")->check(CLI::Range(0.0, 0.99));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : ExitCode(ErrorCode::kUsage);
  }
  const Status done = Run(options);
  if (done.ok()) return 0;
  std::cerr << "wan_link: " << done.ToString() << '\n';
  return kNotAllowed;
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  return lockstep::bench::Main(argc, argv);
}
