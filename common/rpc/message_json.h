// Protocol messages as JSON, which scripts read and trainers without protos.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace lockstep::rpc {

using Json = nlohmann::ordered_json;

// Every field under its proto name and in its proto order, also where it has its default. Bytes are hex, 64-bit numbers
// are numbers, enum values lower-case without their prefix: SESSION_STATE_PULLING is "pulling". So the JSON is as
// stable as the protos are.
Json ToJson(const google::protobuf::Message& message);

// The other way, of trainers' questions: fields may be left out. kProtocol says what is wrong.
Status FromJson(std::string_view json, google::protobuf::Message* message);

// One document on one line. Text that is not UTF-8 is repaired.
std::string Dump(const Json& json);

std::string Hex(std::string_view bytes);

// SESSION_STATE_PULLING of SessionState -> "pulling".
std::string EnumText(const google::protobuf::EnumValueDescriptor& value);

}  // namespace lockstep::rpc
