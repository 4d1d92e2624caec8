// demo_trainer: what a trainer looks like to Lockstep, without a GPU or a data set. deploy/demo.sh runs it.
#include <iostream>

#include "deploy/demo_trainer/options.h"
#include "deploy/demo_trainer/training_run.h"

int main(int argc, char** argv) {
  const lockstep::demo::ParsedOptions parsed = lockstep::demo::ParseOptions(argc, argv);
  if (!parsed.options) return parsed.exit_code;
  const lockstep::Status status = lockstep::demo::Run(*parsed.options);
  if (!status.ok()) std::cerr << "demo_trainer: " << status.ToString() << "\n";
  return lockstep::ExitCode(status.code());
}
