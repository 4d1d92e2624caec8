// The functions of lockstep.h: a publisher is a model that is written in place, or a sharded one that is copied by a
// plan.
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "common/base/text.h"
#include "common/base/version.h"
#include "export_plugin/abi.h"
#include "export_plugin/convert.h"
#include "export_plugin/exporter/exporter.h"
#include "export_plugin/exporter/importer.h"
#include "export_plugin/in_place.h"
#include "export_plugin/lockstep.h"
#include "export_plugin/plan/shard_description.h"
#include "export_plugin/questions.h"

using namespace lockstep;  // NOLINT: this file is the library's outer face

struct lockstep_publisher {
  std::unique_ptr<abi::InPlace> in_place;  // this
  std::unique_ptr<exporter::Exchange> exchange;
  std::unique_ptr<exporter::Exporter> exporter;  // or this, which uses the exchange
  size_t locals = 0;                             // of the exporter
  std::string run;                               // empty: this rank does not talk to the agent
  std::string description;
  std::string error;
};

namespace {

// The sentence of this thread's last failure without a handle.
std::string& ThreadError() {
  thread_local std::string error;
  return error;
}

template <typename Body>
int OnHandle(lockstep_publisher* publisher, Body body) {
  if (publisher != nullptr) return abi::Guarded(publisher->error, body);
  ThreadError() = "the publisher is null";
  return LOCKSTEP_BAD_DATA;
}

// Of a model that is written in place.
template <typename Body>
int InPlace(lockstep_publisher* publisher, Body body) {
  return OnHandle(publisher, [&]() -> Status {
    if (publisher->in_place != nullptr) return body(*publisher->in_place);
    return {ErrorCode::kState, "the model was opened with descriptions; call lockstep_publish"};
  });
}

// Of a sharded one.
template <typename Body>
int Sharded(lockstep_publisher* publisher, Body body) {
  return OnHandle(publisher, [&]() -> Status {
    if (publisher->exporter != nullptr) return body(*publisher->exporter);
    return {ErrorCode::kState, "the model was opened with tensors; call lockstep_begin"};
  });
}

Status Open(const lockstep_options* options, lockstep_publisher** out) {
  if (options == nullptr || out == nullptr) return {ErrorCode::kBadData, "options and publisher must be given"};
  // Before all else: a struct of another version may be shorter.
  if (options->abi_version != LOCKSTEP_ABI_VERSION) {
    return {ErrorCode::kProtocol,
            Cat("built against ABI version ", options->abi_version, "; this library has ", LOCKSTEP_ABI_VERSION)};
  }
  auto publisher = std::make_unique<lockstep_publisher>();
  if (options->descriptions == nullptr) {
    LS_ASSIGN_OR_RETURN(client::RankOptions converted, abi::ToRankOptions(*options));
    std::vector<std::string> names;
    for (size_t i = 0; i < options->tensor_count; ++i) names.emplace_back(options->tensors[i].name);
    std::vector<size_t> owned(options->tensor_count);
    std::iota(owned.begin(), owned.end(), 0);
    if (options->owned != nullptr) owned.assign(options->owned, options->owned + options->owned_count);
    LS_ASSIGN_OR_RETURN(publisher->in_place,
                        abi::InPlace::Open(std::move(converted), std::move(names), owned, options->threads));
    publisher->run = ToHex(publisher->in_place->client().run());
  } else {
    LS_ASSIGN_OR_RETURN(exporter::ExporterOptions converted, abi::ToExporterOptions(*options));
    if (options->exchange != nullptr) {
      LS_ASSIGN_OR_RETURN(publisher->exchange, abi::ToExchange(*options->exchange));
      converted.exchange = publisher->exchange.get();
    }
    publisher->locals = options->local_count;
    LS_ASSIGN_OR_RETURN(publisher->exporter, exporter::Exporter::Open(std::move(converted)));
    if (publisher->exporter->writes()) publisher->run = ToHex(publisher->exporter->run());
  }
  *out = publisher.release();
  return OkStatus();
}

std::span<const void* const> Given(const lockstep_publisher& publisher, const void* const* addresses) {
  return {addresses, addresses == nullptr ? 0 : publisher.locals};
}

nlohmann::ordered_json DescribeTensors(const std::vector<model::TensorMeta>& tensors) {
  nlohmann::ordered_json described = nlohmann::ordered_json::array();
  for (const model::TensorMeta& tensor : tensors) {
    described.push_back({{"name", tensor.name},
                         {"dtype", model::FindDType(tensor.dtype)->name},
                         {"shape", tensor.shape},
                         {"offset", tensor.offset}});
  }
  return described;
}

std::string Describe(const exporter::Exporter& exporter) {
  return nlohmann::ordered_json{{"plan", ToHex(exporter.plan().digest)},
                                {"bytes", exporter.plan().bytes},
                                {"bucket_bytes", exporter.bucket_bytes()},
                                {"writes", exporter.writes()},
                                {"pinned", exporter.pinned()},
                                {"pin_trouble", exporter.pin_trouble().message()},
                                {"tensors", DescribeTensors(exporter.layout().tensors())}}
      .dump();
}

// `*given` is for lockstep_free.
Status GiveText(const std::string& text, char** given) {
  *given = ::strdup(text.c_str());
  return *given != nullptr ? OkStatus() : Status(ErrorCode::kResourceExhausted, "out of memory");
}

Status TensorsMeta(const char* const* descriptions, uint32_t ranks, char** json) {
  if (json == nullptr) return {ErrorCode::kBadData, "json must be given"};
  LS_ASSIGN_OR_RETURN(const std::vector<std::string> texts, abi::ToDescriptions(descriptions, ranks));
  LS_ASSIGN_OR_RETURN(const std::vector<plan::ShardDescription> parsed, exporter::ParseDescriptions(texts));
  LS_ASSIGN_OR_RETURN(const layout::TrainingModel model, plan::BuildTrainingModel(parsed));
  return GiveText(DescribeTensors(layout::HuggingFaceTensors(model)).dump(), json);
}

template <typename Query>
int Ask(Status (*wait)(const Query& query, std::string* answer), const Query* query, char** json) {
  if (json != nullptr) *json = nullptr;
  return abi::Guarded(ThreadError(), [&]() -> Status {
    if (query == nullptr || json == nullptr) return {ErrorCode::kBadData, "query and json must be given"};
    std::string answer;
    const Status answered = wait(*query, &answer);
    if (!answer.empty()) LS_RETURN_IF_ERROR(GiveText(answer, json));
    return answered;
  });
}

}  // namespace

extern "C" {

int lockstep_open(const lockstep_options* options, lockstep_publisher** publisher) {
  if (publisher != nullptr) *publisher = nullptr;
  return abi::Guarded(ThreadError(), [&] { return Open(options, publisher); });
}

int lockstep_begin(lockstep_publisher* publisher, uint64_t version, void** data) {
  return InPlace(publisher, [&](abi::InPlace& model) -> Status {
    if (data == nullptr) return {ErrorCode::kBadData, "data must be given"};
    LS_ASSIGN_OR_RETURN(*data, model.Begin(version));
    return OkStatus();
  });
}

int lockstep_write(lockstep_publisher* publisher, const lockstep_source* sources, size_t count) {
  return InPlace(publisher, [&](abi::InPlace& model) -> Status {
    if (sources == nullptr && count > 0) return {ErrorCode::kBadData, "sources must be given"};
    return model.Write({sources, count});
  });
}

int lockstep_tensors_done(lockstep_publisher* publisher, const size_t* tensors, size_t count) {
  return InPlace(publisher, [&](abi::InPlace& model) -> Status {
    if (tensors == nullptr && count > 0) return {ErrorCode::kBadData, "tensors must be given"};
    return model.TensorsDone({tensors, count});
  });
}

int lockstep_commit(lockstep_publisher* publisher, const char* label) {
  return InPlace(publisher, [&](abi::InPlace& model) { return model.Commit(abi::TextOrEmpty(label)); });
}

int lockstep_publish(lockstep_publisher* publisher, uint64_t version, const char* label, const void* const* addresses) {
  return Sharded(publisher, [&](exporter::Exporter& exporter) -> Status {
    const Status labelled = exporter.SetLabel(abi::TextOrEmpty(label));
    if (labelled.ok()) return exporter.Publish(version, Given(*publisher, addresses));
    (void)exporter.Abort(version, labelled);  // the other ranks would wait
    return labelled;
  });
}

int lockstep_abort(lockstep_publisher* publisher, uint64_t version, const char* reason) {
  return OnHandle(publisher, [&]() -> Status {
    std::string sentence = CleanText(abi::TextOrEmpty(reason));
    if (publisher->in_place != nullptr) return publisher->in_place->Abort(version, sentence);
    if (sentence.empty()) sentence = "no reason given";
    return publisher->exporter->Abort(version, {ErrorCode::kAborted, sentence});
  });
}

int lockstep_fill(lockstep_publisher* publisher, const void* const* addresses, uint64_t offset, uint64_t bytes,
                  void* target) {
  return Sharded(publisher, [&](exporter::Exporter& exporter) -> Status {
    if (target == nullptr) return {ErrorCode::kBadData, "the memory to fill must be given"};
    return exporter.Fill({offset, bytes}, static_cast<std::byte*>(target), Given(*publisher, addresses));
  });
}

const char* lockstep_run(const lockstep_publisher* publisher) {
  return publisher == nullptr ? "" : publisher->run.c_str();
}

uint64_t lockstep_committed_version(const lockstep_publisher* publisher) {
  if (publisher == nullptr) return 0;
  return publisher->in_place != nullptr ? publisher->in_place->client().committed_version()
                                        : publisher->exporter->committed_version();
}

int lockstep_stats(const lockstep_publisher* publisher, lockstep_publish_stats* stats) {
  if (publisher == nullptr || stats == nullptr) return LOCKSTEP_BAD_DATA;
  const exporter::PublishStats& last =
      publisher->in_place != nullptr ? publisher->in_place->stats() : publisher->exporter->stats();
  *stats = {.bytes_copied = last.bytes_copied,
            .bytes_frozen = last.bytes_frozen,
            .bytes_sent = last.bytes_sent,
            .bytes_received = last.bytes_received,
            .buckets_sent = last.buckets_sent,
            .buckets_received = last.buckets_received,
            .exchange_memory_bytes = last.exchange_memory_bytes,
            .begin_us = static_cast<uint64_t>(last.begin_seconds * 1e6),
            .total_us = static_cast<uint64_t>(last.total_seconds * 1e6)};
  return LOCKSTEP_OK;
}

const char* lockstep_describe(lockstep_publisher* publisher) {
  const int code = Sharded(publisher, [&](const exporter::Exporter& exporter) {
    publisher->description = Describe(exporter);
    return OkStatus();
  });
  return code == LOCKSTEP_OK ? publisher->description.c_str() : "";
}

void lockstep_leave(lockstep_publisher* publisher) {
  if (publisher == nullptr || publisher->in_place == nullptr) return;
  (void)InPlace(publisher, [](abi::InPlace& model) {
    model.Leave();
    return OkStatus();
  });
}

void lockstep_close(lockstep_publisher* publisher) {
  delete publisher;  // destructors throw nothing
}

const char* lockstep_last_error(const lockstep_publisher* publisher) {
  return publisher == nullptr ? ThreadError().c_str() : publisher->error.c_str();
}

int lockstep_import(const char* directory, const char* description, const lockstep_local_tensor* locals,
                    size_t local_count, uint32_t threads) {
  return abi::Guarded(ThreadError(), [&]() -> Status {
    if (directory == nullptr || description == nullptr)
      return {ErrorCode::kBadData, "directory and description must be given"};
    LS_ASSIGN_OR_RETURN(const std::vector<exporter::LocalTensor> converted, abi::ToLocals(locals, local_count));
    LS_RETURN_IF_ERROR(exporter::ImportCheckpoint(directory, description, converted, threads == 0 ? 1 : threads));
    return OkStatus();
  });
}

int lockstep_tensors_meta(const char* const* descriptions, uint32_t ranks, char** json) {
  if (json != nullptr) *json = nullptr;
  return abi::Guarded(ThreadError(), [&] { return TensorsMeta(descriptions, ranks, json); });
}

int lockstep_wait_served(const lockstep_served_query* query, char** json) {
  return Ask(abi::WaitServed, query, json);
}

int lockstep_wait_changes(const lockstep_changes_query* query, char** json) {
  return Ask(abi::WaitChanges, query, json);
}

void lockstep_free(void* memory) {
  std::free(memory);
}

int lockstep_has_cuda(void) {
  return exporter::kBuiltWithCuda ? 1 : 0;
}

int lockstep_check_gpu(void) {
  return abi::Guarded(ThreadError(), [] { return exporter::GpuTrouble(); });
}

const char* lockstep_version(void) {
  return kVersion.data();  // a literal: it ends with a zero
}

}  // extern "C"
