// The policy file: which names have which role for which models.
//
//   [[allow]]
//   name = "spiffe://example.org/infer/*"   # a DNS name or URI of a certificate; one * at the begin or the end
//   role = "receiver"                       # receiver, operator or observer
//   models = ["actor"]                      # left out: all
//
//   [[deny]]                                # comes before every [[allow]]
//   serial = "0A:1B:2C"                     # of one certificate; or name, as above
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/access/roles.h"
#include "common/base/status.h"

namespace lockstep::access {

// The models and pulls that a call concerns.
struct Scope {
  enum class Kind { kModel, kEveryModel, kOwnPull };
  Kind kind = Kind::kEveryModel;
  std::string_view model;  // of kModel
};

// A certificate's serial number as all of this package writes it: "0A:1B" is "a1b".
std::string PlainSerial(std::string_view hex);

class Policy {
 public:
  // kConfig names file, line and what to write there.
  static Result<Policy> Read(const std::string& path);

  // Whether a certificate with `names` and `serial` may do nothing, whatever is allowed.
  bool Denies(const std::vector<std::string>& names, const std::string& serial) const;

  // Whether one of `names` has a role.
  bool KnowsOneOf(const std::vector<std::string>& names) const;

  // Whether one of `names` has one of `roles` for all that `scope` says. A pull is of its own identity, so any model
  // will do.
  bool Allows(const std::vector<std::string>& names, Roles roles, const Scope& scope) const;

 private:
  struct Grant {
    std::string name;
    Role role;
    std::vector<std::string> models;  // none: all
  };
  friend class PolicyReader;

  std::vector<Grant> grants_;
  std::vector<std::string> denied_names_;
  std::vector<std::string> denied_serials_;
};

}  // namespace lockstep::access
