// Makes every call that a service of lockstep.v1 has, each with an empty request, and prints how it ended:
//
//   every_call ADDRESS SERVICE TIMEOUT_MS CERT KEY CA    lines "OpenPull 7", by gRPC's numbers
//
// The calls come from the service's descriptor, so that none can be forgotten.
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <future>
#include <iostream>

#include "common/rpc/channel.h"
#include "proto/lockstep/v1/agent.pb.h"
#include "proto/lockstep/v1/receiver.pb.h"

namespace {

using google::protobuf::ServiceDescriptor;

const ServiceDescriptor* FindService(const std::string& name) {
  for (const auto* file :
       {lockstep::v1::AgentStatus::descriptor()->file(), lockstep::v1::ReceiverStatus::descriptor()->file()}) {
    if (const ServiceDescriptor* service = file->FindServiceByName(name)) return service;
  }
  return nullptr;
}

grpc::Status Call(grpc::GenericStub& stub, const std::string& method, std::chrono::milliseconds timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  const grpc::Slice nothing("", 0);
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> answer;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &response,
                 [&answer](const grpc::Status& status) { answer.set_value(status); });
  return answer.get_future().get();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 64;
  const lockstep::rpc::TlsOptions tls{.cert = argv[4], .key = argv[5], .ca = argv[6], .server_name = ""};
  const lockstep::Status ready = lockstep::rpc::PrepareTls(tls);
  const ServiceDescriptor* const service = FindService(argv[2]);
  if (!ready.ok() || service == nullptr) {
    std::cerr << "every_call: " << ready.ToString() << "\n";
    return 64;
  }
  grpc::GenericStub stub(lockstep::rpc::MakeChannel(argv[1], tls));
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string& method = service->method(i)->name();
    const std::string path = "/" + service->full_name() + "/" + method;
    std::cout << method << " " << Call(stub, path, std::chrono::milliseconds(std::atoi(argv[3]))).error_code() << "\n";
  }
  return 0;
}
