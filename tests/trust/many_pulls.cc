// Opens full and standing pulls of a model as often as asked, ends none, and prints how each call ended:
//
//   many_pulls ADDRESS MODEL TIMES CERT KEY CA    lines "pull 0 " and "standing 8 why", by gRPC's numbers
#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <iostream>

#include "common/rpc/channel.h"
#include "proto/lockstep/v1/agent.grpc.pb.h"

namespace {

using lockstep::v1::TrainerAgent;

template <typename Request, typename Response>
grpc::Status Call(TrainerAgent::Stub& stub,
                  grpc::Status (TrainerAgent::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response& response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  return (stub.*method)(&context, request, &response);
}

void Print(const char* call, const grpc::Status& status) {
  std::cout << call << " " << status.error_code() << " " << status.error_message() << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 64;
  const lockstep::rpc::TlsOptions tls{.cert = argv[4], .key = argv[5], .ca = argv[6], .server_name = ""};
  if (!lockstep::rpc::PrepareTls(tls).ok()) return 64;
  const auto stub = TrainerAgent::NewStub(lockstep::rpc::MakeChannel(argv[1], tls));
  lockstep::v1::GetLayoutRequest which;
  which.set_model(argv[2]);
  lockstep::v1::Layout layout;
  if (const auto status = Call(*stub, &TrainerAgent::Stub::GetLayout, which, layout); !status.ok()) {
    std::cerr << "many_pulls: " << status.error_message() << "\n";
    return 1;
  }
  lockstep::v1::OpenPullRequest request;
  request.set_model(argv[2]);
  request.set_receiver("greedy");
  request.set_peer("raas_receiver/0.2.0 protocol=1");
  request.set_layout_digest(layout.digest());
  for (int i = 0; i < 2 * std::atoi(argv[3]); ++i) {
    request.set_standing(i % 2 == 1);
    lockstep::v1::PullPlan plan;
    Print(request.standing() ? "standing" : "pull", Call(*stub, &TrainerAgent::Stub::OpenPull, request, plan));
  }
  return 0;
}
