#include "raas_receiver/engine/placement/plan/tied_parameters.h"

#include <algorithm>
#include <tuple>

#include "common/base/text.h"

namespace lockstep::engine {
namespace {

// Rows of parameters that lie between one another (columns of one memory) are compared one by one, up to so many.
constexpr uint64_t kMaxRows = uint64_t{1} << 20;

// The bytes from a parameter's first element to its last.
struct Reach {
  uint32_t memory = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  size_t parameter = 0;

  auto operator<=>(const Reach&) const = default;
};

bool SliceLess(const Slice& a, const Slice& b) {
  return std::tie(a.tensor, a.from, a.shape, a.at) < std::tie(b.tensor, b.from, b.shape, b.at);
}

bool PaddingLess(const Padding& a, const Padding& b) {
  return std::tie(a.at, a.shape) < std::tie(b.at, b.shape);
}

template <typename T, typename Less>
bool SameInAnyOrder(std::vector<T> a, std::vector<T> b, Less less) {
  std::sort(a.begin(), a.end(), less);
  std::sort(b.begin(), b.end(), less);
  return a == b;
}

bool IsTied(const EngineParameter& a, const EngineParameter& b) {
  return a.memory == b.memory && a.offset == b.offset && a.dtype == b.dtype && a.shape == b.shape &&
         ViewOf(a).strides == ViewOf(b).strides && SameInAnyOrder(a.slices, b.slices, SliceLess) &&
         SameInAnyOrder(a.padding, b.padding, PaddingLess);
}

// A row of a parameter: bytes without a gap.
struct Row {
  uint64_t begin = 0;
  uint64_t end = 0;
  size_t parameter = 0;

  auto operator<=>(const Row&) const = default;
};

// Steps of a view, in bytes, outermost first; then what is left is one row of `row_bytes`.
struct RowSteps {
  std::vector<std::pair<uint64_t, uint64_t>> steps;  // step and count
  uint64_t row_bytes = 0;
  uint64_t rows = 1;
};

RowSteps StepsOf(const EngineParameter& parameter) {
  const layout::TensorView view = ViewOf(parameter);
  RowSteps rows{.row_bytes = view.element_bytes};
  for (size_t k = 0; k < view.shape.size(); ++k) {
    if (view.shape[k] > 1) rows.steps.emplace_back(view.strides[k] * view.element_bytes, view.shape[k]);
  }
  std::sort(rows.steps.begin(), rows.steps.end(), std::greater<>());
  while (!rows.steps.empty() && rows.steps.back().first == rows.row_bytes) {
    rows.row_bytes *= rows.steps.back().second;
    rows.steps.pop_back();
  }
  for (const auto& [step, count] : rows.steps) rows.rows *= count;
  return rows;
}

void AppendRows(const RowSteps& all, size_t level, Row row, std::vector<Row>& rows) {
  if (level == all.steps.size()) {
    rows.push_back(row);
    return;
  }
  const auto [step, count] = all.steps[level];
  for (uint64_t i = 0; i < count; ++i) {
    AppendRows(all, level + 1, row, rows);
    row.begin += step;
    row.end += step;
  }
}

// The reaches of one cluster meet one another, directly or through others.
Status CheckRows(const RankDescription& rank, const std::vector<Reach>& cluster) {
  const auto both = [&](size_t a, size_t b) {
    return Cat("rank ", rank.rank, "'s parameters \"", rank.parameters[a].name, "\" and \"", rank.parameters[b].name,
               "\"");
  };
  std::vector<Row> rows;
  uint64_t count = 0;
  for (const Reach& reach : cluster) {
    const RowSteps steps = StepsOf(rank.parameters[reach.parameter]);
    count += steps.rows;
    if (steps.rows > kMaxRows || count > kMaxRows) {
      return {ErrorCode::kBadData, Cat(both(cluster[0].parameter, cluster[1].parameter), " lie between one another in ",
                                       "more than ", kMaxRows, " rows")};
    }
    AppendRows(steps, 0, {reach.begin, reach.begin + steps.row_bytes, reach.parameter}, rows);
  }
  std::sort(rows.begin(), rows.end());
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].begin >= rows[i - 1].end) continue;
    return {ErrorCode::kBadData, Cat(both(rows[i - 1].parameter, rows[i].parameter), " share byte ", rows[i].begin,
                                     " of memory ", cluster[0].memory, " without being the same")};
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<bool>> FindTied(const RankDescription& rank) {
  std::vector<bool> tied(rank.parameters.size());
  std::vector<Reach> reaches;
  for (size_t i = 0; i < rank.parameters.size(); ++i) {
    const EngineParameter& parameter = rank.parameters[i];
    const uint64_t bytes = ExtentBytes(parameter);
    if (bytes != 0) reaches.push_back({parameter.memory, parameter.offset, parameter.offset + bytes, i});
  }
  std::sort(reaches.begin(), reaches.end());
  for (size_t i = 0; i < reaches.size();) {
    std::vector<Reach> cluster{reaches[i]};
    uint64_t end = reaches[i].end;
    for (++i; i < reaches.size() && reaches[i].memory == cluster[0].memory && reaches[i].begin < end; ++i) {
      end = std::max(end, reaches[i].end);
      tied[reaches[i].parameter] =
          IsTied(rank.parameters[cluster.back().parameter], rank.parameters[reaches[i].parameter]);
      if (!tied[reaches[i].parameter]) cluster.push_back(reaches[i]);
    }
    if (cluster.size() > 1) LS_RETURN_IF_ERROR(CheckRows(rank, cluster));
  }
  return tied;
}

}  // namespace lockstep::engine
