// Makes every call that a service of lockstep.v1 has, each with a request of nothing but the model, where it has one,
// and prints how it ended:
//
//   every_call ADDRESS SERVICE MODEL TIMEOUT_MS CERT KEY CA    lines "OpenPull 7", by gRPC's numbers
//
// The calls come from the service's descriptor, so that none can be forgotten.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <future>
#include <iostream>
#include <memory>

#include "common/rpc/channel.h"
#include "proto/lockstep/v1/agent.pb.h"
#include "proto/lockstep/v1/receiver.pb.h"

namespace {

using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

const ServiceDescriptor* FindService(const std::string& name) {
  for (const auto* file :
       {lockstep::v1::AgentStatus::descriptor()->file(), lockstep::v1::ReceiverStatus::descriptor()->file()}) {
    if (const ServiceDescriptor* service = file->FindServiceByName(name)) return service;
  }
  return nullptr;
}

grpc::Slice RequestFor(const MethodDescriptor* method, const std::string& model) {
  const auto* empty = google::protobuf::MessageFactory::generated_factory()->GetPrototype(method->input_type());
  const std::unique_ptr<google::protobuf::Message> request(empty->New());
  const auto* field = method->input_type()->FindFieldByName("model");
  if (field != nullptr) request->GetReflection()->SetString(request.get(), field, model);
  return grpc::Slice(request->SerializeAsString());
}

grpc::Status Call(grpc::GenericStub& stub, const std::string& method, const grpc::Slice& message,
                  std::chrono::milliseconds timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  const grpc::ByteBuffer request(&message, 1);
  grpc::ByteBuffer response;
  std::promise<grpc::Status> answer;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &response,
                 [&answer](const grpc::Status& status) { answer.set_value(status); });
  return answer.get_future().get();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 8) return 64;
  const lockstep::rpc::TlsOptions tls{.cert = argv[5], .key = argv[6], .ca = argv[7], .server_name = ""};
  const lockstep::Status ready = lockstep::rpc::PrepareTls(tls);
  const ServiceDescriptor* const service = FindService(argv[2]);
  if (!ready.ok() || service == nullptr) {
    std::cerr << "every_call: " << ready.ToString() << "\n";
    return 64;
  }
  const std::chrono::milliseconds timeout(std::atoi(argv[4]));
  const auto channel = lockstep::rpc::LastingChannel(argv[1], tls).Get();
  if (!channel.ok()) {
    std::cerr << "every_call: " << channel.status().ToString() << "\n";
    return 1;
  }
  grpc::GenericStub stub(*channel);
  for (int i = 0; i < service->method_count(); ++i) {
    const MethodDescriptor* const method = service->method(i);
    const std::string path = "/" + service->full_name() + "/" + method->name();
    std::cout << method->name() << " " << Call(stub, path, RequestFor(method, argv[3]), timeout).error_code() << "\n";
  }
  return 0;
}
