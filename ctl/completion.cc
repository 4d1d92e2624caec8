#include "ctl/completion.h"

#include <CLI/CLI.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "common/base/text.h"

namespace lockstep::ctl {
namespace {

// A command, by the words that lead to it ("log verify"; empty: the tool itself), and what may follow there.
struct CommandPath {
  std::string words;
  std::vector<const CLI::App*> commands;
  std::vector<const CLI::Option*> options;  // with those of the tool, which may stand anywhere
};

void AddPaths(const CLI::App& app, const std::string& words, const std::vector<const CLI::Option*>& global,
              std::vector<CommandPath>& paths) {
  CommandPath path{.words = words, .commands = {}, .options = global};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_lnames().empty()) path.options.push_back(option);
  }
  for (const CLI::App* command : app.get_subcommands({})) path.commands.push_back(command);
  paths.push_back(path);
  for (const CLI::App* command : path.commands) {
    AddPaths(*command, Cat(words, words.empty() ? "" : " ", command->get_name()), words.empty() ? path.options : global,
             paths);
  }
}

// Of its value, files are offered.
bool TakesPath(const CLI::Option& option) {
  return option.get_type_name() == "FILE" || option.get_type_name() == "DIR";
}

std::string Bash(const std::vector<CommandPath>& paths) {
  std::string known;
  std::string follow;
  std::set<std::string> file_options;
  for (const CommandPath& path : paths) {
    if (!path.words.empty()) known += Cat(known.empty() ? "" : "|", "\"", path.words, "\"");
    follow += Cat("    \"", path.words, "\") words=\"");
    for (const CLI::App* command : path.commands) follow += Cat(command->get_name(), " ");
    for (const CLI::Option* option : path.options) {
      for (const std::string& name : option->get_lnames()) {
        follow += Cat("--", name, " ");
        if (TakesPath(*option)) file_options.insert("--" + name);
      }
    }
    follow += "\";;\n";
  }
  std::string files;
  for (const std::string& option : file_options) files += Cat(files.empty() ? "" : "|", option);
  return Cat("_lockstepctl() {\n", "  local current=\"${COMP_WORDS[COMP_CWORD]}\" path= word words=\n",
             "  case \"${COMP_WORDS[COMP_CWORD-1]}\" in\n", "    ", files,
             ") COMPREPLY=($(compgen -f -- \"$current\")); return;;\n  esac\n",
             "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n", "    case \"${path:+$path }$word\" in ", known,
             ") path=\"${path:+$path }$word\";; esac\n  done\n", "  case \"$path\" in\n", follow, "  esac\n",
             "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n}\ncomplete -F _lockstepctl lockstepctl\n");
}

// In single quotes.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("\\'") : std::string(1, c);
  return quoted + "'";
}

std::string Fish(const std::vector<CommandPath>& paths) {
  std::string script = "complete -c lockstepctl -f\n";
  for (const CommandPath& path : paths) {
    std::string condition;
    std::istringstream words(path.words);
    for (std::string word; words >> word;) {
      condition += Cat(condition.empty() ? "" : "; and ", "__fish_seen_subcommand_from ", word);
    }
    std::string none =
        condition.empty() ? "not __fish_seen_subcommand_from" : condition + "; and not __fish_seen_subcommand_from";
    for (const CLI::App* command : path.commands) none += " " + command->get_name();
    for (const CLI::App* command : path.commands) {
      script += Cat("complete -c lockstepctl -n ", Quoted(none), " -a ", command->get_name(), " -d ",
                    Quoted(command->get_description()), "\n");
    }
    for (const CLI::Option* option : path.options) {
      for (const std::string& name : option->get_lnames()) {
        script += Cat("complete -c lockstepctl", condition.empty() ? "" : " -n " + Quoted(condition), " -l ", name,
                      option->get_expected_max() == 0 ? "" : " -r", TakesPath(*option) ? " -F" : "", " -d ",
                      Quoted(option->get_description()), "\n");
      }
    }
  }
  return script;
}

}  // namespace

Result<std::string> CompletionScript(const CLI::App& app, const std::string& shell) {
  std::vector<CommandPath> paths;
  AddPaths(app, "", {}, paths);
  if (shell == "bash") return Bash(paths);
  if (shell == "zsh") return Cat("autoload -U +X bashcompinit && bashcompinit\n", Bash(paths));
  if (shell == "fish") return Fish(paths);
  return Status(ErrorCode::kUsage, Cat("completion: the shells are bash, zsh and fish, not ", CleanText(shell, 40)));
}

}  // namespace lockstep::ctl
