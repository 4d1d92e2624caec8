// A daemon's configuration file (common/config/config.h): what --print-config says of it is such a file again.
#include "common/config/config.h"

#include <sstream>

#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

struct Daemon {
  std::string listen = "127.0.0.1:7700";
  uint64_t block_bytes = 262144;
  uint64_t rate = 0;
  bool follow = true;
  std::vector<std::string> models;

  bool operator==(const Daemon&) const = default;

  Result<config::ParseOutcome> Parse(std::vector<const char*> words, std::ostream& out) {
    config::ConfigParser parser({.program = "fuzz_daemon", .about = "A daemon", .version = "1"});
    parser.Add("listen", &listen, "a text");
    parser.Add("block-bytes", &block_bytes, "a number");
    parser.Add("rate", &rate, "another number");
    parser.Add("follow", &follow, "a bool");
    parser.Add("model", &models, "a list");
    words.insert(words.begin(), "fuzz_daemon");
    return parser.Parse(static_cast<int>(words.size()), words.data(), out);
  }
};

}  // namespace

std::vector<Bytes> Seeds() {
  const std::string_view all =
      "# every kind\nlisten = \"0.0.0.0:1\"\nblock_bytes = \"256KiB\"\nrate = 5\nfollow = false\n"
      "model = [\"actor\", 'critic']\n";
  const std::string_view odd = "listen = '''\na \\ \"b\"'''\nblock_bytes = 0x10_00\nrate = \"2K\"\nfollow = \"on\"\n";
  const std::string_view most = "block_bytes = \"18446744073709551615\"\nrate = \"9223372036854775807\"\n";
  return {Copy(AsBytes(all)), Copy(AsBytes(odd)), Copy(AsBytes(most)),
          Copy(AsBytes(std::string_view("model = []\n[table]\n")))};
}

void TestInput(ByteView input) {
  Daemon daemon;
  std::ostringstream printed;
  const std::string path = FileOf(input);
  const auto outcome = daemon.Parse({"--config", path.c_str(), "--print-config"}, printed);
  if (!outcome.ok()) return CheckRefusal(outcome.status(), {ErrorCode::kConfig});
  Daemon again;
  std::ostringstream printed_again;
  (void)FileOf(AsBytes(std::string_view(printed.str())));
  LS_FUZZ_RULE(again.Parse({"--config", path.c_str()}, printed_again).ok());
  LS_FUZZ_RULE(again == daemon || printed.str().find("***@") != std::string::npos);  // a password is not printed
  Accepted(input, {daemon.rate > 5, daemon.models.size() == 2 && daemon.models[1].size() > 6});
}

}  // namespace lockstep::fuzz
