#include "raas_receiver/engine/drivers/weight_check.h"

#include <algorithm>
#include <filesystem>

#include "common/base/text.h"
#include "common/model/safetensors.h"
#include "common/os/segment.h"

namespace lockstep::engine {
namespace {

struct Found {
  bool some = false;    // a rank has the tensor's bytes
  std::string without;  // a rank that lists it and has others
};

Found Find(const std::vector<RankDigests>& ranks, const std::string& name, const std::vector<std::string>& digests) {
  Found found;
  for (const RankDigests& rank : ranks) {
    const auto parameter = rank.parameters.find(name);
    if (parameter == rank.parameters.end()) continue;
    const bool same = std::ranges::find(digests, parameter->second) != digests.end();
    if (same) found.some = true;
    if (!same && found.without.empty()) found.without = rank.rank;
  }
  return found;
}

bool Listed(const std::vector<RankDigests>& ranks, const std::string& name) {
  return std::ranges::any_of(ranks, [&](const RankDigests& rank) { return rank.parameters.contains(name); });
}

Result<os::MappedSegment> MapWeights(const std::string& directory) {
  const std::string path = directory + "/model.safetensors";
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error) return ErrnoStatus(error.value(), Cat("open ", path));
  return os::OpenSegment(path, bytes, os::Access::kReadOnly);
}

}  // namespace

// Another number of ranks may have cut what was whole.
void WeightCheck::ForgetOtherServers(const std::vector<RankDigests>& ranks) {
  std::vector<std::string> names;
  for (const RankDigests& rank : ranks) names.push_back(rank.rank);
  if (names != ranks_) comparable_.clear();
  ranks_ = std::move(names);
}

Result<size_t> WeightCheck::Compare(const std::vector<RankDigests>& ranks, const std::string& directory,
                                    const DigestsOf& digests) {
  LS_ASSIGN_OR_RETURN(const os::MappedSegment file, MapWeights(directory));
  LS_ASSIGN_OR_RETURN(const model::SafetensorsFile weights, model::ParseSafetensors(file.span(), file.bytes()));
  ForgetOtherServers(ranks);
  std::unordered_set<std::string> comparable;
  for (const model::TensorMeta& tensor : weights.tensors) {
    if (!Listed(ranks, tensor.name)) continue;
    LS_ASSIGN_OR_RETURN(const uint64_t size, model::TensorBytes(tensor));
    const ByteView bytes = file.span().subspan(weights.data_offset + tensor.offset, size);
    LS_ASSIGN_OR_RETURN(const std::vector<std::string> expected, digests(bytes));
    const Found found = Find(ranks, tensor.name, expected);
    if (!found.some && !comparable_.contains(tensor.name)) continue;
    if (!found.without.empty()) {
      return Status(ErrorCode::kCorrupt, Cat("parameter ", tensor.name, " of ", found.without,
                                             " has not the version's bytes, by the server's own checksum"));
    }
    comparable.insert(tensor.name);
  }
  if (!comparable.empty()) {
    comparable_ = std::move(comparable);
    return comparable_.size();
  }
  return Status(ErrorCode::kState,
                "by the server's own checksums no parameter has the bytes of the version's tensor of its name: it has "
                "read nothing of it, or keeps all in another form and cannot be checked (leave out --engine-check)");
}

}  // namespace lockstep::engine
