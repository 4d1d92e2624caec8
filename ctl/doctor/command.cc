#include "ctl/doctor/command.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>

#include "common/base/text.h"
#include "common/net/host_port.h"
#include "common/os/file.h"
#include "common/os/filesystem.h"
#include "ctl/output/table.h"

namespace lockstep::ctl {
namespace {

constexpr uint64_t kLeastFiles = 4096;
constexpr std::chrono::hours kSoon{7 * 24};
constexpr const char* kGpuControl = "/dev/nvidiactl";

enum class Health { kGood, kWarning, kBad };
constexpr const char* kWords[] = {"good", "warning", "bad"};  // by Health

struct Finding {
  std::string about;
  Health health;
  std::string found;
  std::string remedy = {};  // a command; empty where nothing is to be corrected
};

uint64_t UsedBytes(const std::string& directory) {
  struct statvfs room {};
  if (::statvfs(directory.c_str(), &room) != 0) return 0;
  return (room.f_blocks - room.f_bfree) * room.f_frsize;
}

Finding CheckDirectory(const std::string& directory, uint64_t model_bytes) {
  const Result<os::FileSystem> there = os::FileSystemOf(directory);
  if (!there.ok()) return {directory, Health::kBad, there.status().message(), Cat("install -d ", directory)};
  const std::string found = Cat(there->name, ", ", HumanBytes(there->free_bytes), " free");
  const uint64_t wanted = 2 * model_bytes;
  if (there->free_bytes < wanted) {
    const std::string lacks = Cat(found, "; two copies of the model need ", HumanBytes(wanted));
    const uint64_t size = UsedBytes(directory) + wanted;
    const uint64_t memory =
        static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    if (size < memory) {
      return {directory, Health::kBad, lacks, Cat("mount -o remount,size=", size / (1 << 20) + 1, "M ", directory)};
    }
    return {directory, Health::kBad, Cat(lacks, ", more than this host's memory, ", HumanBytes(memory))};
  }
  if (there->in_memory) return {directory, Health::kGood, found};
  return {directory, Health::kWarning, found + "; every version would go to a disk",
          Cat("mount -t tmpfs tmpfs ", directory)};
}

std::string Limit(rlim_t value) {
  return value == RLIM_INFINITY ? "unlimited" : Cat(value);
}

Finding CheckFiles() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const std::string found = Limit(limit.rlim_cur);
  if (limit.rlim_cur >= kLeastFiles) return {"open files", Health::kGood, found};
  return {"open files", Health::kBad, Cat(found, "; a daemon with many peers needs ", kLeastFiles, " or more"),
          "ulimit -n 65536    # of a unit: LimitNOFILE=65536"};
}

Finding CheckGpu(bool wanted) {
  if (::access(kGpuControl, F_OK) != 0) {
    if (!wanted) return {"GPU", Health::kGood, "none"};
    return {"GPU", Health::kBad, "none", "nvidia-smi    # of a container: run it with --gpus all"};
  }
  if (::access(kGpuControl, R_OK | W_OK) != 0) {
    return {"GPU", Health::kBad, Cat(kGpuControl, " may not be used by this user"),
            Cat("ls -l ", kGpuControl, "    # which group it belongs to")};
  }
  const Result<std::string> version = os::ReadFile("/proc/driver/nvidia/version", 4096);
  return {"GPU", Health::kGood,
          version.ok() ? version->substr(0, version->find('\n')) : "its driver does not say its version"};
}

// Pages that a GPU copies to are pinned.
Finding CheckLockedMemory(bool gpu) {
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string found = Limit(limit.rlim_cur);
  const bool copies = gpu || ::access(kGpuControl, F_OK) == 0;
  if (limit.rlim_cur == RLIM_INFINITY || !copies) return {"locked memory", Health::kGood, found};
  return {"locked memory", Health::kWarning, found + "; copies from GPUs may be slow",
          "ulimit -l unlimited    # of a unit: LimitMEMLOCK=infinity"};
}

Finding CheckPort(const std::string& text) {
  const std::string about = Cat("port ", CleanText(text, 128));
  const Result<net::HostPort> parsed = net::ParseHostPort(text);
  if (!parsed.ok()) return {about, Health::kBad, parsed.status().message()};
  asio::error_code error;
  const auto address = asio::ip::make_address(parsed->host == "localhost" ? "127.0.0.1" : parsed->host, error);
  if (error) return {about, Health::kBad, "its host is no address of this host"};
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io);
  const asio::ip::tcp::endpoint endpoint(address, parsed->port);
  acceptor.open(endpoint.protocol(), error);
  acceptor.set_option(asio::socket_base::reuse_address(true), error);
  acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(1, error);
  if (!error) return {about, Health::kGood, "free"};
  return {about, Health::kBad, error.message(),
          Cat("ss -ltnp 'sport = :", parsed->port, "'    # which process has it")};
}

// Ages, logs and the log's epochs go by the clock.
Finding CheckClock() {
  timex clock{};
  const bool synchronised = ::adjtimex(&clock) != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
  if (synchronised) return {"clock", Health::kGood, "synchronised"};
  return {"clock", Health::kWarning, "nothing synchronises it, as far as the kernel knows", "timedatectl set-ntp true"};
}

Finding CheckCertificate(const rpc::TlsOptions& tls) {
  if (const Status usable = rpc::PrepareTls(tls); !usable.ok()) {
    const bool of_key = !tls.key.empty() && usable.message().find(tls.key) != std::string::npos;
    return {"certificate", Health::kBad, usable.message(), of_key ? Cat("chmod 600 ", tls.key) : ""};
  }
  const auto end = rpc::CertificateEnd(tls);
  if (!end) return {"certificate", Health::kGood, "none is given"};
  const auto left = std::chrono::duration_cast<std::chrono::hours>(*end - std::chrono::system_clock::now());
  const bool good = left.count() > 0;
  const std::string found = good ? Cat("good for ", left.count() / 24, " days") : Cat(tls.cert, " has expired");
  if (left >= kSoon) return {"certificate", Health::kGood, found};
  return {"certificate", good ? Health::kWarning : Health::kBad, found,
          Cat("openssl x509 -noout -subject -enddate -in ", tls.cert, "    # then issue it anew")};
}

Finding CheckKernel() {
  utsname kernel{};
  ::uname(&kernel);
  int major = 0;
  int minor = 0;
  std::sscanf(kernel.release, "%d.%d", &major, &minor);
  if (major > 5 || (major == 5 && minor >= 3)) return {"kernel", Health::kGood, kernel.release};
  return {"kernel", Health::kBad, Cat(kernel.release, "; Linux 5.3 or newer is needed")};
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
  std::string path = Cat("/proc/sys/", setting.name);
  for (char& c : path) c = c == '.' ? '/' : c;
  const Result<std::string> text = os::ReadFile(path, 64);
  uint64_t value = 0;
  if (!text.ok() || std::from_chars(text->data(), text->data() + text->size(), value).ec != std::errc()) {
    return {setting.name, Health::kGood, "not known here"};
  }
  if (value >= setting.least && value <= setting.most) return {setting.name, Health::kGood, Cat(value)};
  return {setting.name, Health::kWarning, Cat(value, "; ", setting.why),
          Cat("sysctl -w ", setting.name, "=", setting.least)};
}

// Of everything, in the order in which it is shown.
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

}  // namespace

void AddDoctorOptions(CLI::App& command, DoctorOptions& options) {
  command
      .add_option("--directory", options.directories,
                  "Where buffers or replicas are to be; repeat for several [/dev/shm]")
      ->allow_extra_args(false)
      ->type_name("DIR");
  command.add_option("--model-bytes", options.model_bytes, "Size of the model: each directory is to have room for two")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->type_name("SIZE");
  command.add_option("--port", options.ports, "Where a daemon is to listen; repeat for several")
      ->allow_extra_args(false)
      ->type_name("HOST:PORT");
  command.add_flag("--gpu", options.gpu, "A GPU is to be there");
}

Status Run(const DoctorOptions& options, const Output& output) {
  const std::vector<Finding> findings = Examine(options);
  Json document = Json::array();
  Table table({"WHAT", "STATE", "FOUND"});
  std::string remedies;
  for (const auto& [about, health, found, remedy] : findings) {
    const char* const state = kWords[static_cast<size_t>(health)];
    document.push_back({{"about", about}, {"state", state}, {"found", found}, {"remedy", remedy}});
    table.AddRow({about, state, found});
    if (!remedy.empty()) remedies += Cat("  ", remedy, "\n");
  }
  output.Print(document, table.ToString() + (remedies.empty() ? "" : Cat("\nTo correct it:\n", remedies)));
  const auto bad = std::ranges::count(findings, Health::kBad, &Finding::health);
  return bad == 0 ? OkStatus()
                  : Status(ErrorCode::kConfig, Cat("this host: ", bad, bad == 1 ? " finding has" : " findings have",
                                                   " to be corrected first"));
}

}  // namespace lockstep::ctl
