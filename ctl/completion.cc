#include "ctl/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "common/base/text.h"

namespace lockstep::ctl {
namespace {

// A command, by the words that lead to it ("log verify"; empty: the tool itself), and what may follow there.
struct Place {
  std::string path;
  std::vector<const CLI::App*> commands;
  std::vector<const CLI::Option*> options;  // with those of the tool, which may stand anywhere
};

void AddPlaces(const CLI::App& app, const std::string& path, const std::vector<const CLI::Option*>& global,
               std::vector<Place>& places) {
  Place place{.path = path, .commands = {}, .options = global};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_lnames().empty()) place.options.push_back(option);
  }
  for (const CLI::App* command : app.get_subcommands({})) place.commands.push_back(command);
  const std::vector<const CLI::Option*> inherited = path.empty() ? place.options : global;
  const std::vector<const CLI::App*> below = place.commands;
  places.push_back(std::move(place));
  for (const CLI::App* command : below) {
    AddPlaces(*command, Cat(path, path.empty() ? "" : " ", command->get_name()), inherited, places);
  }
}

std::vector<std::string> Words(const CLI::Option& option) {
  std::vector<std::string> words;
  for (const std::string& name : option.get_lnames()) words.push_back("--" + name);
  return words;
}

// Of its value, files are offered.
bool TakesPath(const CLI::Option& option) {
  constexpr std::array kPaths = {"FILE", "DIR"};
  return std::ranges::find(kPaths, std::string_view(option.get_type_name())) != kPaths.end();
}

std::string Bash(const std::vector<Place>& places) {
  std::string paths;
  std::string words;
  std::vector<std::string> files;
  for (const Place& place : places) {
    if (!place.path.empty()) paths += Cat(paths.empty() ? "" : "|", "\"", place.path, "\"");
    words += Cat("    \"", place.path, "\") words=\"");
    for (const CLI::App* command : place.commands) words += Cat(command->get_name(), " ");
    for (const CLI::Option* option : place.options) {
      for (const std::string& word : Words(*option)) {
        words += Cat(word, " ");
        if (TakesPath(*option)) files.push_back(word);
      }
    }
    words += "\";;\n";
  }
  std::ranges::sort(files);
  files.erase(std::unique(files.begin(), files.end()), files.end());
  std::string file_options;
  for (const std::string& file : files) file_options += Cat(file_options.empty() ? "" : "|", file);
  return Cat("_lockstepctl() {\n", "  local current=\"${COMP_WORDS[COMP_CWORD]}\" path= word words=\n",
             "  case \"${COMP_WORDS[COMP_CWORD-1]}\" in\n", "    ", file_options,
             ") COMPREPLY=($(compgen -f -- \"$current\")); return;;\n  esac\n",
             "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n", "    case \"${path:+$path }$word\" in ", paths,
             ") path=\"${path:+$path }$word\";; esac\n  done\n", "  case \"$path\" in\n", words, "  esac\n",
             "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n}\ncomplete -F _lockstepctl lockstepctl\n");
}

// In single quotes.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("\\'") : std::string(1, c);
  return quoted + "'";
}

std::string Fish(const std::vector<Place>& places) {
  std::string script = "complete -c lockstepctl -f\n";
  for (const Place& place : places) {
    std::string condition;
    for (size_t at = 0; at < place.path.size();) {
      const size_t end = std::min(place.path.find(' ', at), place.path.size());
      condition +=
          Cat(condition.empty() ? "" : "; and ", "__fish_seen_subcommand_from ", place.path.substr(at, end - at));
      at = end + 1;
    }
    std::string siblings;
    for (const CLI::App* command : place.commands) siblings += " " + command->get_name();
    const std::string none = siblings.empty() ? "" : Cat("not __fish_seen_subcommand_from", siblings);
    for (const CLI::App* command : place.commands) {
      const std::string when = condition.empty() ? none : Cat(condition, "; and ", none);
      script += Cat("complete -c lockstepctl -n ", Quoted(when), " -a ", command->get_name(), " -d ",
                    Quoted(command->get_description()), "\n");
    }
    for (const CLI::Option* option : place.options) {
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
  std::vector<Place> places;
  AddPlaces(app, "", {}, places);
  if (shell == "bash") return Bash(places);
  if (shell == "zsh") return Cat("autoload -U +X bashcompinit && bashcompinit\n", Bash(places));
  if (shell == "fish") return Fish(places);
  return Status(ErrorCode::kUsage, Cat("completion: the shells are bash, zsh and fish, not ", CleanText(shell, 40)));
}

}  // namespace lockstep::ctl
