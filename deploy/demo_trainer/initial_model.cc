#include "deploy/demo_trainer/initial_model.h"

#include <algorithm>

namespace lockstep::demo {

Result<InitialModel> OpenCheckpoint(const std::string& directory) {
  InitialModel model;
  LS_ASSIGN_OR_RETURN(model.checkpoint, exporter::Checkpoint::Open(directory));
  std::vector<model::TensorMeta> tensors;
  for (const auto& [name, tensor] : model.checkpoint->tensors()) tensors.push_back(tensor.meta);
  std::ranges::sort(tensors, {}, &model::TensorMeta::name);
  LS_RETURN_IF_ERROR(model::AssignOffsets(tensors));
  LS_ASSIGN_OR_RETURN(model.layout, model::ModelLayout::Create(std::move(tensors)));
  for (size_t i = 0; i < model.layout->tensors().size(); ++i) {
    const exporter::Checkpoint::Tensor* tensor = model.checkpoint->Find(model.layout->tensors()[i].name);
    model.values.emplace_back(tensor->data, model.layout->tensor_bytes(i));
  }
  return model;
}

uint64_t ElementCount(const model::ModelLayout& layout) {
  uint64_t elements = 0;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    elements += layout.tensor_bytes(i) * 8 / model::FindDType(layout.tensors()[i].dtype)->bits;
  }
  return elements;
}

}  // namespace lockstep::demo
