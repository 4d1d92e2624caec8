// Quota: how many of something there may be at a time, in all and of each identity.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/base/status.h"

namespace lockstep::access {

// Thread-safe. Leases may outlive it.
class Quota {
 public:
  struct Limits {
    size_t all;
    size_t each;  // of one identity; of those without a name (plaintext, the control socket) only `all` counts
  };
  // Gives back what it took when it goes.
  class Lease {
   public:
    Lease(Lease&&) = default;
    ~Lease();

   private:
    friend class Quota;
    struct Counts;
    Lease(std::shared_ptr<Counts> counts, std::string identity)
        : counts_(std::move(counts)), identity_(std::move(identity)) {}
    std::shared_ptr<Counts> counts_;  // null: moved from
    std::string identity_;
  };

  // `what`: of what there are too many, for errors.
  Quota(std::string what, Limits limits);

  // kResourceExhausted says whether the limit of all or that of `identity` is reached.
  Result<Lease> Take(const std::string& identity);

 private:
  const std::string what_;
  const Limits limits_;
  const std::shared_ptr<Lease::Counts> counts_;
};

}  // namespace lockstep::access
