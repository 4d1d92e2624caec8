#include "common/config/config.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <sstream>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/config/config_values.h"
#include "common/os/temp_dir.h"

namespace lockstep::config {
namespace {

// A daemon's options, parsed from words as its main() would.
struct Daemon {
  std::string listen = "127.0.0.1:7700";
  uint64_t block_bytes = 262144;
  bool follow = true;
  bool insecure = false;
  std::vector<std::string> models;
  std::vector<ConfigTable> engines;
  std::ostringstream out;
  std::string listen_written_as;  // after Parse

  Result<ParseOutcome> Parse(std::vector<const char*> words) {
    ConfigParser parser({.program = "test_daemon", .about = "A daemon for tests", .version = "test_daemon 1.2.3"});
    parser.Add("listen", &listen, "where it listens");
    parser.Add("block-bytes", &block_bytes, "size of a block");
    parser.Add("follow", &follow, "whether it follows");
    parser.Add("insecure", &insecure, "whether it dares");
    parser.Add("model", &models, "a model, repeatable");
    parser.Add("engine", &engines, "an engine, repeatable");
    words.insert(words.begin(), "test_daemon");
    const auto outcome = parser.Parse(static_cast<int>(words.size()), words.data(), out);
    listen_written_as = parser.WrittenAs("listen");
    return outcome;
  }
};

// Sets a variable for one test.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Environment() { ::unsetenv(name_); }

 private:
  const char* name_;
};

std::string ConfigFile(const os::TempDir& dir, std::string_view text) {
  REQUIRE(os::WriteFileAtomic(dir.File("d.toml"), text).ok());
  return dir.File("d.toml");
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("Without any source the defaults stand") {
  Daemon daemon;
  REQUIRE(*daemon.Parse({}) == ParseOutcome::kRun);
  CHECK(daemon.listen == "127.0.0.1:7700");
  CHECK(daemon.follow);
}

TEST_CASE("Flags win over environment, environment over file, file over defaults") {
  const os::TempDir dir;
  const std::string file = ConfigFile(dir, "listen = 'file:1'\nblock_bytes = 1\nfollow = false\n");
  const Environment block_bytes("TEST_DAEMON_BLOCK_BYTES", "2KiB");
  const Environment listen("TEST_DAEMON_LISTEN", "env:1");
  Daemon daemon;
  REQUIRE(*daemon.Parse({"--config", file.c_str(), "--listen", "flag:1"}) == ParseOutcome::kRun);
  CHECK(daemon.listen == "flag:1");
  CHECK(daemon.block_bytes == 2048);
  CHECK_FALSE(daemon.follow);
}

TEST_CASE("Print-config shows every value with its origin, as a file that can be read back") {
  const os::TempDir dir;
  const std::string file = ConfigFile(dir, "# ours\nblock_bytes = \"1MiB\"\n");
  const Environment config("TEST_DAEMON_CONFIG", file.c_str());
  const Environment follow("TEST_DAEMON_FOLLOW", "off");
  Daemon daemon;
  REQUIRE(*daemon.Parse({"--print-config", "--model", "a", "--model=b \"c\"", "--insecure"}) == ParseOutcome::kExit);
  const std::string printed = daemon.out.str();
  CHECK(printed ==
        "listen = \"127.0.0.1:7700\"  # default\n"
        "block_bytes = 1048576  # file " +
            file +
            ":2\n"
            "follow = false  # environment TEST_DAEMON_FOLLOW\n"
            "insecure = true  # flag --insecure\n"
            "model = [\"a\", \"b \\\"c\\\"\"]  # flag --model\n"
            "engine = []  # default\n");
  Daemon again;
  REQUIRE(again.Parse({"--config", ConfigFile(dir, printed).c_str()}).ok());
  CHECK(again.models == daemon.models);
  CHECK(again.insecure);
}

TEST_CASE("An option is named in errors as it was written last") {
  const os::TempDir dir;
  Daemon daemon;
  REQUIRE(daemon.Parse({}).ok());
  CHECK(daemon.listen_written_as == "--listen");
  const std::string file = ConfigFile(dir, "block_bytes = 1\nlisten = 5\n");
  REQUIRE(daemon.Parse({"--config", file.c_str()}).ok());
  CHECK(daemon.listen_written_as == file + ":2: key 'listen'");
  const Environment listen("TEST_DAEMON_LISTEN", "bad");
  REQUIRE(daemon.Parse({"--config", file.c_str()}).ok());
  CHECK(daemon.listen_written_as == "environment variable TEST_DAEMON_LISTEN");
  REQUIRE(daemon.Parse({"--config", file.c_str(), "--listen", "x"}).ok());
  CHECK(daemon.listen_written_as == "--listen");
}

TEST_CASE("A boolean is a bare flag or has a value") {
  Daemon daemon;
  REQUIRE(daemon.Parse({"--follow", "false", "--insecure"}).ok());
  CHECK_FALSE(daemon.follow);
  CHECK(daemon.insecure);
  Daemon equals;
  REQUIRE(equals.Parse({"--follow=no", "--insecure=yes"}).ok());
  CHECK_FALSE(equals.follow);
  CHECK(equals.insecure);
}

TEST_CASE("The next flag is never taken for an empty value") {
  Daemon daemon;
  CHECK_THAT(daemon.Parse({"--listen=", "--insecure"}).status(),
             FailsWith(ErrorCode::kUsage, "--listen= has no value"));
  REQUIRE(daemon.Parse({"--listen", "", "--insecure"}).ok());
  CHECK(daemon.listen.empty());
  CHECK(daemon.insecure);
}

TEST_CASE("Tables come from an array of tables of the file, or as texts") {
  const os::TempDir dir;
  const std::string file = ConfigFile(dir,
                                      "[[engine]]\nname = \"a\"\nlimit = \"2KiB\"\n"
                                      "[[engine]]\nname = \"b\"\nlimit = \"x\"\nflavour = 1\n");
  Daemon daemon;
  REQUIRE(daemon.Parse({"--config", file.c_str()}).ok());
  REQUIRE(daemon.engines.size() == 2);
  std::string name;
  uint64_t limit = 0;
  ConfigParser keys({});
  keys.Add("name", &name, "");
  keys.Add("limit", &limit, "", 1, 2048);
  REQUIRE(keys.ParseTable(daemon.engines[0]).ok());
  CHECK(name == "a");
  CHECK(limit == 2048);
  const auto refused = [&](const std::string& key, const std::string& value) {
    ConfigTable table("d.toml:4: key 'engine'");
    table.Put(key, value);
    return keys.ParseTable(table);
  };
  CHECK_THAT(keys.ParseTable(daemon.engines[1]),
             FailsWith(ErrorCode::kConfig, file + ":4: key 'engine': unknown key 'flavour'"));
  CHECK_THAT(refused("limit", "x"), FailsWith(ErrorCode::kConfig, ":4: key 'engine': key 'limit': 'x' is not"));
  CHECK_THAT(refused("limit", "2049"), FailsWith(ErrorCode::kConfig, ": limit is 2049; it must be 1 to 2048"));
  Daemon flags;
  REQUIRE(flags.Parse({"--config", file.c_str(), "--engine", "c", "--engine=d e"}).ok());
  REQUIRE(flags.engines.size() == 2);
  CHECK(flags.engines[1].text() == "d e");
  Daemon printing;
  REQUIRE(*printing.Parse({"--config", file.c_str(), "--print-config"}) == ParseOutcome::kExit);
  Daemon again;
  REQUIRE(again.Parse({"--config", ConfigFile(dir, printing.out.str()).c_str()}).ok());
  CHECK(again.engines.size() == 2);
  Daemon wrong;
  CHECK_THAT(wrong.Parse({"--config", ConfigFile(dir, "[[model]]\nname = \"a\"\n").c_str()}),
             FailsWith(ErrorCode::kConfig, "takes no table"));
  CHECK_THAT(wrong.Parse({"--config", ConfigFile(dir, "[[engine]]\nname = [\"a\"]\n").c_str()}),
             FailsWith(ErrorCode::kConfig, "key 'name' must be a text"));
}

TEST_CASE("Lists come from repeated flags, commas or an array") {
  const os::TempDir dir;
  Daemon daemon;
  REQUIRE(daemon.Parse({"--config", ConfigFile(dir, "model = ['x', 'y']").c_str()}).ok());
  CHECK(daemon.models == std::vector<std::string>{"x", "y"});
  const Environment models("TEST_DAEMON_MODEL", "m,n,o");
  REQUIRE(daemon.Parse({}).ok());
  CHECK(daemon.models == std::vector<std::string>{"m", "n", "o"});
  REQUIRE(daemon.Parse({"--model", "p", "--model", "q"}).ok());
  CHECK(daemon.models == std::vector<std::string>{"p", "q"});
}

TEST_CASE("A wrong command line is a usage error that names the flag") {
  for (const std::vector<const char*>& words : std::vector<std::vector<const char*>>{
           {"--lisen", "x"},
           {"--listen"},
           {"--block-bytes", "many"},
           {"--block-bytes", "-1"},
           {"--follow", "maybe"},
           {"--listen", "a", "--listen", "b"},
           {"stray"},
       }) {
    Daemon daemon;
    const Status status = daemon.Parse(words).status();
    CHECK_THAT(status, FailsWith(ErrorCode::kUsage, words[0]));
  }
}

TEST_CASE("A wrong file is a configuration error that names file, line and key") {
  const os::TempDir dir;
  const auto error_of = [&](std::string_view text) {
    Daemon daemon;
    return daemon.Parse({"--config", ConfigFile(dir, text).c_str()}).status();
  };
  CHECK_THAT(error_of("follow = true\nlisen = 'x'\n"), FailsWith(ErrorCode::kConfig, "d.toml:2: unknown key 'lisen'"));
  CHECK_THAT(error_of("\n\nblock_bytes = 'many'\n"),
             FailsWith(ErrorCode::kConfig, "d.toml:3: key 'block_bytes': 'many'"));
  CHECK_THAT(error_of("block_bytes = 1.5\n"), FailsWith(ErrorCode::kConfig, "d.toml:1: key 'block_bytes'"));
  CHECK_THAT(error_of("model = 'one'\n"), FailsWith(ErrorCode::kConfig, "takes an array"));
  CHECK_THAT(error_of("listen = ['one']\n"), FailsWith(ErrorCode::kConfig, "takes one value"));
  CHECK_THAT(error_of("[listen]\nx = 1\n"), FailsWith(ErrorCode::kConfig, "d.toml:1: key 'listen'"));
  CHECK_THAT(error_of("follow = true\nlisten = \n"), FailsWith(ErrorCode::kConfig, "d.toml:2: "));
  Daemon daemon;
  const Status missing = daemon.Parse({"--config", "/none.toml"}).status();
  CHECK_THAT(missing, FailsWith(ErrorCode::kConfig, "/none.toml"));
}

TEST_CASE("A number beyond those of TOML is printed as a text that is read again") {
  const os::TempDir dir;
  Daemon daemon;
  REQUIRE(daemon.Parse({"--print-config", "--block-bytes=18446744073709551615"}).ok());
  Daemon again;
  REQUIRE(again.Parse({"--config", ConfigFile(dir, daemon.out.str()).c_str()}).ok());
  CHECK(again.block_bytes == UINT64_MAX);
}

TEST_CASE("What a file says does not spoil the message that refuses it") {
  const os::TempDir dir;
  for (const char* text : {"\"a\\u001b\" = 1\n", "\"a\\u001b\" = 1.5\n", "block_bytes = \"\\u001b\"\n",
                           "a = \"\xff\"\n", "\x1b = 1\n", "follow = fals\006e\n", "listen \xc9\xb4 = 1\n"}) {
    const Status status = Daemon().Parse({"--config", ConfigFile(dir, text).c_str()}).status();
    INFO(status.ToString());
    CHECK_THAT(status, FailsWith(ErrorCode::kConfig, "d.toml"));
    CHECK(CleanText(status.message()) == status.message());
  }
}

TEST_CASE("A wrong variable is a configuration error that names it, an unknown one is not ours") {
  const Environment service("TEST_DAEMON_SERVICE_HOST", "10.0.0.1");
  Daemon daemon;
  CHECK(daemon.Parse({}).ok());
  const Environment bytes("TEST_DAEMON_BLOCK_BYTES", "1 MiB");
  const Status status = daemon.Parse({}).status();
  CHECK_THAT(status, FailsWith(ErrorCode::kConfig, "TEST_DAEMON_BLOCK_BYTES"));
}

TEST_CASE("Help and version are answered whatever else is given") {
  const Environment bytes("TEST_DAEMON_BLOCK_BYTES", "nonsense");
  Daemon help;
  REQUIRE(*help.Parse({"--help"}) == ParseOutcome::kExit);
  CHECK(Has(help.out.str(), "--block-bytes"));
  CHECK(Has(help.out.str(), "[262144]"));
  Daemon version;
  REQUIRE(*version.Parse({"--version"}) == ParseOutcome::kExit);
  CHECK(version.out.str() == "test_daemon 1.2.3\n");
}

TEST_CASE("Times have a unit, and are printed in the largest that they are whole in") {
  using std::chrono::milliseconds;
  const std::pair<const char*, int64_t> times[] = {
      {"0", 0}, {"1ms", 1}, {"1500ms", 1500}, {"90s", 90'000}, {"2m", 120'000}, {"1h", 3'600'000}, {"7d", 604'800'000}};
  for (const auto& [text, count] : times) {
    CHECK(*ParseTime(text) == milliseconds(count));
    CHECK(TimeText(milliseconds(count)) == text);
  }
  CHECK(TimeText(milliseconds(60'000)) == "1m");
  for (const char* text : {"", "30", "s", "1.5s", "-1s", "1 s", "1S", "1h30m"}) {
    CHECK_THAT(ParseTime(text), FailsWith(ErrorCode::kBadData, "is not a time, such as 250ms, 30s, 15m, 2h or 7d"));
  }
  for (const char* text : {"18446744073709551616ms", "100001d"}) {
    CHECK_THAT(ParseTime(text), FailsWith(ErrorCode::kBadData, "is not at most 100000d"));
  }
}

TEST_CASE("A time has a unit, and a hidden option is printed but not in the help") {
  const auto parse = [](std::vector<const char*> words, std::chrono::milliseconds& time, std::string& help) {
    ConfigParser parser({.program = "test_daemon", .about = "", .version = ""});
    parser.Add("drain-timeout", &time, "time to end in");
    uint64_t block = 1;
    parser.Add("block-bytes", &block, "unit of diffing");
    parser.Hide("block-bytes");
    words.insert(words.begin(), "test_daemon");
    std::ostringstream out;
    Result<ParseOutcome> outcome = parser.Parse(static_cast<int>(words.size()), words.data(), out);
    help = out.str();
    return outcome;
  };
  std::chrono::milliseconds time{10'000};
  std::string out;
  REQUIRE(parse({"--drain-timeout", "2m"}, time, out).ok());
  CHECK(time == std::chrono::minutes(2));
  REQUIRE(parse({"--print-config"}, time, out).ok());
  CHECK(Has(out, "drain_timeout = \"2m\"  # default"));
  CHECK(Has(out, "block_bytes = 1"));
  REQUIRE(parse({"--help"}, time, out).ok());
  CHECK(Has(out, "--drain-timeout TIME"));
  CHECK_FALSE(Has(out, "--block-bytes"));
  CHECK_THAT(parse({"--drain-timeout", "30"}, time, out),
             FailsWith(ErrorCode::kUsage, "--drain-timeout: '30' is not a time"));
}

TEST_CASE("A number or a time outside of its range is refused where it was written") {
  const auto parse = [](std::vector<const char*> words) {
    uint64_t lanes = 4;
    std::chrono::milliseconds grace{10};
    ConfigParser parser({.program = "test_daemon", .about = "", .version = ""});
    parser.Add("lanes", &lanes, "", 1, 64);
    parser.Add("grace", &grace, "", {}, std::chrono::minutes(5));
    words.insert(words.begin(), "test_daemon");
    std::ostringstream out;
    return parser.Parse(static_cast<int>(words.size()), words.data(), out);
  };
  CHECK(parse({"--lanes=64", "--grace=5m"}).ok());
  CHECK_THAT(parse({"--lanes=0"}), FailsWith(ErrorCode::kConfig, "--lanes is 0; it must be 1 to 64"));
  const Environment grace("TEST_DAEMON_GRACE", "301s");
  CHECK_THAT(parse({}),
             FailsWith(ErrorCode::kConfig, "environment variable TEST_DAEMON_GRACE is 301s; it must be 0 to 5m"));
}

TEST_CASE("Numbers stop at their limits") {
  CHECK(*ParseUnsigned("18446744073709551615") == UINT64_MAX);
  CHECK_THAT(ParseUnsigned("18446744073709551616"),
             FailsWith(ErrorCode::kBadData, "'18446744073709551616' is not below 2^64"));
  CHECK_THAT(ParseUnsigned("17179869184GiB"), FailsWith(ErrorCode::kBadData, "'17179869184GiB' is not below 2^64"));
  CHECK_THAT(ParseUnsigned(""), FailsWith(ErrorCode::kBadData, "'' is not a whole number"));
  CHECK_THAT(ParseUnsigned("1k"), FailsWith(ErrorCode::kBadData, "'1k' is not a whole number"));
  CHECK(*ParseUnsigned("3T") == 3'000'000'000'000);
  CHECK_THAT(ParseUnsigned("-1"), FailsWith(ErrorCode::kBadData, "'-1' is not a whole number"));
}

}  // namespace
}  // namespace lockstep::config
