// Checks the arguments of the C ABI and converts them to the library's types.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "export_plugin/client/rank_client.h"
#include "export_plugin/exporter/exchange.h"
#include "export_plugin/exporter/exporter.h"
#include "export_plugin/exporter/local_tensor.h"
#include "export_plugin/lockstep.h"

namespace lockstep::abi {

// Of options with tensors, and of options with descriptions. kBadData, kProtocol.
Result<client::RankOptions> ToRankOptions(const lockstep_options& options);
Result<exporter::ExporterOptions> ToExporterOptions(const lockstep_options& options);

Result<std::vector<std::string>> ToDescriptions(const char* const* descriptions, uint32_t ranks);
Result<std::vector<exporter::LocalTensor>> ToLocals(const lockstep_local_tensor* locals, size_t count);

// The exchange that a host program gives. Copies the table of callbacks.
Result<std::unique_ptr<exporter::Exchange>> ToExchange(const lockstep_exchange& callbacks);

}  // namespace lockstep::abi
