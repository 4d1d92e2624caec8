// WeightCheck: whether all ranks of a server hold a version, by the digests that they compute of their own parameters.
//
// A rank has many parameters in a form of its own: cut, fused, converted. Compared are those that it has under the name
// and with the bytes of a tensor: norms and the like, and on a rank that shares with no other, most that is not fused.
// What one rank has so every rank that lists it must, and in every later version too. So a rank that has not read a
// version is noticed, and after a first version that was read a whole server; a parameter in another form that is wrong
// is not. A first version that no rank has read passes where a tensor is what the ranks had before.
//
// Used by one thread.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace lockstep::engine {

struct RankDigests {
  std::string rank;  // its name, as the server has it
  std::unordered_map<std::string, std::string> parameters;
};

class WeightCheck {
 public:
  // All that a server may say of a parameter of these bytes. An error ends the comparison.
  using DigestsOf = std::function<Result<std::vector<std::string>>(ByteView)>;

  // Compares `ranks` with the weights in `directory`, and answers how many of the version's tensors were compared.
  // kCorrupt names the first one that differs, and the rank. kState: there is none to compare. Errors of reading, and
  // of `digests`.
  Result<size_t> Compare(const std::vector<RankDigests>& ranks, const std::string& directory, const DigestsOf& digests);

 private:
  void ForgetOtherServers(const std::vector<RankDigests>& ranks);

  std::vector<std::string> ranks_;              // that were compared last
  std::unordered_set<std::string> comparable_;  // tensors that they had so in the last version that passed
};

}  // namespace lockstep::engine
