#include <fmt/format.h>

#include <stdexcept>

#include "meshwright/strategy.h"

namespace mw {

void Draft::shard(Dim dim, const std::string& axis) {
  rules_.push_back({strategy_, dim, axis, {}, false, {}});
}

void Draft::shard_in(Dim dim, const std::string& axis, std::function<bool(const Op&)> where,
                     std::vector<int> atoms) {
  rules_.push_back({strategy_, dim, axis, std::move(where), true, std::move(atoms)});
}

void Draft::shard_where(Dim dim, const std::string& axis, std::function<bool(const Op&)> where) {
  rules_.push_back({strategy_, dim, axis, std::move(where), false, {}});
}

void Draft::store(Dim dim, const std::string& axis, std::function<bool(const Value&)> where) {
  storage_.push_back({strategy_, dim, axis, std::move(where)});
}

void Draft::pipeline(Pipeline pipeline) {
  if (pipeline_) {
    refuse(fmt::format("{} and {} both part the layers into stages", pipeline_by_, strategy_),
           "leave one of them out");
    return;
  }
  pipeline_by_ = strategy_;
  pipeline_ = std::move(pipeline);
}

void Draft::rotate(Dim dim, const std::string& axis, std::function<bool(const Op&)> where) {
  rotations_.push_back({strategy_, dim, axis, std::move(where)});
}

void Draft::arrange(Dim dim, std::vector<Range> order) {
  std::int64_t size = 0;
  for (const Range& range : order) size += range.size;
  if (size != graph_.size(dim)) {
    throw std::logic_error(
        fmt::format("{} arranges {} of the {} {}", strategy_, size, graph_.size(dim), dim.name()));
  }
  if (!order_.emplace(dim, std::move(order)).second) {
    refuse(
        fmt::format("{}: the {} lies in another strategy's order already", strategy_, dim.name()),
        "leave one of them out");
  }
}

bool Draft::divides(const std::string& axis, Dim dim) const {
  const auto info = graph_.dims().find(dim);
  return info != graph_.dims().end() && info->second.size % mesh_.axis(axis).ways == 0;
}

}  // namespace mw
