#include "ctl/plan/report.h"

#include <algorithm>

#include "common/base/text.h"
#include "common/layout/buckets.h"
#include "common/layout/host_parts.h"
#include "ctl/output/table.h"

namespace lockstep::ctl {
namespace {

uint64_t BytesOfElement(model::DType dtype) {
  return model::FindDType(dtype)->bits / 8;
}

uint64_t BytesOf(const model::TensorMeta& tensor) {
  return layout::ElementCount(tensor.shape) * BytesOfElement(tensor.dtype);
}

std::string PitchText(const layout::StridedCopy& copy) {
  return copy.rows == 1 ? "-" : Cat(copy.source_pitch, " -> ", copy.target_pitch);
}

Json CopyJson(const layout::StridedCopy& copy) {
  return {{"source_offset", copy.source_offset},
          {"target_offset", copy.target_offset},
          {"rows", copy.rows},
          {"row_bytes", copy.row_bytes},
          {"source_pitch", copy.source_pitch},
          {"target_pitch", copy.target_pitch}};
}

}  // namespace

Result<PlanReport> PlanReport::Create(std::vector<plan::ShardDescription> descriptions, uint64_t bucket_bytes) {
  PlanReport report;
  report.descriptions_ = std::move(descriptions);
  report.message_bytes_ = bucket_bytes / 2;  // one is filled while the other is under way
  LS_ASSIGN_OR_RETURN(report.model_, plan::BuildTrainingModel(report.descriptions_));
  LS_ASSIGN_OR_RETURN(report.plan_, layout::CompileExport(report.model_, plan::OnAgentHost(report.descriptions_)));
  report.first_holding_.resize(report.descriptions_.size() + 1);
  for (const layout::Holding& holding : report.model_.holdings) ++report.first_holding_[holding.rank + 1];
  for (size_t rank = 0; rank < report.descriptions_.size(); ++rank) {
    report.first_holding_[rank + 1] += report.first_holding_[rank];
  }
  for (uint32_t rank = 0; rank < report.descriptions_.size(); ++rank) {
    report.figures_.push_back(report.FiguresOf(rank));
    report.copies_ += report.figures_.back().copies;
    report.buckets_ += report.figures_.back().buckets;
  }
  return report;
}

std::vector<PlanReport::Move> PlanReport::MovesOf(uint32_t rank) const {
  const std::vector<plan::DescribedLocal> locals = plan::LocalsOf(descriptions_[rank]);
  std::vector<const plan::DescribedLocal*> by_source(model_.sources.size());
  for (size_t i = 0; i < locals.size(); ++i) {
    const layout::Holding& holding = model_.holdings[first_holding_[rank] + i];
    if (!holding.copy && by_source[holding.source] == nullptr) by_source[holding.source] = &locals[i];
  }
  std::vector<Move> moves;
  for (const layout::PlanEntry& entry : plan_.ranks[rank].entries) {
    const plan::DescribedLocal& local = *by_source[entry.source];
    const model::TensorMeta& tensor = model_.tensors[entry.tensor];
    const layout::TensorView source =
        layout::TensorView::Contiguous(local.shape, BytesOfElement(local.dtype.value_or(tensor.dtype)), 0);
    const layout::TensorView target = layout::TensorView::Contiguous(layout::Promoted(tensor.shape, local.shape.size()),
                                                                     BytesOfElement(tensor.dtype), tensor.offset);
    for (const layout::Piece& piece : entry.pieces) {
      Move& move = moves.emplace_back(Move{.entry = &entry, .piece = &piece, .local_name = local.name});
      layout::AppendCopies({piece}, source, target, move.copies);
    }
  }
  return moves;
}

size_t PlanReport::BucketsOf(uint32_t rank) const {
  if (descriptions_[rank].on_agent_host) return 0;
  std::vector<layout::BucketItem> items;
  for (const layout::PlanEntry& entry : plan_.ranks[rank].entries) {
    uint64_t bytes = layout::ElementCount(entry.pieces) * BytesOfElement(model_.tensors[entry.tensor].dtype);
    for (; bytes > message_bytes_; bytes -= message_bytes_) {
      items.push_back({message_bytes_, model_.groups[entry.tensor]});
    }
    items.push_back({bytes, model_.groups[entry.tensor]});
  }
  return layout::SplitIntoBuckets(items, message_bytes_).size();
}

PlanReport::Figures PlanReport::FiguresOf(uint32_t rank) const {
  Figures figures{.bytes = plan_.ranks[rank].bytes, .buckets = BucketsOf(rank)};
  const std::vector<layout::PlanEntry>& entries = plan_.ranks[rank].entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i == 0 || entries[i].tensor != entries[i - 1].tensor) ++figures.tensors;
  }
  for (const Move& move : MovesOf(rank)) figures.copies += move.copies.size();
  return figures;
}

std::optional<PlanReport::Group> PlanReport::LargestGroup() const {
  std::optional<Group> largest;
  Group group;
  for (uint32_t i = 0; i < model_.tensors.size(); ++i) {
    if (i == 0 || model_.groups[i] != model_.groups[i - 1]) group = {.first = i};
    ++group.tensors;
    group.bytes += BytesOf(model_.tensors[i]);
    if (group.tensors > 1 && (!largest || group.bytes > largest->bytes)) largest = group;
  }
  return largest;
}

uint64_t PlanReport::FrozenBytes() const {
  uint64_t bytes = 0;
  for (const layout::Conversion& conversion : model_.conversions) {
    if (!model_.sources[conversion.source].frozen) continue;
    bytes += layout::ElementCount(conversion.pieces) * BytesOfElement(model_.tensors[conversion.tensor].dtype);
  }
  return bytes;
}

Json PlanReport::Summary() const {
  Json ranks = Json::array();
  for (uint32_t rank = 0; rank < descriptions_.size(); ++rank) {
    const Figures& figures = figures_[rank];
    const bool on_agent_host = descriptions_[rank].on_agent_host;
    ranks.push_back({{"rank", rank},
                     {"on_agent_host", on_agent_host},
                     {"tensors", figures.tensors},
                     {"bytes_written", on_agent_host ? figures.bytes : 0},
                     {"bytes_sent", on_agent_host ? 0 : figures.bytes},
                     {"copies", figures.copies},
                     {"buckets", figures.buckets}});
  }
  Json group;
  if (const auto largest = LargestGroup()) {
    group = {{"first", model_.tensors[largest->first].name}, {"tensors", largest->tensors}, {"bytes", largest->bytes}};
  }
  return {{"digest", ToHex(plan_.digest)},     {"bytes", plan_.bytes},     {"frozen_bytes", FrozenBytes()},
          {"tensors", model_.tensors.size()},  {"copies", copies_},        {"buckets", buckets_},
          {"largest_group", std::move(group)}, {"ranks", std::move(ranks)}};
}

std::string PlanReport::SummaryText() const {
  Table table({">RANK", "AGENT", ">TENSORS", ">WRITES", ">SENDS", ">COPIES", ">BUCKETS"});
  for (uint32_t rank = 0; rank < descriptions_.size(); ++rank) {
    const Figures& figures = figures_[rank];
    const bool on_agent_host = descriptions_[rank].on_agent_host;
    table.AddRow({Cat(rank), on_agent_host ? "here" : "remote", Cat(figures.tensors),
                  on_agent_host ? HumanBytes(figures.bytes) : "-", on_agent_host ? "-" : HumanBytes(figures.bytes),
                  Cat(figures.copies), on_agent_host ? "-" : Cat(figures.buckets)});
  }
  std::string group;
  if (const auto largest = LargestGroup()) {
    group = Cat("largest group: ", largest->tensors, " tensors from ", model_.tensors[largest->first].name, ", ",
                HumanBytes(largest->bytes), "\n");
  }
  return Cat("plan ", ToHex(plan_.digest), "\n", model_.tensors.size(), " tensors, ", HumanBytes(plan_.bytes), " (",
             HumanBytes(FrozenBytes()), " frozen), from ", descriptions_.size(), " ranks by ", copies_, " copies and ",
             buckets_, " buckets\n", group, "\n", table.ToString());
}

Result<std::vector<PlanReport::Host>> PlanReport::ByHost(uint32_t ranks_per_host) const {
  std::vector<uint32_t> host_of_rank;
  for (uint32_t rank = 0; rank < descriptions_.size(); ++rank) host_of_rank.push_back(rank / ranks_per_host);
  LS_ASSIGN_OR_RETURN(const std::vector<uint32_t> host_of_tensor, layout::HostOfTensors(model_, host_of_rank));
  std::vector<Host> hosts(host_of_rank.back() + 1);
  for (uint32_t host = 0; host < hosts.size(); ++host) {
    LS_ASSIGN_OR_RETURN(const layout::TrainingModel part, layout::PartOf(model_, host_of_tensor, host));
    std::vector<bool> here;
    for (const uint32_t its : host_of_rank) here.push_back(its == host);
    LS_ASSIGN_OR_RETURN(const layout::CopyPlan plan, layout::CompileExport(part, here));
    hosts[host] = {.tensors = part.tensors.size(), .bytes = plan.bytes};
    for (size_t rank = 0; rank < here.size(); ++rank) {
      if (!here[rank]) hosts[host].bytes_received += plan.ranks[rank].bytes;
    }
  }
  return hosts;
}

Json PlanReport::HostsJson(const std::vector<Host>& hosts) {
  Json all = Json::array();
  for (const Host& host : hosts) {
    all.push_back({{"host", all.size()},
                   {"tensors", host.tensors},
                   {"bytes", host.bytes},
                   {"bytes_received", host.bytes_received}});
  }
  return all;
}

std::string PlanReport::HostsText(const std::vector<Host>& hosts) {
  Table table({">HOST", ">TENSORS", ">BYTES", ">MEMORY", ">FROM OTHERS"});
  uint64_t crossing = 0;
  for (size_t host = 0; host < hosts.size(); ++host) {
    const Host& its = hosts[host];
    crossing += its.bytes_received;
    table.AddRow({Cat(host), Cat(its.tensors), HumanBytes(its.bytes), HumanBytes(2 * its.bytes),
                  its.bytes_received == 0 ? "-" : HumanBytes(its.bytes_received)});
  }
  return Cat("by host: ", HumanBytes(crossing), " of every version cross hosts\n", table.ToString());
}

Json PlanReport::OfRank(uint32_t rank) const {
  Json entries = Json::array();
  const layout::PlanEntry* last = nullptr;
  for (const Move& move : MovesOf(rank)) {
    if (move.entry != last) {
      entries.push_back({{"tensor", model_.tensors[move.entry->tensor].name},
                         {"local_tensor", move.local_name},
                         {"pieces", Json::array()}});
    }
    last = move.entry;
    Json copies = Json::array();
    for (const layout::StridedCopy& copy : move.copies) copies.push_back(CopyJson(copy));
    entries.back()["pieces"].push_back({{"local", move.piece->source},
                                        {"global", move.piece->target},
                                        {"size", move.piece->size},
                                        {"copies", std::move(copies)}});
  }
  return {{"digest", ToHex(plan_.digest)},
          {"rank", rank},
          {"on_agent_host", descriptions_[rank].on_agent_host},
          {"bytes", plan_.ranks[rank].bytes},
          {"entries", std::move(entries)}};
}

std::string PlanReport::TextOfRank(uint32_t rank) const {
  Table table({"TENSOR", "FROM", "BOX", "TO BOX", ">FROM BYTE", ">TO BYTE", ">ROWS", ">ROW BYTES", "PITCHES"});
  for (const Move& move : MovesOf(rank)) {
    const layout::Piece& piece = *move.piece;
    for (size_t i = 0; i < move.copies.size(); ++i) {
      const layout::StridedCopy& copy = move.copies[i];
      const bool first = i == 0;  // the others of a box stand below it
      table.AddRow({first ? model_.tensors[move.entry->tensor].name : "", first ? move.local_name : "",
                    first ? layout::BoxText(piece.source, piece.size) : "",
                    first ? layout::BoxText(piece.target, piece.size) : "", Cat(copy.source_offset),
                    Cat(copy.target_offset), Cat(copy.rows), Cat(copy.row_bytes), PitchText(copy)});
    }
  }
  return Cat("plan ", ToHex(plan_.digest), "\nrank ", rank,
             descriptions_[rank].on_agent_host ? " writes " : " sends to a rank on the agent's host ",
             HumanBytes(plan_.ranks[rank].bytes), " in ", figures_[rank].copies, " copies\n\n", table.ToString());
}

}  // namespace lockstep::ctl
