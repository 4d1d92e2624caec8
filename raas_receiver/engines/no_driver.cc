#include "raas_receiver/engines/no_driver.h"

namespace lockstep::engines {
namespace {

class NoDriver final : public EngineDriver {
 public:
  using EngineDriver::EngineDriver;

  LoadOutcome Load(const EngineVersion&, const std::optional<EngineVersion>&) override {
    return {OkStatus(), Serving::kNew};
  }
  Status Pause(const EngineVersion&) override { return OkStatus(); }
  Status Resume(const EngineVersion&) override { return OkStatus(); }
  Result<bool> StillServes(const EngineVersion&) override { return true; }
  void Cancel() override {}
  uint64_t failures() const override { return 0; }
};

}  // namespace

Result<std::unique_ptr<EngineDriver>> NewNoDriver(const DriverKind& kind, EngineOptions) {
  return std::unique_ptr<EngineDriver>(std::make_unique<NoDriver>(kind));
}

}  // namespace lockstep::engines
