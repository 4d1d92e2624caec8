// SectionFiller: the HuggingFace data section of a model that one rank holds whole, made range by range from the rank's
// tensors into any memory: what Publish() would write there, without the agent.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/model/layout.h"
#include "export_plugin/exporter/copy_engine.h"
#include "export_plugin/exporter/local_tensor.h"
#include "export_plugin/exporter/lowering.h"

namespace lockstep::exporter {

// Not thread-safe. Keeps its copies of the plan; neither tensors nor their addresses.
class SectionFiller {
 public:
  // `description`: the rank's own. kBadData when the rank by itself does not hold all of `layout`: the text names a
  // tensor.
  static Result<std::unique_ptr<SectionFiller>> Create(const std::string& description,
                                                       std::span<const LocalTensor> locals,
                                                       std::shared_ptr<const model::ModelLayout> layout);

  // Writes `range` of the data section to `target`, in host memory or the memory of a GPU that `engine` reaches, and
  // waits until it is there. kBadData: the range leaves the data section or cuts an element, or a tensor has no
  // address; nothing was written.
  Status Fill(ByteRange range, std::byte* target, std::span<const LocalTensor> locals, CopyEngine& engine);

 private:
  explicit SectionFiller(std::shared_ptr<const model::ModelLayout> layout) : layout_(std::move(layout)) {}

  Status CheckRange(ByteRange range) const;
  Status CheckCut(uint64_t at) const;

  const std::shared_ptr<const model::ModelLayout> layout_;
  std::vector<LocalCopy> copies_;  // into the data section, by rising target_offset
  std::vector<uint64_t> ends_;     // of the bytes that each copy and all before it write; rising, too
  std::vector<LocalCopy> clipped_;
  std::vector<PlacedCopy> placed_;
};

}  // namespace lockstep::exporter
