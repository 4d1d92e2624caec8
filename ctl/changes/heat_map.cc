#include "ctl/changes/heat_map.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <sstream>

#include "common/base/text.h"
#include "ctl/changes/groups.h"

namespace lockstep::ctl {
namespace {

constexpr size_t kMostCells = 200'000;
constexpr double kLeastShare = 1e-6;  // that has a colour of its own
// In pixels.
constexpr size_t kCell = 14;
constexpr size_t kNarrowCell = 6;  // of a version among several
constexpr size_t kGap = 4;         // between kinds
constexpr double kLetter = 6.8;    // of the font, on average
constexpr size_t kTop = 44;        // above the columns' names
constexpr size_t kLegend = 40;     // below the rows

// In a row for its layer and a column for its kind, the part of the kind that is behind the layer's number.
struct Cells {
  std::map<GroupKey, std::map<std::string, std::vector<GroupChange>>> rows;  // by column, of each version
  std::map<std::string, size_t> columns;                                     // their places
};

Cells Arrange(const std::vector<v1::VersionChanges>& versions) {
  Cells cells;
  for (size_t version = 0; version < versions.size(); ++version) {
    for (const v1::TensorChange& tensor : versions[version].tensors()) {
      const GroupKey layer = KeyOf(tensor, GroupBy::kLayer);
      const size_t behind = layer.second.empty() ? 0 : std::min(layer.first.size() + 1, tensor.kind().size());
      const std::string column = tensor.kind().substr(behind);
      cells.columns.emplace(column, 0);
      std::vector<GroupChange>& of_versions = cells.rows[layer][column];
      of_versions.resize(versions.size());
      of_versions[version].Add(tensor.change());
    }
  }
  size_t place = 0;
  for (auto& [column, at] : cells.columns) at = place++;
  return cells;
}

// From pale to dark blue over the share's logarithm.
std::string Colour(const GroupChange& cell) {
  if (cell.nonfinite > 0) return "#d62728";
  if (cell.changed == 0) return "#ffffff";
  const double at = 1 - std::clamp(std::log10(std::max(cell.share(), kLeastShare)) / std::log10(kLeastShare), 0.0, 1.0);
  const auto mix = [&](int pale, int dark) { return pale + static_cast<int>(std::lround((dark - pale) * at)); };
  std::ostringstream colour;
  colour << '#' << std::hex << std::setfill('0') << std::setw(2) << mix(0xde, 0x08) << std::setw(2) << mix(0xeb, 0x30)
         << std::setw(2) << mix(0xf7, 0x6b);
  return colour.str();
}

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : CleanText(text)) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else {
      escaped.push_back(c);
    }
  }
  return escaped;
}

std::string Text(size_t x, size_t y, std::string_view text, std::string_view more = "") {
  return Cat("<text x=\"", x, "\" y=\"", y, "\"", more, ">", Escaped(text), "</text>\n");
}

std::string Square(size_t x, size_t y, size_t width, const std::string& colour, const std::string& title) {
  return Cat("<rect x=\"", x, "\" y=\"", y, "\" width=\"", width, "\" height=\"", kCell, "\" fill=\"", colour,
             "\" stroke=\"#cccccc\" stroke-width=\"0.5\"><title>", Escaped(title), "</title></rect>\n");
}

size_t Longest(const std::vector<std::string>& names) {
  size_t longest = 0;
  for (const std::string& name : names) longest = std::max(longest, name.size());
  return static_cast<size_t>(static_cast<double>(longest) * kLetter) + 8;
}

std::string Legend(size_t x, size_t y) {
  std::string legend;
  for (int power = -6; power <= 0; ++power) {
    const GroupChange cell{.elements = 1'000'000,
                           .changed = static_cast<uint64_t>(std::llround(std::pow(10, 6 + power)))};
    const size_t at = x + static_cast<size_t>(power + 6) * 44;
    legend += Square(at, y, kCell, Colour(cell), "") + Text(at + kCell + 3, y + kCell - 3, Cat("1e", power));
  }
  const size_t at = x + 7 * 44;
  legend += Square(at, y, kCell, Colour({}), "") + Text(at + kCell + 3, y + kCell - 3, "unchanged");
  return legend + Square(at + 82, y, kCell, Colour({.nonfinite = 1}), "") +
         Text(at + 82 + kCell + 3, y + kCell - 3, "NaN or Inf");
}

}  // namespace

Result<std::string> HeatMap(const std::string& model, const std::vector<v1::VersionChanges>& versions) {
  const Cells cells = Arrange(versions);
  const size_t count = cells.rows.size() * cells.columns.size() * versions.size();
  if (count > kMostCells) {
    return Status(ErrorCode::kUsage, Cat("a picture of ", count, " cells is too large; name fewer versions"));
  }
  std::vector<std::string> rows;
  for (const auto& [layer, columns] : cells.rows) rows.push_back(NameOf(layer));
  std::vector<std::string> columns;
  for (const auto& [column, place] : cells.columns) columns.push_back(column);
  const size_t narrow = versions.size() == 1 ? kCell : kNarrowCell;
  const size_t pitch = versions.size() * narrow + kGap;
  const size_t left = Longest(rows);
  const size_t top = kTop + Longest(columns);
  const size_t width = std::max<size_t>(left + columns.size() * pitch, left + 520) + 20;
  const size_t height = top + rows.size() * kCell + kLegend;

  std::string svg = Cat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", width, "\" height=\"", height,
                        "\" viewBox=\"0 0 ", width, " ", height, "\" font-family=\"sans-serif\" font-size=\"11\">\n",
                        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
  const std::string which = versions.size() == 1
                                ? Cat("version ", versions[0].version().version())
                                : Cat("versions ", versions.front().version().version(), " to ",
                                      versions.back().version().version(), ", from left to right in each column");
  svg += Text(8, 20, Cat(model, ", ", which, ": the share of elements that changed"), " font-size=\"13\"");
  for (const auto& [column, place] : cells.columns) {
    const size_t x = left + place * pitch + (pitch - kGap) / 2 + 4;
    svg += Text(x, top - 6, column, Cat(" transform=\"rotate(-90 ", x, " ", top - 6, ")\""));
  }
  size_t y = top;
  for (const auto& [layer, of_columns] : cells.rows) {
    svg += Text(left - 6, y + kCell - 3, NameOf(layer), " text-anchor=\"end\"");
    for (const auto& [column, of_versions] : of_columns) {
      for (size_t version = 0; version < versions.size(); ++version) {
        const GroupChange& cell = of_versions[version];
        const std::string title =
            Cat(NameOf(layer), " ", column, ", version ", versions[version].version().version(), ": ", cell.changed,
                " of ", cell.elements, ", norm ", std::sqrt(cell.squares), ", NaN or Inf ", cell.nonfinite);
        svg += Square(left + cells.columns.at(column) * pitch + version * narrow, y, narrow, Colour(cell), title);
      }
    }
    y += kCell;
  }
  return svg + Legend(left, y + 14) + "</svg>";
}

}  // namespace lockstep::ctl
