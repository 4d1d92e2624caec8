// A daemon's configuration: flags > environment > TOML file > defaults, each value with its origin.
//
//   std::string listen = "127.0.0.1:7700";
//   ConfigParser parser({.program = "trainer_agent", .about = "...", .version = "..."});
//   parser.Add("listen", &listen, "gRPC address, HOST:PORT");
//   Result<ParseOutcome> outcome = parser.Parse(argc, argv);
//
// The option "block-bytes" of trainer_agent is --block-bytes on the command line, TRAINER_AGENT_BLOCK_BYTES in the
// environment and block_bytes in the file. The file itself is named by --config or TRAINER_AGENT_CONFIG. --help, --man,
// --version and --print-config are there without being added. Environment variables with the prefix but no option are
// no error: Kubernetes sets such.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/config/config_table.h"

namespace lockstep::config {

struct FileEntry;

// As options are written, in the largest unit that it is whole in: "90s", "2h".
std::string TimeText(std::chrono::milliseconds time);

enum class ParseOutcome {
  kRun,   // start with the values
  kExit,  // --help, --man, --version or --print-config: answered, exit with 0
};

// Used by one thread. The targets of Add() outlive Parse() and hold the defaults until then.
class ConfigParser {
 public:
  struct Program {
    std::string program;  // "trainer_agent"; its upper case is the prefix of environment variables
    std::string about;    // a line for --help
    std::string version;  // what --version prints
  };
  explicit ConfigParser(Program program) : program_(std::move(program)) {}

  // `name` is lower-case with dashes. Numbers may carry a decimal (K, M, G, T) or binary (KiB, MiB, GiB, TiB) suffix. A
  // bool given as a bare flag is true. A list is a repeated flag, a comma-separated variable, or an array in the file.
  void Add(const std::string& name, std::string* target, const std::string& help);
  // Wherever a number or a time comes from, Parse() refuses one outside of [least, most].
  void Add(const std::string& name, uint64_t* target, const std::string& help, uint64_t least = 0,
           uint64_t most = UINT64_MAX);
  // "250ms", "30s", "15m", "2h", "7d"; 0 needs no unit.
  void Add(const std::string& name, std::chrono::milliseconds* target, const std::string& help,
           std::chrono::milliseconds least = {}, std::chrono::milliseconds most = std::chrono::milliseconds::max());
  void Add(const std::string& name, bool* target, const std::string& help);
  void Add(const std::string& name, std::vector<std::string>* target, const std::string& help);
  // As a list of texts; in the file the option is an array of tables, [[name]], or of texts.
  void Add(const std::string& name, std::vector<ConfigTable>* target, const std::string& help);

  // --help leaves the option out: one that is rarely right to set. REQUIRES that it was added.
  void Hide(const std::string& name);

  // kUsage: the command line is wrong. kConfig: the file cannot be read, or the file or environment has an unknown key
  // or a bad value; file, line and key are named. The targets are then partly set and not to be used.
  Result<ParseOutcome> Parse(int argc, const char* const* argv, std::ostream& out = std::cout);

  // Sets the targets from a table, whose keys are the options' names with '_' for '-'. kConfig names the table and an
  // unknown key or a bad value.
  Status ParseTable(const ConfigTable& table);

  // The option `name` as it was written where it was set, for errors about its value: "--block-bytes", "environment
  // variable TRAINER_AGENT_BLOCK_BYTES", "agent.toml:3: key 'block_bytes'"; the flag where it was not set. REQUIRES
  // Parse() before, and an option of that name.
  std::string WrittenAs(std::string_view name) const;

 private:
  enum class Kind { kText, kNumber, kTime, kBool, kList, kTables };
  static bool TakesMany(Kind kind) { return kind == Kind::kList || kind == Kind::kTables; }
  struct Option {
    std::string name;
    std::string help;
    Kind kind;
    std::function<Status(const std::vector<std::string>&)> set;
    std::function<std::string()> print;             // the present value as a TOML literal
    std::function<std::string()> refuse = nullptr;  // "is 0; it must be 1 to 9", or empty; null: any value may be
    std::vector<ConfigTable>* tables = nullptr;     // of kTables, in place of `set`
    bool hidden = false;
    std::string origin = "default";
    std::string written_as;  // empty: as a flag, or not at all
    std::vector<std::string> flag_values;
  };
  class CommandLine;

  std::string Key(const Option& option) const;        // "block_bytes"
  std::string Variable(std::string_view name) const;  // "TRAINER_AGENT_BLOCK_BYTES"
  static Status Set(Option& option, const std::vector<std::string>& words);
  static Status SetFromFile(Option& option, const FileEntry& entry);
  Status ApplyFile(const std::string& path);
  Status ApplyEnvironment();
  Status ApplyFlags(const CommandLine& line);
  Status CheckRanges(const std::function<std::string(const Option&)>& written_as) const;
  void PrintConfig(std::ostream& out) const;
  std::string Precedence() const;  // which of the places where an option may stand counts, for people

  Program program_;
  std::vector<Option> options_;
};

}  // namespace lockstep::config
