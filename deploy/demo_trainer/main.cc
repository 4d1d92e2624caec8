// demo_trainer: what a trainer looks like to Lockstep, without a GPU or a data set. deploy/demo.sh runs it.
#include <CLI/CLI.hpp>
#include <iostream>

#include "deploy/demo_trainer/initial_model.h"
#include "deploy/demo_trainer/training_run.h"

int main(int argc, char** argv) {
  lockstep::demo::Options options;
  CLI::App app{
      "Trains a model that nobody needs, with real Adam steps, and publishes each version to a trainer_agent."};
  auto* socket = app.add_option("--socket", options.socket, "the agent's export socket");
  app.add_option("--model", options.model, "name to publish under")->capture_default_str();
  auto* shape = app.add_option("--shape", options.shape, "model to make up")->capture_default_str();
  shape->check(CLI::IsMember(lockstep::demo::ShapeNames()));
  auto* checkpoint = app.add_option("--checkpoint", options.checkpoint, "HuggingFace directory to start from");
  checkpoint->check(CLI::ExistingDirectory)->excludes(shape);
  app.add_option("--steps", options.steps, "optimizer steps")->capture_default_str();
  app.add_option("--lr", options.learning_rate, "learning rate")->capture_default_str()->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed, "of everything drawn")->capture_default_str();
  app.add_option("--threads", options.threads, "0: one per core")->capture_default_str()->check(CLI::Range(0, 1024));
  app.add_flag("--paced", options.paced, "wait for a line on stdin before each step, and for its end after the last");
  auto* assets = app.add_option("--write-assets", options.write_assets, "write the shape's config.json there and end");
  assets->excludes(checkpoint);
  auto* describe = app.add_flag("--describe", options.describe, "print the model's sizes as JSON and end");
  try {
    app.parse(argc, argv);
    if (assets->count() + describe->count() == 0 && socket->count() == 0) throw CLI::RequiredError("--socket");
  } catch (const CLI::ParseError& error) {
    const bool asked_for_help = app.exit(error) == 0;
    return lockstep::ExitCode(asked_for_help ? lockstep::ErrorCode::kOk : lockstep::ErrorCode::kUsage);
  }
  const lockstep::Status status = lockstep::demo::Run(options);
  if (!status.ok()) std::cerr << "demo_trainer: " << status.ToString() << "\n";
  return lockstep::ExitCode(status.code());
}
