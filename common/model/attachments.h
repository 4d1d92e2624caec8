// Attachments: small text files that belong to a model and travel with its layout, such as a LoRA adapter's
// adapter_config.json. A receiver puts them next to the tensors of every version that it publishes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace lockstep::model {

inline constexpr size_t kMaxAttachments = 16;
inline constexpr size_t kMaxAttachmentName = 128;
inline constexpr size_t kMaxAttachmentBytes = 1 << 20;

// File name to content.
using Attachments = std::map<std::string, std::string>;

// True for file names that loaders take for weights, or for an index of them (*.safetensors, *.bin, *.gguf, ...). A
// version has weights of its own, so no other file of its directory may have such a name.
bool IsWeightsName(std::string_view name);

// At most kMaxAttachments; names are [A-Za-z0-9._-]{1,128} and neither start with '.', nor are those of weights, nor
// end in ".py" (a loader would run it), nor are "lockstep.json", which is a receiver's; contents are UTF-8 of at most
// kMaxAttachmentBytes. kBadData names the first offender and the rule it breaks.
Status CheckAttachments(const Attachments& attachments);

// From a JSON object of name to text, checked as above. Empty text: none. kBadData also for what is no such object, or
// gives a name twice.
Result<Attachments> ParseAttachments(std::string_view json);

// Their part of a layout's canonical encoding (FORMAT.md).
void AppendAttachments(Bytes& out, const Attachments& attachments);
// Takes `count` of them off the front of `reader`. kProtocol: truncated, too many, or names that do not rise. The rules
// of CheckAttachments are not checked.
Result<Attachments> TakeAttachments(ByteReader& reader, uint32_t count);

}  // namespace lockstep::model
