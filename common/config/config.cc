#include "common/config/config.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>

#include "common/base/text.h"
#include "common/config/config_file.h"
#include "common/config/config_values.h"
#include "common/config/man_page.h"

namespace lockstep::config {

// CLI11's view of the options: it reads words and makes the help, what they mean is decided here.
class ConfigParser::CommandLine {
 public:
  explicit CommandLine(ConfigParser& parser) : parser_(parser), app_(parser.program_.about, parser.program_.program) {
    app_.add_option("--config", config_, "TOML file with any of these options, '-' written as '_'")->type_name("FILE");
    app_.add_flag("--print-config", print_config_, "Print every value and where it comes from, and exit");
    app_.add_flag("--man", man_, "Print this as a manual page, for man -l -, and exit");
    app_.set_version_flag("--version", parser.program_.version, "Print versions and exit");
    app_.get_formatter()->column_width(36);
    for (Option& option : parser.options_) AddOption(option);
  }

  // Nothing to return: parsed. kExit: help or version were asked for and printed.
  Result<ParseOutcome> Parse(int argc, const char* const* argv, std::ostream& out) {
    try {
      app_.parse(argc, argv);
      if (!man_) return ParseOutcome::kRun;
      out << ManPage(app_, parser_.Precedence());
      return ParseOutcome::kExit;
    } catch (const CLI::Success& success) {
      app_.exit(success, out, out);
      return ParseOutcome::kExit;
    } catch (const CLI::ParseError& error) {
      return Status(ErrorCode::kUsage, Cat(WithoutPasswords(error.what()), " (see --help)"));
    }
  }

  bool Given(const Option& option) const { return app_.get_option("--" + option.name)->count() > 0; }
  const std::string& config() const { return config_; }
  bool print_config() const { return print_config_; }

 private:
  void AddOption(Option& option) {
    CLI::Option* const added =
        app_.add_option("--" + option.name, option.flag_values, Cat(option.help, " [", option.print(), "]"));
    added->allow_extra_args(false);
    if (option.kind == Kind::kText) added->expected(1)->type_name("TEXT");
    if (option.kind == Kind::kNumber) added->expected(1)->type_name("N");
    if (option.kind == Kind::kTime) added->expected(1)->type_name("TIME");
    if (option.hidden) added->group("");
    if (option.kind == Kind::kBool) added->expected(0, 1)->type_name("BOOL");
    const bool many = TakesMany(option.kind);
    if (many) added->expected(-1)->type_name("TEXT ...");
    if (!many) added->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  }

  const ConfigParser& parser_;
  CLI::App app_;
  std::string config_;
  bool print_config_ = false;
  bool man_ = false;
};

namespace {

// A list of words to a target that takes one.
template <typename T, typename ParseFn>
std::function<Status(const std::vector<std::string>&)> SetOne(T* target, ParseFn parse) {
  return [target, parse](const std::vector<std::string>& words) -> Status {
    if (words.size() != 1) return {ErrorCode::kBadData, Cat("takes one value, not ", words.size())};
    auto value = parse(words.front());
    if (!value.ok()) return value.status();
    *target = *std::move(value);
    return OkStatus();
  };
}

// Says why the value of `target` is out of range; empty when it is not.
template <typename T, typename TextFn>
std::function<std::string()> OutOfRange(const T* target, T least, T most, TextFn text) {
  return [=] {
    if (*target >= least && *target <= most) return std::string();
    return Cat("is ", text(*target), "; it must be ", text(least), " to ", text(most));
  };
}

// Behind "=" CLI11 passes over an empty value, and takes the next word in its place: of "--listen= --model a" it is
// "--model".
Status CheckValues(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.substr(0, 2) != "--" || word.find('=') != word.size() - 1) continue;
    const std::string_view flag = word.substr(0, word.size() - 1);
    return {ErrorCode::kUsage, Cat(word, " has no value; leave it out, or write ", flag, " \"\" for an empty text")};
  }
  return OkStatus();
}

}  // namespace

void ConfigParser::Add(const std::string& name, std::string* target, const std::string& help) {
  const auto keep = [](const std::string& text) { return Result<std::string>(text); };
  options_.push_back({name, help, Kind::kText, SetOne(target, keep), [target] { return QuoteToml(*target); }});
}

void ConfigParser::Add(const std::string& name, uint64_t* target, const std::string& help, uint64_t least,
                       uint64_t most) {
  options_.push_back({name, help, Kind::kNumber, SetOne(target, ParseUnsigned),
                      [target] { return NumberToml(*target); },
                      OutOfRange(target, least, most, [](uint64_t number) { return Cat(number); })});
}

void ConfigParser::Add(const std::string& name, std::chrono::milliseconds* target, const std::string& help,
                       std::chrono::milliseconds least, std::chrono::milliseconds most) {
  options_.push_back({name, help, Kind::kTime, SetOne(target, ParseTime),
                      [target] { return QuoteToml(TimeText(*target)); }, OutOfRange(target, least, most, TimeText)});
}

void ConfigParser::Hide(const std::string& name) {
  std::ranges::find(options_, name, &Option::name)->hidden = true;
}

void ConfigParser::Add(const std::string& name, bool* target, const std::string& help) {
  options_.push_back(
      {name, help, Kind::kBool, SetOne(target, ParseBool), [target] { return *target ? "true" : "false"; }});
}

void ConfigParser::Add(const std::string& name, std::vector<std::string>* target, const std::string& help) {
  const auto set = [target](const std::vector<std::string>& words) {
    *target = words;
    return OkStatus();
  };
  options_.push_back({name, help, Kind::kList, set, [target] { return QuoteToml(*target); }});
}

void ConfigParser::Add(const std::string& name, std::vector<ConfigTable>* target, const std::string& help) {
  const auto print = [target] {
    std::string items;
    for (const ConfigTable& table : *target) items += Cat(items.empty() ? "" : ", ", table.Print());
    return Cat("[", items, "]");
  };
  options_.push_back({name, help, Kind::kTables, {}, print, nullptr, target});
}

// The texts of a flag or a variable, in place of what was there before.
Status ConfigParser::Set(Option& option, const std::vector<std::string>& words) {
  if (option.kind != Kind::kTables) return option.set(words);
  option.tables->clear();
  const std::string where = option.written_as.empty() ? Cat("--", option.name) : option.written_as;
  for (const std::string& word : words)
    option.tables->emplace_back(Cat(where, " ", CleanText(WithoutPasswords(word), 200)), word);
  return OkStatus();
}

// `option.written_as` says where that is.
Status ConfigParser::SetFromFile(Option& option, const FileEntry& entry) {
  if (option.kind == Kind::kTables && entry.is_table) {
    ConfigTable table(option.written_as);
    for (const FileEntry& inner : entry.table) table.Put(inner.key, inner.words.front());
    option.tables->push_back(std::move(table));
    return OkStatus();
  }
  if (entry.is_table) return {ErrorCode::kBadData, "takes no table"};
  const bool many = TakesMany(option.kind);
  if (many == entry.is_array) return Set(option, entry.words);
  return {ErrorCode::kBadData, many ? "takes an array of texts" : "takes one value"};
}

Result<ParseOutcome> ConfigParser::Parse(int argc, const char* const* argv, std::ostream& out) {
  LS_RETURN_IF_ERROR(CheckValues(argc, argv));
  CommandLine line(*this);
  LS_ASSIGN_OR_RETURN(const ParseOutcome outcome, line.Parse(argc, argv, out));
  if (outcome == ParseOutcome::kExit) return outcome;
  std::string path = line.config();
  if (const char* variable = std::getenv(Variable("config").c_str()); path.empty() && variable != nullptr) {
    path = variable;
  }
  // The weakest first: each source overwrites what came before.
  if (!path.empty()) LS_RETURN_IF_ERROR(ApplyFile(path));
  LS_RETURN_IF_ERROR(ApplyEnvironment());
  LS_RETURN_IF_ERROR(ApplyFlags(line));
  if (line.print_config()) {
    PrintConfig(out);
    return ParseOutcome::kExit;
  }
  LS_RETURN_IF_ERROR(CheckRanges([this](const Option& option) { return WrittenAs(option.name); }));
  return ParseOutcome::kRun;
}

Status ConfigParser::CheckRanges(const std::function<std::string(const Option&)>& written_as) const {
  for (const Option& option : options_) {
    const std::string why = option.refuse ? option.refuse() : "";
    if (!why.empty()) return {ErrorCode::kConfig, Cat(written_as(option), " ", why)};
  }
  return OkStatus();
}

Status ConfigParser::ParseTable(const ConfigTable& table) {
  for (const auto& [key, value] : table.values()) {
    const auto option = std::ranges::find_if(options_, [&, &key = key](const Option& o) { return Key(o) == key; });
    if (option == options_.end())
      return {ErrorCode::kConfig, Cat(table.written_as(), ": unknown key '", CleanText(key, 200), "'")};
    const Status status = option->set({value});
    if (!status.ok()) return {ErrorCode::kConfig, Cat(table.written_as(), ": key '", key, "': ", status.message())};
  }
  return CheckRanges([&](const Option& option) { return Cat(table.written_as(), ": ", Key(option)); });
}

std::string ConfigParser::WrittenAs(std::string_view name) const {
  const auto option = std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.name == name; });
  return option->written_as.empty() ? Cat("--", name) : option->written_as;
}

std::string ConfigParser::Key(const Option& option) const {
  std::string key = option.name;
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

std::string ConfigParser::Variable(std::string_view name) const {
  std::string variable = Cat(program_.program, "_", name);
  for (char& c : variable) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return variable;
}

std::string ConfigParser::Precedence() const {
  return Cat(
      "A flag comes before an environment variable, that before the TOML file, and that before the default, which ",
      "stands in brackets. --log-level is ", Variable("log-level"), " in the environment, and log_level in the ",
      "file. Sizes may be written as 2GiB, times as 30s.");
}

Status ConfigParser::ApplyFile(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::vector<FileEntry> entries, ReadConfigFile(path));
  for (const FileEntry& entry : entries) {
    const auto option =
        std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return Key(o) == entry.key; });
    if (option == options_.end()) {
      return {ErrorCode::kConfig,
              Cat(path, ":", entry.line, ": unknown key '", CleanText(entry.key, 200), "' (--help lists all)")};
    }
    option->written_as = Cat(path, ":", entry.line, ": key '", entry.key, "'");
    const Status status = SetFromFile(*option, entry);
    if (!status.ok()) return {ErrorCode::kConfig, Cat(option->written_as, ": ", status.message())};
    option->origin = Cat("file ", path, ":", entry.line);
  }
  return OkStatus();
}

Status ConfigParser::ApplyEnvironment() {
  for (Option& option : options_) {
    const std::string variable = Variable(option.name);
    const char* text = std::getenv(variable.c_str());
    if (text == nullptr) continue;
    option.written_as = Cat("environment variable ", variable);
    const Status status = Set(option, TakesMany(option.kind) ? SplitCommas(text) : std::vector<std::string>{text});
    if (!status.ok()) return {ErrorCode::kConfig, Cat(option.written_as, ": ", status.message())};
    option.origin = Cat("environment ", variable);
  }
  return OkStatus();
}

Status ConfigParser::ApplyFlags(const CommandLine& line) {
  for (Option& option : options_) {
    if (!line.Given(option)) continue;
    const bool bare = option.kind == Kind::kBool && option.flag_values == std::vector<std::string>{""};
    if (bare) option.flag_values = {"true"};
    option.written_as.clear();
    const Status status = Set(option, option.flag_values);
    if (!status.ok()) return {ErrorCode::kUsage, Cat("--", option.name, ": ", status.message())};
    option.origin = Cat("flag --", option.name);
  }
  return OkStatus();
}

void ConfigParser::PrintConfig(std::ostream& out) const {
  for (const Option& option : options_) {
    out << Key(option) << " = " << option.print() << "  # " << option.origin << "\n";
  }
}

}  // namespace lockstep::config
