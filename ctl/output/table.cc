#include "ctl/output/table.h"

#include <algorithm>

#include "common/base/text.h"

namespace lockstep::ctl {

Table::Table(std::vector<std::string> titles) {
  for (std::string& title : titles) {
    right_aligned_.push_back(title.starts_with('>'));
    if (right_aligned_.back()) title.erase(0, 1);
  }
  rows_.push_back(std::move(titles));
}

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) {
    cell = CleanText(cell);
    std::replace(cell.begin(), cell.end(), '\n', ' ');
  }
  rows_.push_back(std::move(cells));
}

std::string Table::ToString() const {
  std::vector<size_t> widths(right_aligned_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (right_aligned_[i] ? padding + row[i] : row[i] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string SpanText(uint64_t seconds) {
  if (seconds < 120) return Cat(seconds, " s");
  if (seconds < 7200) return Cat(seconds / 60, " min");
  return seconds < 172'800 ? Cat(seconds / 3600, " h") : Cat(seconds / 86'400, " d");
}

std::string AgeText(int64_t unix_ns, int64_t now_unix_ns) {
  if (unix_ns == 0 || now_unix_ns == 0) return "-";
  return SpanText(static_cast<uint64_t>(std::max<int64_t>(0, now_unix_ns - unix_ns)) / 1'000'000'000);
}

}  // namespace lockstep::ctl
