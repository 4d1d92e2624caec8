// Text for people: columns, and times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::ctl {

// A header line and rows, each column as wide as its widest cell, two spaces apart.
class Table {
 public:
  // A title that starts with '>' makes a right-aligned column; the mark is not shown.
  explicit Table(std::vector<std::string> titles);

  // REQUIRES as many cells as titles.
  void AddRow(std::vector<std::string> cells);

  bool empty() const { return rows_.size() == 1; }

  std::string ToString() const;

 private:
  std::vector<bool> right_aligned_;
  std::vector<std::vector<std::string>> rows_;  // the titles first
};

// "40 s", "5 min": roughly, as one looks at it.
std::string SpanText(uint64_t seconds);

// How long ago something was when it was `now`; "-" when that is not known.
std::string AgeText(int64_t unix_ns, int64_t now_unix_ns);

}  // namespace lockstep::ctl
