#include "ctl/doctor/checks.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>

#include "common/base/text.h"
#include "common/net/host_port.h"
#include "common/os/file.h"
#include "common/os/filesystem.h"

namespace lockstep::ctl {
namespace {

constexpr uint64_t kLeastFiles = 4096;
constexpr std::chrono::hours kSoon{7 * 24};
constexpr const char* kGpuControl = "/dev/nvidiactl";

uint64_t UsedBytes(const std::string& directory) {
  struct statvfs room {};
  if (::statvfs(directory.c_str(), &room) != 0) return 0;
  return (room.f_blocks - room.f_bfree) * room.f_frsize;
}

Finding CheckDirectory(const std::string& directory, uint64_t model_bytes) {
  Finding finding{.about = directory, .found = {}, .remedy = {}};
  const Result<os::FileSystem> there = os::FileSystemOf(directory);
  const uint64_t wanted = 2 * model_bytes;
  if (!there.ok()) {
    finding.health = Health::kBad;
    finding.found = there.status().message();
    finding.remedy = Cat("install -d ", directory);
    return finding;
  }
  finding.found = Cat(there->name, ", ", HumanBytes(there->free_bytes), " free");
  if (there->free_bytes < wanted) {
    finding.health = Health::kBad;
    finding.found += Cat("; two copies of the model need ", HumanBytes(wanted));
    const uint64_t size = UsedBytes(directory) + wanted;
    const uint64_t memory =
        static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    if (size < memory) {
      finding.remedy = Cat("mount -o remount,size=", size / (1 << 20) + 1, "M ", directory);
    } else {
      finding.found += Cat(", more than this host's memory, ", HumanBytes(memory));
    }
  } else if (!there->in_memory) {
    finding.health = Health::kWarning;
    finding.found += "; every version would go to a disk";
    finding.remedy = Cat("mount -t tmpfs tmpfs ", directory);
  }
  return finding;
}

std::string Limit(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : Cat(value);
}

Finding CheckFiles() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{.about = "open files", .found = Limit(limit.rlim_cur), .remedy = {}};
  if (limit.rlim_cur >= kLeastFiles) return finding;
  finding.health = Health::kBad;
  finding.found += Cat("; a daemon with many peers needs ", kLeastFiles, " or more");
  finding.remedy = "ulimit -n 65536    # of a unit: LimitNOFILE=65536";
  return finding;
}

Finding CheckGpu(bool wanted) {
  Finding finding{.about = "GPU", .found = "none", .remedy = {}};
  if (::access(kGpuControl, F_OK) != 0) {
    if (wanted) finding.health = Health::kBad;
    if (wanted) finding.remedy = "nvidia-smi    # of a container: run it with --gpus all";
    return finding;
  }
  const Result<std::string> version = os::ReadFile("/proc/driver/nvidia/version", 4096);
  finding.found = version.ok() ? version->substr(0, version->find('\n')) : "its driver does not say its version";
  if (::access(kGpuControl, R_OK | W_OK) == 0) return finding;
  finding.health = Health::kBad;
  finding.found = Cat(kGpuControl, " may not be used by this user");
  finding.remedy = Cat("ls -l ", kGpuControl, "    # which group it belongs to");
  return finding;
}

// Pages that a GPU copies to are pinned.
Finding CheckLockedMemory(bool gpu) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  Finding finding{.about = "locked memory", .found = Limit(limit.rlim_cur), .remedy = {}};
  if (limit.rlim_cur == RLIM_INFINITY || !(gpu || ::access(kGpuControl, F_OK) == 0)) return finding;
  finding.health = Health::kWarning;
  finding.found += "; copies from GPUs may be slow";
  finding.remedy = "ulimit -l unlimited    # of a unit: LimitMEMLOCK=infinity";
  return finding;
}

Finding CheckPort(const std::string& text) {
  Finding finding{.about = Cat("port ", CleanText(text, 128)), .found = "free", .remedy = {}};
  const Result<net::HostPort> parsed = net::ParseHostPort(text);
  asio::error_code error;
  asio::ip::address address;
  if (parsed.ok()) address = asio::ip::make_address(parsed->host == "localhost" ? "127.0.0.1" : parsed->host, error);
  if (!parsed.ok() || error) {
    finding.health = Health::kBad;
    finding.found = parsed.ok() ? "its host is no address of this host" : parsed.status().message();
    return finding;
  }
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io);
  const asio::ip::tcp::endpoint endpoint(address, parsed->port);
  acceptor.open(endpoint.protocol(), error);
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(1, error);
  if (!error) return finding;
  finding.health = Health::kBad;
  finding.found = error.message();
  finding.remedy = Cat("ss -ltnp 'sport = :", parsed->port, "'    # which process has it");
  return finding;
}

// Ages, logs and the log's epochs go by the clock.
Finding CheckClock() {
  timex clock{};
  const bool synchronised = ::adjtimex(&clock) != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
  Finding finding{.about = "clock", .found = "synchronised", .remedy = {}};
  if (synchronised) return finding;
  finding.health = Health::kWarning;
  finding.found = "nothing synchronises it, as far as the kernel knows";
  finding.remedy = "timedatectl set-ntp true";
  return finding;
}

Finding CheckCertificate(const rpc::TlsOptions& tls) {
  Finding finding{.about = "certificate", .found = "none is given", .remedy = {}};
  const Status usable = rpc::PrepareTls(tls);
  if (!usable.ok()) {
    finding.health = Health::kBad;
    finding.found = usable.message();
    if (usable.message().find(tls.key) != std::string::npos && !tls.key.empty())
      finding.remedy = Cat("chmod 600 ", tls.key);
    return finding;
  }
  const auto end = rpc::CertificateEnd(tls);
  if (!end) return finding;
  const auto left = std::chrono::duration_cast<std::chrono::hours>(*end - std::chrono::system_clock::now());
  finding.found = left.count() > 0 ? Cat("good for ", left.count() / 24, " days") : Cat(tls.cert, " has expired");
  if (left >= kSoon) return finding;
  finding.health = left.count() > 0 ? Health::kWarning : Health::kBad;
  finding.remedy = Cat("openssl x509 -noout -subject -enddate -in ", tls.cert, "    # then issue it anew");
  return finding;
}

Finding CheckKernel() {
  utsname kernel{};
  ::uname(&kernel);
  Finding finding{.about = "kernel", .found = kernel.release, .remedy = {}};
  int major = 0;
  int minor = 0;
  std::sscanf(kernel.release, "%d.%d", &major, &minor);
  if (major > 5 || (major == 5 && minor >= 3)) return finding;
  finding.health = Health::kBad;
  finding.found += "; Linux 5.3 or newer is needed";
  return finding;
}

// A setting of the kernel's, and the least that it is to be.
struct Setting {
  const char* name;
  uint64_t least;
  uint64_t most;
  const char* why;
};

constexpr Setting kSettings[] = {
    {"vm.overcommit_memory", 0, 1, "mappings of whole models are refused"},
    {"vm.max_map_count", 65'530, UINT64_MAX, "engines map many tensors"},
    {"fs.inotify.max_user_instances", 64, UINT64_MAX, "each reader of a log in a directory needs one"},
};

Finding CheckSetting(const Setting& setting) {
  Finding finding{.about = setting.name, .found = {}, .remedy = {}};
  std::string path = Cat("/proc/sys/", setting.name);
  for (char& c : path) c = c == '.' ? '/' : c;
  const Result<std::string> text = os::ReadFile(path, 64);
  uint64_t value = 0;
  if (!text.ok() || std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc()) {
    finding.found = "not known here";
    return finding;
  }
  finding.found = Cat(value);
  if (value >= setting.least && value <= setting.most) return finding;
  finding.health = Health::kWarning;
  finding.found += Cat("; ", setting.why);
  finding.remedy = Cat("sysctl -w ", setting.name, "=", setting.least);
  return finding;
}

}  // namespace

std::vector<Finding> Examine(const DoctorOptions& options) {
  std::vector<Finding> findings;
  std::vector<std::string> directories = options.directories;
  if (directories.empty()) directories.emplace_back("/dev/shm");
  for (const std::string& directory : directories) {
    findings.push_back(CheckDirectory(directory, options.model_bytes));
  }
  findings.push_back(CheckFiles());
  findings.push_back(CheckLockedMemory(options.gpu));
  for (const std::string& port : options.ports) findings.push_back(CheckPort(port));
  findings.push_back(CheckCertificate(options.tls));
  findings.push_back(CheckClock());
  findings.push_back(CheckGpu(options.gpu));
  findings.push_back(CheckKernel());
  for (const Setting& setting : kSettings) findings.push_back(CheckSetting(setting));
  return findings;
}

}  // namespace lockstep::ctl
