#include <CLI/CLI.hpp>

#include "ctl/log/command.h"

namespace lockstep::ctl {

void AddLogOptions(CLI::App& command, LogOptions& options) {
  const auto add = [&](LogOptions::Command which, const char* name, const char* about) {
    CLI::App* added = command.add_subcommand(name, about)->fallthrough();
    added->callback([&options, which] { options.command = which; });
    added->add_option("url", options.url, "Where the log is: file:///DIRECTORY or s3://BUCKET/PREFIX")->required();
    added->add_option("model,--model", options.model, "The model; may be left out when there is only one");
    added->add_option("--keys", options.keys, "Read only what one of these Ed25519 public keys (PEM) has signed")
        ->type_name("FILE");
    added
        ->add_option("--allow-insecure-network", options.plain,
                     "Networks whose http:// stores may be read, 10.0.0.0/8 say; else only this host's")
        ->type_name("CIDR");
    return added;
  };
  command.require_subcommand(1);
  add(LogOptions::Command::kList, "ls", "Models, and the versions of one");
  add(LogOptions::Command::kVerify, "verify",
      "Read all of it, and make every version; takes memory for one version of the model");
  CLI::App* fetch = add(LogOptions::Command::kFetch, "fetch", "Write one version as a HuggingFace directory");
  fetch->add_option("--version", options.version, "Which [the newest]")->type_name("N")->check(CLI::PositiveNumber);
  fetch->add_option("--out", options.out, "The directory, which is made")->required()->type_name("DIR");
  CLI::App* prune = add(LogOptions::Command::kPrune, "prune", "Remove what a writer that was killed has left");
  prune->add_option("--grace", options.grace_s, "Keep what was written in the last so many seconds [900]")
      ->type_name("S");
  for (CLI::App* reading : command.get_subcommands({})) {
    reading->add_option("--connections", options.connections, "Objects that are read side by side [8]")
        ->type_name("N")
        ->check(CLI::Range(1, 256).description(""));
  }
}

}  // namespace lockstep::ctl
