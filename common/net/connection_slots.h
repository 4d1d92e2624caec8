// ConnectionSlots: bounds the connections that any peer can make. A lane has a slot until it has shown its ticket, a
// connection of a gRPC port as long as it lasts.
//
// A connection that comes when there are too many takes the slot of the oldest: of the same address, or of the address
// that has most. So one address displaces its own connections.
#pragma once

#include <asio/ip/address.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "common/base/mutex.h"

namespace lockstep::net {

// Thread-safe.
class ConnectionSlots {
 public:
  struct Limits {
    size_t all = 512;
    size_t per_address = 256;
  };
  using Leave = std::function<void()>;

  explicit ConnectionSlots(Limits limits) : limits_(limits) {}

  // The slot of one connection, which is free again when this ends.
  class Slot {
   public:
    Slot(ConnectionSlots* slots, uint64_t number) : slots_(slots), number_(number) {}
    Slot(Slot&& other) noexcept : slots_(std::exchange(other.slots_, nullptr)), number_(other.number_) {}
    ~Slot() {
      if (slots_ != nullptr) slots_->Free(number_);
    }
    // Whether another connection has taken the slot.
    bool lost() const { return !slots_->Has(number_); }

   private:
    ConnectionSlots* slots_;
    const uint64_t number_;
  };

  // Gives the connection a slot. Calls `leave` on any thread when another connection takes it; `leave` must not block.
  Slot Enter(const asio::ip::address& address, Leave leave);
  // How many slots are taken.
  size_t taken() const;

 private:
  struct TakenSlot {
    asio::ip::address address;
    Leave leave;
  };
  using Map = std::map<uint64_t, TakenSlot>;  // by number: as they came

  void Free(uint64_t number);
  bool Has(uint64_t number);
  Map::iterator InTheWayOf(const asio::ip::address& address) LS_REQUIRES(mutex_);

  const Limits limits_;
  mutable Mutex mutex_;
  Map taken_ LS_GUARDED_BY(mutex_);
  uint64_t next_ LS_GUARDED_BY(mutex_) = 0;
};

}  // namespace lockstep::net
