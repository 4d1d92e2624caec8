#include "raas_receiver/targets/group_members.h"

#include <algorithm>
#include <iterator>

#include "common/base/text.h"
#include "common/telemetry/log.h"
#include "common/telemetry/log_limit.h"

namespace lockstep::targets {

void LogRefused(const std::string& model, const RankConnection& rank, const Status& why) {
  static telemetry::LogLimit reasons;
  const uint64_t times = reasons.Count(Cat(model, ": ", rank.Label(), ": ", why.message()));
  if (times == 0) return;
  telemetry::LogWarn(
      "engine_rank_refused", why,
      {{"model", model}, {"engine", rank.engine()}, {"rank", rank.rank()}, {"pid", rank.pid()}, {"times", times}});
}

GroupMembers::GroupMembers(std::string model, const RankConnection& first)
    : model_(std::move(model)),
      engine_(first.engine()),
      incarnation_(first.incarnation()),
      ranks_(first.description().world),
      newcomers_(ranks_.size()) {}

std::vector<std::shared_ptr<RankConnection>> GroupMembers::present() const {
  std::vector<std::shared_ptr<RankConnection>> ranks;
  std::copy_if(ranks_.begin(), ranks_.end(), std::back_inserter(ranks), [](const auto& rank) { return rank; });
  return ranks;
}

Status GroupMembers::MakeRoom(const RankConnection& rank) {
  const placement::RankDescription& described = rank.description();
  if (described.world != world()) {
    return {ErrorCode::kBadData,
            Cat(rank.Label(), " says ", described.world, " ranks, the others of its engine ", world())};
  }
  if (rank.incarnation() != incarnation_ && attached() != 0) {
    return {ErrorCode::kState,
            Cat(rank.Label(), " was started with others than process ", present().front()->pid(),
                ", which is attached: end the processes of the earlier start, or give the ranks of one engine one ",
                "incarnation")};
  }
  const std::shared_ptr<RankConnection>& taken = ranks_[described.rank];
  if (!taken) return OkStatus();
  if (!taken->gone()) {
    return {ErrorCode::kState, Cat(rank.Label(), ": process ", taken->pid(), " has that place; end it first")};
  }
  Lose(described.rank, /*left=*/true);
  return OkStatus();
}

void GroupMembers::Join(std::shared_ptr<RankConnection> rank) {
  const uint32_t index = rank->rank();
  telemetry::Log(telemetry::LogLevel::kInfo, "engine_rank_attached",
                 {{"model", model_},
                  {"engine", engine_},
                  {"rank", index},
                  {"world", world()},
                  {"pid", rank->pid()},
                  {"version", rank->claim().version}});
  ranks_[index] = std::move(rank);
  newcomers_[index] = true;
  ++changes_;
}

void GroupMembers::Drop(size_t rank, const Status& why) {
  telemetry::LogWarn("engine_rank_lost", why,
                     {{"model", model_}, {"engine", engine_}, {"rank", rank}, {"pid", ranks_[rank]->pid()}});
  Lose(rank, /*left=*/false);
}

void GroupMembers::Lose(size_t rank, bool left) {
  RankConnection& lost = *ranks_[rank];
  lost_.push_back({engine_, lost.rank(), lost.pid(), lost.goes_on_with(), left});
  lost.HangUp();
  Forget(rank);
}

void GroupMembers::Refuse(size_t rank, const Status& why) {
  LogRefused(model_, *ranks_[rank], why);
  ranks_[rank]->SendRefused(why);
  Forget(rank);
}

void GroupMembers::Forget(size_t rank) {
  ranks_[rank] = nullptr;
  ++changes_;
}

bool GroupMembers::DropGone() {
  const uint64_t before = changes_;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank] && ranks_[rank]->gone()) Lose(rank, /*left=*/true);
  }
  return changes_ != before;
}

Status GroupMembers::Welcome() {
  return ForEach([&](RankConnection& rank) {
    const bool newcomer = newcomers_[rank.rank()];
    newcomers_[rank.rank()] = false;
    return newcomer ? rank.SendAttached() : OkStatus();
  });
}

}  // namespace lockstep::targets
