// Internal to the package: what engines served, as receivers have signed it.
#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "ctl/output/output.h"
#include "proto/lockstep/v1/receiver.pb.h"

namespace lockstep::ctl {

// Receipts as `lockstepctl --json receipt` printed them. kBadData: the file has something else.
Result<std::vector<v1::SignedReceipt>> ReadReceipts(const std::string& path);

// `keys`: a PEM file of public keys; empty: signatures are not checked. kPermission: a receipt is not signed by one of
// them; all are printed, and say so.
Status PrintReceipts(const std::vector<v1::SignedReceipt>& receipts, const std::string& keys, const Output& output);

}  // namespace lockstep::ctl
