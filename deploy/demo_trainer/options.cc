#include "deploy/demo_trainer/options.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "common/base/status.h"
#include "deploy/demo_trainer/shapes.h"

namespace lockstep::demo {

ParsedOptions ParseOptions(int argc, const char* const* argv) {
  Options options;
  CLI::App app{
      "Trains a model that nobody needs, with real Adam steps, and publishes each version to a trainer_agent."};
  auto* socket = app.add_option("--socket", options.socket, "the agent's export socket");
  app.add_option("--model", options.model, "name to publish under")->capture_default_str();
  auto* shape = app.add_option("--shape", options.shape, "model to make up")->capture_default_str();
  shape->check(CLI::IsMember(ShapeNames()));
  auto* checkpoint = app.add_option("--checkpoint", options.checkpoint, "HuggingFace directory to start from");
  checkpoint->check(CLI::ExistingDirectory)->excludes(shape);
  app.add_option("--steps", options.steps, "optimizer steps")->capture_default_str();
  app.add_option("--lr", options.learning_rate, "learning rate")->capture_default_str()->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed, "of everything drawn")->capture_default_str();
  app.add_option("--threads", options.threads, "0: one per core")->capture_default_str()->check(CLI::Range(0, 1024));
  app.add_option("--step-delay-ms", options.step_delay_ms, "pause before each step")->capture_default_str();
  app.add_flag("--paced", options.paced, "wait for a line on stdin before each step, and for its end after the last");
  app.add_option("--digests", options.digests, "file for the lines that go to stdout, too");
  app.add_option("--digest-every", options.digest_every, "versions between digests; 0: only the last version has one");
  auto* assets = app.add_option("--write-assets", options.write_assets, "write the shape's config.json there and end");
  assets->excludes(checkpoint);
  auto* describe = app.add_flag("--describe", options.describe, "print the model's sizes as JSON and end");
  try {
    app.parse(argc, argv);
    if (assets->count() + describe->count() == 0 && socket->count() == 0) throw CLI::RequiredError("--socket");
  } catch (const CLI::ParseError& error) {
    const bool asked_for_help = error.get_exit_code() == 0;
    app.exit(error);
    return {.exit_code = asked_for_help ? 0 : ExitCode(ErrorCode::kUsage)};
  }
  return {.options = options};
}

}  // namespace lockstep::demo
