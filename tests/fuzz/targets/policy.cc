// The file that says which peer may do what (common/access/policy.h): whatever it says, more is never allowed than less
// is.
#include "common/access/policy.h"

#include "tests/fuzz/fuzz.h"

namespace lockstep::fuzz {
namespace {

using access::Policy;
using access::Role;
using access::Roles;
using access::Scope;

constexpr Roles kAnyRole = Roles(Role::kReceiver) | Role::kOperator | Role::kObserver;
constexpr Scope kActor{.kind = Scope::Kind::kModel, .model = "actor"};
constexpr Scope kEvery{.kind = Scope::Kind::kEveryModel, .model = ""};
constexpr Scope kOwnPull{.kind = Scope::Kind::kOwnPull, .model = ""};

void CheckOrder(const Policy& policy, const std::vector<std::string>& names) {
  for (const Role role : {Role::kReceiver, Role::kOperator, Role::kObserver}) {
    const bool every = policy.Allows(names, role, kEvery);
    const bool actor = policy.Allows(names, role, kActor);
    LS_FUZZ_RULE(!every || actor);
    LS_FUZZ_RULE(!actor || policy.Allows(names, role, kOwnPull));
    LS_FUZZ_RULE(!actor || policy.Allows(names, kAnyRole, kActor));
    LS_FUZZ_RULE(!actor || policy.Allows({"x", names[0]}, role, kActor));
  }
}

}  // namespace

std::vector<Bytes> Seeds() {
  const std::string_view names =
      "[[allow]]\nname = \"spiffe://example.org/infer/*\"\nrole = \"receiver\"\nmodels = [\"actor\", 'critic']\n"
      "[[allow]]\nname = '*.ops.example.org'\nrole = 'operator'\n";
  const std::string_view any_peer = "allow = [{name = '*', role = 'observer', models = ['critic']}]\n";
  return {Copy(AsBytes(names)), Copy(AsBytes(any_peer)), Copy(AsBytes(std::string_view("[[allow]]\nname = 5\n")))};
}

void TestInput(ByteView input) {
  const Result<Policy> policy = Policy::Read(FileOf(input));
  if (!policy.ok()) return CheckRefusal(policy.status(), {ErrorCode::kConfig});
  const std::string receiver = "spiffe://example.org/infer/0";
  const std::string person = "anna.ops.example.org";
  for (const std::string& name : {receiver, person}) CheckOrder(*policy, {name});
  LS_FUZZ_RULE(!policy->Allows({}, kAnyRole, kOwnPull));
  Accepted(input, {policy->Allows({receiver}, Role::kReceiver, kEvery), policy->Allows({person}, kAnyRole, kActor)});
}

}  // namespace lockstep::fuzz
