#include "common/access/quota.h"

#include "common/base/mutex.h"
#include "common/base/text.h"

namespace lockstep::access {

struct Quota::Lease::Counts {
  Mutex mutex;
  size_t all LS_GUARDED_BY(mutex) = 0;
  std::map<std::string, size_t> each LS_GUARDED_BY(mutex);  // none of them 0
};

Quota::Quota(std::string what, Limits limits)
    : what_(std::move(what)), limits_(limits), counts_(std::make_shared<Lease::Counts>()) {}

Result<Quota::Lease> Quota::Take(const std::string& identity) {
  MutexLock lock(counts_->mutex);
  if (counts_->all >= limits_.all) {
    return Status(ErrorCode::kResourceExhausted,
                  Cat(counts_->all, " ", what_, " are open, the limit; try again when some have ended"));
  }
  const auto own = counts_->each.find(identity);
  if (!identity.empty() && own != counts_->each.end() && own->second >= limits_.each) {
    return Status(ErrorCode::kResourceExhausted,
                  Cat(own->second, " ", what_, " of ", identity, " are open, the limit of one; end some"));
  }
  ++counts_->all;
  ++counts_->each[identity];
  return Lease(counts_, identity);
}

Quota::Lease::~Lease() {
  if (counts_ == nullptr) return;
  MutexLock lock(counts_->mutex);
  --counts_->all;
  const auto own = counts_->each.find(identity_);
  if (--own->second == 0) counts_->each.erase(own);
}

}  // namespace lockstep::access
