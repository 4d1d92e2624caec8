// CallbackExchange: the exchange that a host program gives through the C ABI.
#pragma once

#include "common/base/text.h"
#include "export_plugin/exporter/exchange.h"
#include "export_plugin/lockstep.h"

namespace lockstep {

class CallbackExchange : public exporter::Exchange {
 public:
  explicit CallbackExchange(const lockstep_exchange& callbacks) : callbacks_(callbacks) {}

  static Status Check(const lockstep_exchange& callbacks) {
    const bool whole = callbacks.start_send != nullptr && callbacks.start_receive != nullptr &&
                       callbacks.wait != nullptr && callbacks.error != nullptr;
    return whole ? OkStatus() : Status(ErrorCode::kBadData, "the exchange lacks one of its functions");
  }

  Result<Transfer> StartSend(uint32_t peer, const void* data, uint64_t bytes) override {
    Transfer transfer = 0;
    const int code = callbacks_.start_send(callbacks_.context, peer, data, bytes, &transfer);
    return Started(code, transfer, peer);
  }
  Result<Transfer> StartReceive(uint32_t peer, void* data, uint64_t bytes) override {
    Transfer transfer = 0;
    const int code = callbacks_.start_receive(callbacks_.context, peer, data, bytes, &transfer);
    return Started(code, transfer, peer);
  }
  Status Wait(Transfer transfer) override { return Outcome(callbacks_.wait(callbacks_.context, transfer)); }

 private:
  Result<Transfer> Started(int code, Transfer transfer, uint32_t peer) {
    LS_RETURN_IF_ERROR(Outcome(code));
    if (transfer != 0) return transfer;
    return Status(ErrorCode::kUnavailable, Cat("the exchange with rank ", peer, " gave no transfer"));
  }

  // Whatever the program calls it: nobody knows which message would come next.
  Status Outcome(int code) {
    if (code == LOCKSTEP_OK) return OkStatus();
    const char* sentence = callbacks_.error(callbacks_.context);
    const bool silent = sentence == nullptr || *sentence == '\0';
    return {ErrorCode::kUnavailable, silent ? Cat("the exchange failed with code ", code) : CleanText(sentence)};
  }

  const lockstep_exchange callbacks_;
};

}  // namespace lockstep
