// Protocol messages as the JSON that scripts read.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/model/layout.h"

namespace lockstep::ctl {

using Json = nlohmann::ordered_json;

// Every field under its proto name and in its proto order, also where it has its default. Bytes are hex, 64-bit numbers
// are numbers, enum values lower-case without their prefix: SESSION_STATE_PULLING is "pulling". So the JSON is as
// stable as the protos are.
Json ToJson(const google::protobuf::Message& message);

Json ToJson(const model::ModelLayout& layout);

// Of a call that failed: its sentence and its code's label.
Json ToJson(const Status& failed);

// A status without what differs each time that it is asked for.
Json WithoutAges(Json status);

// One document on one line. Text that is not UTF-8 is repaired.
std::string Dump(const Json& json);

std::string Hex(std::string_view bytes);

// SESSION_STATE_PULLING of SessionState -> "pulling".
std::string EnumText(const google::protobuf::EnumValueDescriptor& value);

}  // namespace lockstep::ctl
