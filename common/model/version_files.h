// The files in the directory of a version, as engines load it: their names, and the content of the small ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/ids.h"
#include "common/model/attachments.h"
#include "common/model/layout.h"

namespace lockstep::model {

// Which version it is, as one JSON object (raas_receiver/replica/FORMAT.md).
inline constexpr std::string_view kVersionFile = "lockstep.json";

// The attachment that makes a layout a PEFT adapter's.
inline constexpr std::string_view kAdapterConfig = "adapter_config.json";

// The name of the tensors' file: "model.safetensors", or "adapter_model.safetensors" of an adapter.
std::string_view WeightsFile(const ModelLayout& layout);

// The small files, name to content: the layout's attachments, and kVersionFile.
Attachments SmallFiles(const ModelLayout& layout, const VersionRef& held, const ManifestDigest& digest,
                       int64_t committed_unix_ns, const std::string& label);

}  // namespace lockstep::model
