// ManPage: a program's manual page, made from the options and commands that it has. For --man of the daemons and of
// lockstepctl.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace lockstep::config {

// In troff's man macros, of section 8. Hidden options are left out. `about` is paragraphs for DESCRIPTION, with an
// empty line between them.
std::string ManPage(const CLI::App& app, const std::string& about);

}  // namespace lockstep::config
