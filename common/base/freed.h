// Freed: a unique_ptr's deleter for objects of C libraries. std::unique_ptr<X509, Freed<X509_free>> is one.
#pragma once

namespace lockstep {

template <auto kFree>
struct Freed {
  void operator()(auto* object) const { kFree(object); }
};

}  // namespace lockstep
