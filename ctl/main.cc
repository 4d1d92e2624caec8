// lockstepctl: see and steer trainer agents and receivers.
#include <iostream>

#include "ctl/invocation.h"

namespace {

int Fail(const lockstep::Status& status) {
  std::cerr << "lockstepctl: " << status.ToString() << "\n";
  return lockstep::ExitCode(status.code());
}

}  // namespace

int main(int argc, char** argv) {
  const auto invocation = lockstep::ctl::ParseInvocation(argc, argv, std::cout);
  if (!invocation.ok()) return Fail(invocation.status());
  if (!invocation->has_value()) return 0;
  const lockstep::Status status = lockstep::ctl::RunCommand(**invocation, std::cout);
  return status.ok() ? 0 : Fail(status);
}
