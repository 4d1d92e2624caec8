// What lockstepctl prints as JSON.
#pragma once

#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/rpc/message_json.h"

namespace lockstep::ctl {

using rpc::Dump;
using rpc::EnumText;
using rpc::Hex;
using rpc::Json;
using rpc::ToJson;

Json ToJson(const model::ModelLayout& layout);

// Of a call that failed: its sentence and its code's label.
Json ToJson(const Status& failed);

// A status without what differs each time that it is asked for.
Json WithoutAges(Json status);

}  // namespace lockstep::ctl
