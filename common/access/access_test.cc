#include "common/access/access.h"

#include <google/protobuf/descriptor.h>

#include <catch2/catch.hpp>
#include <set>

#include "common/base/status_testing.h"
#include "common/base/text.h"
#include "common/os/file.h"
#include "common/os/temp_dir.h"
#include "proto/lockstep/v1/agent.pb.h"
#include "proto/lockstep/v1/receiver.pb.h"

namespace lockstep::access {
namespace {

using Names = std::vector<std::string>;

constexpr Scope kActor{.kind = Scope::Kind::kModel, .model = "actor"};
constexpr Scope kCritic{.kind = Scope::Kind::kModel, .model = "critic"};
constexpr Scope kEvery{.kind = Scope::Kind::kEveryModel, .model = ""};
constexpr Scope kOwnPull{.kind = Scope::Kind::kOwnPull, .model = ""};

// A policy file that may be written again.
class PolicyFile {
 public:
  explicit PolicyFile(const std::string& text) { Write(text); }
  void Write(const std::string& text) const { REQUIRE(os::WriteFileAtomic(path(), text).ok()); }
  std::string path() const { return dir_.File("policy.toml"); }

 private:
  const os::TempDir dir_;
};

std::set<std::string> MethodsOf(const google::protobuf::FileDescriptor& file) {
  std::set<std::string> methods;
  for (int i = 0; i < file.service_count(); ++i) {
    for (int j = 0; j < file.service(i)->method_count(); ++j) {
      methods.insert(std::string(file.service(i)->method(j)->full_name()));
    }
  }
  return methods;
}

Identity Named(const std::string& name) {
  return {.name = name, .names = {name}};
}

TEST_CASE("Every call of lockstep.v1 takes a role") {
  std::set<std::string> methods = MethodsOf(*v1::AgentStatus::descriptor()->file());
  methods.merge(MethodsOf(*v1::ReceiverStatus::descriptor()->file()));
  CHECK(methods.size() >= 18);
  for (const std::string& method : methods) {
    INFO(method);
    CHECK(RolesFor(method).has_value());
  }
  CHECK(!RolesFor("lockstep.v1.TrainerAgent.Nothing").has_value());
}

TEST_CASE("A name has the roles that the policy gives it, for those models") {
  const PolicyFile file(R"(
[[allow]]
name = "spiffe://fleet/infer/*"
role = "receiver"
models = ["actor"]
[[allow]]
name = "*.ops.example.org"
role = "operator"
[[allow]]
name = "dashboard"
role = "observer"
)");
  const Policy policy = *Policy::Read(file.path());
  CHECK(policy.Allows({"spiffe://fleet/infer/0"}, Role::kReceiver, kActor));
  CHECK(policy.Allows({"nobody", "spiffe://fleet/infer/0"}, Role::kReceiver, kOwnPull));
  CHECK(!policy.Allows({"spiffe://fleet/infer/0"}, Role::kReceiver, kCritic));
  CHECK(!policy.Allows({"spiffe://fleet/infer/0"}, Role::kReceiver, kEvery));
  CHECK(!policy.Allows({"spiffe://fleet/infer/0"}, Role::kOperator, kActor));
  CHECK(!policy.Allows({"spiffe://fleet/train/0"}, Role::kReceiver, kActor));
  CHECK(policy.Allows({"anna.ops.example.org"}, Role::kOperator, kEvery));
  CHECK(!policy.Allows({"ops.example.org"}, Role::kOperator, kEvery));
  CHECK(!policy.Allows({"spiffe://fleet/dev/x.ops.example.org"}, Role::kOperator,
                       kEvery));  // any end was possible
  CHECK(policy.Allows({"dashboard"}, Roles(Role::kObserver) | Role::kOperator, kCritic));
  CHECK(!policy.Allows({"dashboard-2"}, Role::kObserver, kCritic));
  CHECK(!policy.Allows(Names{}, Role::kObserver, kCritic));
}

TEST_CASE("A bad policy is refused by file, line and what to write") {
  const PolicyFile file("");
  const auto refused = [&](const std::string& text, const std::string& line, const std::string& why) {
    file.Write(text);
    CHECK_THAT(Policy::Read(file.path()), FailsWith(ErrorCode::kConfig, file.path() + line, why));
  };
  refused("", ":", "no peer may do anything");
  refused("[[allow]\n", ":1", "");
  refused("allow = 3", ":1", "is no table [[allow]]");
  refused("\n[[deny]]\n", ":2", "either a name or a serial");
  refused("[[deny]]\nserial = \"xyz\"", ":2", "serial is hexadecimal");
  refused("[[deny]]\nname = \"a*b\"", ":2", "one * at most");
  refused("[[allow]]\nrole = \"receiver\"", ":1", "'name' is a text");
  refused("[[allow]]\nname = \"a*b\"\nrole = \"receiver\"", ":2", "one * at most");
  refused("[[allow]]\nname = \"*a*\"\nrole = \"receiver\"", ":2", "one * at most");
  refused("[[allow]]\nname = \"a\"\nrole = \"root\"", ":3", "role is receiver, operator or observer");
  refused("[[allow]]\nname = \"a\"\nrole = \"receiver\"\nmodel = \"actor\"", ":4", "unknown key 'model'");
  refused("[[allow]]\nname = \"a\"\nrole = \"receiver\"\nmodels = []", ":4", "leave it out for all models");
  CHECK_THAT(Policy::Read("/nowhere/policy.toml"), FailsWith(ErrorCode::kConfig, "/nowhere/policy.toml"));
}

TEST_CASE("A refusal names the caller, the call, and the role that it takes") {
  const PolicyFile file("[[allow]]\nname = \"infer-0\"\nrole = \"receiver\"\nmodels = [\"actor\"]\n");
  const auto control = *AccessControl::Create(file.path());
  CHECK(control->Check(Named("infer-0"), "lockstep.v1.TrainerAgent.OpenPull", kActor).ok());
  CHECK_THAT(control->Check(Named("infer-0"), "lockstep.v1.TrainerAgent.OpenPull", kCritic),
             FailsWith(ErrorCode::kPermission, "infer-0 may not call lockstep.v1.TrainerAgent.OpenPull",
                       "for model critic", "takes the role receiver", "--tls-policy"));
  CHECK_THAT(control->Check(Named("infer-0"), "lockstep.v1.RaasReceiver.Rollback", kActor),
             FailsWith(ErrorCode::kPermission, "takes the role operator"));
  CHECK_THAT(control->Check(Named("infer-0"), "lockstep.v1.TrainerAgent.Nothing", kActor),
             FailsWith(ErrorCode::kPermission, "infer-0 may not call"));
  CHECK(!control->Check({.name = "plaintext"}, "lockstep.v1.TrainerAgent.GetStatus", kEvery).ok());
  CHECK(control->Allows(Named("infer-0"), "lockstep.v1.TrainerAgent.Report", kActor));
  CHECK(!control->Allows(Named("infer-0"), "lockstep.v1.TrainerAgent.Report", kCritic));
  CHECK(control->Check({.name = "host", .of_host = true}, "lockstep.v1.RaasReceiver.Rollback", kActor).ok());
}

TEST_CASE("Without a policy no peer is asked for a name") {
  const auto control = *AccessControl::Create("");
  CHECK(control->Check({.name = "plaintext"}, "lockstep.v1.RaasReceiver.Rollback", kActor).ok());
  CHECK(control->Allows({.name = "plaintext"}, "lockstep.v1.RaasReceiver.Rollback", kActor));
}

TEST_CASE("A peer that is denied, by name or serial number, may do nothing from the policy's next reading on") {
  const std::string allow = "[[allow]]\nname = \"*\"\nrole = \"observer\"\n";
  const PolicyFile file(allow);
  const auto control = *AccessControl::Create(file.path());
  const auto status = [&](const std::string& name, const std::string& serial) {
    return control->Check({.name = name, .names = {name}, .serial = serial}, "lockstep.v1.TrainerAgent.GetStatus",
                          kEvery);
  };
  CHECK(status("anna", "a1b").ok());
  file.Write(allow + "[[deny]]\nserial = \"0A:1B\"\n[[deny]]\nname = \"bert\"\n");
  control->Reload();
  CHECK_THAT(status("anna", "a1b"), FailsWith(ErrorCode::kPermission, "anna may not call", "--tls-policy denies"));
  CHECK_THAT(status("bert", "c"), FailsWith(ErrorCode::kPermission, "--tls-policy denies"));
  CHECK(status("anna", "a1c").ok());
}

TEST_CASE("A certificate that has expired since may do nothing") {
  const PolicyFile file("[[allow]]\nname = \"*\"\nrole = \"observer\"\n");
  const auto control = *AccessControl::Create(file.path());
  Identity caller = Named("anna");
  caller.valid_until = std::chrono::system_clock::now() + std::chrono::hours(1);
  CHECK(control->Check(caller, "lockstep.v1.TrainerAgent.GetStatus", kEvery).ok());
  caller.valid_until = std::chrono::system_clock::now();
  CHECK_THAT(control->Check(caller, "lockstep.v1.TrainerAgent.GetStatus", kEvery),
             FailsWith(ErrorCode::kPermission, "anna may not call", "has expired"));
}

TEST_CASE("One identity makes so many calls at a time, and leaves room for others") {
  const auto control = *AccessControl::Create("");
  std::vector<Caller> calls;
  for (int i = 0; i < 128; ++i) calls.push_back(*control->Begin(Named("anna")));
  CHECK_THAT(control->Begin(Named("anna")).status(),
             FailsWith(ErrorCode::kResourceExhausted, "128 calls of anna are open"));
  CHECK(control->Begin(Named("bert")).ok());
  calls.pop_back();
  CHECK(control->Begin(Named("anna")).ok());
}

TEST_CASE("A policy is read again when its file changes; a bad one leaves the one before") {
  const auto allow = [](const std::string& name) {
    return Cat("[[allow]]\nname = \"", name, "\"\nrole = \"observer\"\n");
  };
  const auto may = [](AccessControl& control, const std::string& name) {
    return control.Check(Named(name), "lockstep.v1.TrainerAgent.GetStatus", kEvery).ok();
  };
  const PolicyFile file(allow("anna"));
  const auto control = *AccessControl::Create(file.path());
  CHECK(may(*control, "anna"));
  file.Write(allow("bert"));
  control->Reload();
  CHECK(!may(*control, "anna"));
  CHECK(may(*control, "bert"));
  file.Write("[[allow]]\nname = 3\n");
  control->Reload();
  CHECK(may(*control, "bert"));
  CHECK_THAT(AccessControl::Create(file.path()), FailsWith(ErrorCode::kConfig, "'name' is a text"));
}

}  // namespace
}  // namespace lockstep::access
