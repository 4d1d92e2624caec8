// Places: where connections that any peer can make are kept few. Lanes wait in them for their ticket, the connections
// of a gRPC port have them as long as they last.
//
// A connection that comes when there are too many takes the place of the oldest: of the same address, or of the address
// that has most. So one address displaces its own.
#pragma once

#include <asio/ip/address.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "common/base/mutex.h"

namespace lockstep::net {

// Thread-safe.
class Places {
 public:
  struct Limits {
    size_t all = 512;
    size_t per_address = 256;
  };
  using Leave = std::function<void()>;

  explicit Places(Limits limits) : limits_(limits) {}

  // One connection's, until this ends.
  class Place {
   public:
    Place(Places* places, uint64_t number) : places_(places), number_(number) {}
    Place(Place&& other) noexcept : places_(std::exchange(other.places_, nullptr)), number_(other.number_) {}
    ~Place() {
      if (places_ != nullptr) places_->Free(number_);
    }
    // Another has it.
    bool lost() const { return !places_->Has(number_); }

   private:
    Places* places_;
    const uint64_t number_;
  };

  // `leave` is called, by any thread and soon, when another takes the place.
  Place Enter(const asio::ip::address& address, Leave leave);
  // How many there are.
  size_t taken() const;

 private:
  struct Taken {
    asio::ip::address address;
    Leave leave;
  };
  using Map = std::map<uint64_t, Taken>;  // by number: as they came

  void Free(uint64_t number);
  bool Has(uint64_t number);
  Map::iterator InTheWayOf(const asio::ip::address& address) LS_REQUIRES(mutex_);

  const Limits limits_;
  mutable Mutex mutex_;
  Map taken_ LS_GUARDED_BY(mutex_);
  uint64_t next_ LS_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::net
