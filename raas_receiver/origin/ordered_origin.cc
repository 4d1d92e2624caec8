#include "raas_receiver/origin/ordered_origin.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "common/telemetry/log.h"
#include "raas_receiver/origin/heads.h"

namespace lockstep::origin {
namespace {

struct Chosen {
  size_t origin;
  Head head;
};

// The first origin that is there and has a version committed at `least_unix_ns` or later. With `first_is_right`, the
// first origin of all may have any version. Nothing: no origin fits, or one before it has not answered yet.
std::optional<Chosen> Choose(const std::vector<Heads::Announced>& heads, int64_t least_unix_ns, bool first_is_right) {
  for (size_t i = 0; i < heads.size(); ++i) {
    const std::optional<Head>& head = heads[i].head;
    if (!head && heads[i].lost.ok()) return std::nullopt;  // it is asked first, and has not answered yet
    if (!head) continue;
    if ((i == 0 && first_is_right) || head->committed_unix_ns >= least_unix_ns) return Chosen{i, *head};
  }
  return std::nullopt;
}

// Where none is to be chosen: the error of the first that has one. OK: some have not answered yet.
Status Lost(const std::vector<Heads::Announced>& heads) {
  Status first;
  for (const Heads::Announced& announced : heads) {
    if (!announced.head && announced.lost.ok()) return OkStatus();
    if (first.ok() && !announced.head) first = announced.lost;
  }
  return first;
}

class OrderedOrigin final : public Origin {
 public:
  OrderedOrigin(std::vector<std::unique_ptr<Origin>> origins, int64_t held_unix_ns)
      : origins_(std::move(origins)), announced_unix_ns_(held_unix_ns) {}

  std::string name() const override { return InUse().name(); }
  std::string share() const override { return InUse().share(); }
  Abilities can() const override {
    Abilities can;
    for (const auto& origin : origins_) {
      can.follow |= origin->can().follow;
      can.report |= origin->can().report;
    }
    return can;
  }

  Status Watch(std::stop_token stop, const std::function<void(const Head&)>& on_head) override {
    Heads heads(origins_);
    std::optional<std::pair<VersionRef, int64_t>> announced;  // and when the log's writer wrote it
    while (true) {
      LS_ASSIGN_OR_RETURN(const auto known, heads.Next(stop));
      const auto chosen = Choose(known, announced_unix_ns_, origins_[0]->can().report);
      if (!chosen) {
        LS_RETURN_IF_ERROR(Lost(known));
        continue;
      }
      const bool other = in_use_.exchange(chosen->origin) != chosen->origin;
      if (other) telemetry::Log(telemetry::LogLevel::kInfo, "source_changed", {{"source", name()}});
      const auto news = std::pair(chosen->head.held, chosen->head.written_unix_ns);
      if (!other && announced == news && !chosen->head.held.nothing()) continue;
      announced = news;
      announced_unix_ns_ = std::max(announced_unix_ns_, chosen->head.committed_unix_ns);
      on_head(chosen->head);
    }
  }

  Result<Layout> GetLayout(std::stop_token stop) override { return InUse().GetLayout(std::move(stop)); }
  Result<std::unique_ptr<Pull>> Open(const Want& want, std::stop_token stop) override {
    return InUse().Open(want, std::move(stop));
  }
  void Follow(const Want& from, std::stop_token stop) override { InUse().Follow(from, std::move(stop)); }
  Result<std::string> Report(v1::ReportRequest report, std::stop_token stop) override {
    return InUse().Report(std::move(report), std::move(stop));
  }

 private:
  Origin& InUse() const { return *origins_[in_use_]; }

  const std::vector<std::unique_ptr<Origin>> origins_;
  std::atomic<size_t> in_use_ = 0;
  int64_t announced_unix_ns_;  // of Watch: when what was announced last was committed
};

}  // namespace

std::unique_ptr<Origin> NewOrderedOrigin(std::vector<std::unique_ptr<Origin>> origins, int64_t held_unix_ns) {
  if (origins.size() == 1) return std::move(origins.front());
  return std::make_unique<OrderedOrigin>(std::move(origins), held_unix_ns);
}

}  // namespace lockstep::origin
