#include "export_plugin/exporter/tracked_exchange.h"

#include "common/base/text.h"

namespace lockstep::exporter {

void TrackedExchange::Lose(uint32_t peer, const Status& reason) {
  lost_.insert(peer);
  if (!first_loss_.ok()) return;
  first_loss_ = Status(ErrorCode::kUnavailable, Cat("the exchange with rank ", peer, " is broken: ", reason.message(),
                                                    "; start the trainer's ranks again"));
}

TrackedExchange::Pending TrackedExchange::Send(uint32_t peer, const void* data, uint64_t bytes) {
  if (!Alive(peer)) return {};
  const auto transfer = exchange_->StartSend(peer, data, bytes);
  if (transfer.ok()) return {*transfer, peer};
  Lose(peer, transfer.status());
  return {};
}

TrackedExchange::Pending TrackedExchange::Receive(uint32_t peer, void* data, uint64_t bytes) {
  if (!Alive(peer)) return {};
  const auto transfer = exchange_->StartReceive(peer, data, bytes);
  if (transfer.ok()) return {*transfer, peer};
  Lose(peer, transfer.status());
  return {};
}

void TrackedExchange::Wait(Pending& pending) {
  if (pending.transfer == 0) return;
  const Status status = exchange_->Wait(pending.transfer);
  if (!status.ok()) Lose(pending.peer, status);
  pending = {};
}

}  // namespace lockstep::exporter
