#include "common/model/version_files.h"

#include <nlohmann/json.hpp>

namespace lockstep::model {

std::string_view WeightsFile(const ModelLayout& layout) {
  return layout.attachments().count(std::string(kAdapterConfig)) > 0 ? "adapter_model.safetensors"
                                                                     : "model.safetensors";
}

Attachments SmallFiles(const ModelLayout& layout, const VersionRef& held, const ManifestDigest& digest,
                       int64_t committed_unix_ns, const std::string& label) {
  Attachments files = layout.attachments();
  files[std::string(kVersionFile)] = nlohmann::ordered_json{{"run", ToHex(held.run)},
                                                            {"version", held.version},
                                                            {"label", label},
                                                            {"committed_unix_ns", committed_unix_ns},
                                                            {"manifest_digest", ToHex(digest)}}
                                         .dump() +
                                     "\n";
  return files;
}

}  // namespace lockstep::model
