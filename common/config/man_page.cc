#include "common/config/man_page.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "common/base/text.h"

namespace lockstep::config {
namespace {

// As troff prints it: a backslash, a hyphen that can be copied, and no request at the beginning of a line.
std::string Escaped(const std::string& text) {
  std::string escaped = !text.empty() && (text[0] == '.' || text[0] == '\'') ? "\\&" : "";
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else if (c == '\n') {
      escaped += ' ';
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string Upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string Entry(const CLI::Option& option) {
  std::string names;
  for (const std::string& name : option.get_lnames()) names += Cat(names.empty() ? "" : ", ", "--", name);
  const bool positional = names.empty();
  if (positional) names = option.get_name(true);
  const bool takes_value = !positional && option.get_expected_max() > 0;
  const std::string value = takes_value && !option.get_type_name().empty() ? option.get_type_name() : "";
  return Cat(".TP\n\\fB", Escaped(names), "\\fR", value.empty() ? "" : Cat(" \\fI", Escaped(value), "\\fR"), "\n",
             Escaped(option.get_description()), "\n");
}

std::string Entries(const CLI::App& app) {
  std::string entries;
  for (const CLI::Option* option : app.get_options()) {
    const bool again = app.get_parent() != nullptr && option == app.get_help_ptr();
    if (!option->get_group().empty() && !again) entries += Entry(*option);
  }
  return entries;
}

// Each below a heading of the words that lead to it: "log verify".
std::string Commands(const CLI::App& app, const std::string& path) {
  std::string commands;
  for (const CLI::App* command : app.get_subcommands({})) {
    const std::string words = Cat(path, path.empty() ? "" : " ", command->get_name());
    commands += Cat(".SS ", Escaped(words), "\n", Escaped(command->get_description()), ".\n", Entries(*command),
                    Commands(*command, words));
  }
  return commands;
}

}  // namespace

std::string ManPage(const CLI::App& app, const std::string& about) {
  const std::string name = app.get_name();
  const std::string commands = Commands(app, "");
  std::string page = Cat(".TH ", Upper(name), " 8 \"\" Lockstep\n.SH NAME\n", name, " \\- ",
                         Escaped(app.get_description()), "\n.SH SYNOPSIS\n.B ", name, "\n[\\fIOPTIONS\\fR]",
                         commands.empty() ? "" : " \\fICOMMAND\\fR", "\n.SH DESCRIPTION\n");
  for (size_t at = 0; at < about.size();) {
    const size_t end = std::min(about.find("\n\n", at), about.size());
    page += Cat(".PP\n", Escaped(about.substr(at, end - at)), "\n");
    at = end + 2;
  }
  page += Cat(".SH OPTIONS\n", Entries(app));
  if (!commands.empty()) page += Cat(".SH COMMANDS\n", commands);
  return page;
}

}  // namespace lockstep::config
