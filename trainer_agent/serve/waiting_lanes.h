// WaitingLanes: connections that have not been let in yet: bounded, for anybody can make them.
//
// Who comes when there are too many takes the place of the one that has waited longest: a receiver says all that it has
// to say within two round trips, a peer that only holds a place does not.
#pragma once

#include <asio.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace lockstep::serve {

// Thread-safe.
class WaitingLanes {
 public:
  struct Limits {
    size_t all = 512;
    size_t per_address = 256;
  };
  using Leave = std::function<void()>;

  explicit WaitingLanes(Limits limits) : limits_(limits) {}

  // Where one connection waits, until this ends.
  class Place {
   public:
    Place(WaitingLanes* lanes, uint64_t number) : lanes_(lanes), number_(number) {}
    Place(Place&& other) noexcept : lanes_(std::exchange(other.lanes_, nullptr)), number_(other.number_) {}
    ~Place() {
      if (lanes_ != nullptr) lanes_->Free(number_);
    }
    // Another has it.
    bool lost() const { return !lanes_->Has(number_); }

   private:
    WaitingLanes* lanes_;
    const uint64_t number_;
  };

  // `leave` is called, by any thread and soon, when another takes the place: of the same address when that has too
  // many, of any when there are too many in all.
  Place Enter(const asio::ip::address& address, Leave leave);

 private:
  struct Waiting {
    asio::ip::address address;
    Leave leave;
  };
  using Map = std::map<uint64_t, Waiting>;  // by number: as they came

  void Free(uint64_t number);
  bool Has(uint64_t number);
  Map::iterator InTheWayOf(const asio::ip::address& address);

  const Limits limits_;
  std::mutex mutex_;
  Map waiting_;
  uint64_t next_ = 0;
};

}  // namespace lockstep::serve
