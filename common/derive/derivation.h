// Derivation: how the bytes of a derived model follow from those of its source.
//
// A source asks for derived models by an attachment, kRequests: names, and the config.json that each shall have. The
// config's quantization_config names the format. A derived version is a function of its source's bytes and of this
// description alone.
//
// The work is cut into parts. Each reads some ranges of the source's data section and writes some of the derived one,
// and all parts together write every byte once. Immutable; any number of threads may make parts at once.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/derive/format.h"
#include "common/model/layout.h"

namespace lockstep::derive {

// The attachment of a source: a JSON object of model names to their config.json.
inline constexpr std::string_view kRequests = "lockstep_derive.json";
inline constexpr size_t kMaxRequests = 8;

class Derivation {
 public:
  // The derivations that `source` asks for; none without the attachment. kBadData names the derived model and what is
  // wrong with its config or with a tensor.
  static Result<std::vector<std::shared_ptr<const Derivation>>> All(const model::ModelLayout& source);

  const std::string& model() const { return model_; }  // its name
  const std::string& format() const { return format_; }
  size_t quantised() const { return quantised_; }  // weights
  // The run that derived versions of a run of the source are of: another layout or format is another run, and equal
  // numbers of equal runs are equal bytes.
  RunId RunOf(const RunId& source) const;
  const std::shared_ptr<const model::ModelLayout>& layout() const { return layout_; }

  size_t part_count() const { return parts_.size(); }
  std::vector<ByteRange> SourcesOf(size_t part) const;
  std::vector<ByteRange> TargetsOf(size_t part) const;

  // Copies a range of the source's data section. An error ends the part.
  using Read = std::function<Status(const ByteRange& range, std::byte* to)>;
  // Gives room for some rows of a weight, or for bytes that stay: `scales` has 0 bytes where they have none. Aligned as
  // the data section is. The room that was given before is full by then.
  struct Room {
    std::byte* values;
    std::byte* scales;
  };
  using Place = std::function<Room(const ByteRange& values, const ByteRange& scales)>;
  // Writes the part's ranges of the derived data section where `place` says. Returns the first error of `read`.
  Status Make(size_t part, const Read& read, const Place& place) const;

 private:
  // Rows of one weight, or bytes that stay as they are.
  struct Band {
    ByteRange source;
    const Format* format = nullptr;  // null: a copy
    kernels::FloatType type{};
    uint64_t rows = 0;
    uint64_t columns = 0;
    ByteRange values;
    ByteRange scales;
  };
  struct Part {
    std::vector<Band> bands;        // of one format; several only where it has a global scale
    std::vector<uint64_t> globals;  // where that goes
  };
  class Builder;

  Derivation() = default;

  std::string model_;
  std::string format_;
  size_t quantised_ = 0;
  std::shared_ptr<const model::ModelLayout> layout_;
  std::vector<Part> parts_;
};

}  // namespace lockstep::derive
