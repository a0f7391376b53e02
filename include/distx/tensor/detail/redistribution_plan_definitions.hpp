// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "distx/core/version.hpp"
#include "distx/tensor/detail/redistribution_plan.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The ranks of a mesh that differ from one rank on some axes only, in the mesh's order.
class MeshLine {
 public:
  MeshLine(const MeshShape& shape, AxisSet axes, const Coordinates& coordinates)
      : shape_(shape), coordinates_(coordinates) {
    for (std::size_t axis = 0; axis < shape.axes; ++axis)
      if ((axes >> axis & 1U) != 0) {
        axes_.push_back(axis);
        size_ *= static_cast<std::size_t>(shape.sizes[axis]);
        own_ = own_ * static_cast<std::size_t>(shape.sizes[axis]) + static_cast<std::size_t>(coordinates[axis]);
      }
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// The index of the rank itself.
  [[nodiscard]] std::size_t own() const noexcept { return own_; }
  [[nodiscard]] Coordinates operator[](std::size_t member) const noexcept {
    Coordinates coordinates = coordinates_;
    for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
      const auto size = static_cast<std::size_t>(shape_.sizes[*axis]);
      coordinates[*axis] = static_cast<int>(member % size);
      member /= size;
    }
    return coordinates;
  }

 private:
  const MeshShape& shape_;
  Coordinates coordinates_;
  std::vector<std::size_t> axes_;
  std::size_t size_ = 1;
  std::size_t own_ = 0;
};

/// The source, sharded as far as the target allows while Partials are reduced.
inline Sharding middle_of(const Relayout& wanted) {
  Sharding middle = wanted.source;
  if (wanted.partial == 0) return middle;
  bool arrived = true;
  for (std::size_t d = 0; d < middle.dimensions(); ++d) {
    const Sharding::Axes& goal = wanted.target.axes(d);
    while (middle.axes(d).is_prefix_of(goal) && middle.axes(d).count < goal.count) {
      const std::size_t next = goal.axis[middle.axes(d).count];
      if ((wanted.source.sharded_axes() >> next & 1U) != 0) break;
      middle.shard(d, next);
    }
    arrived = arrived && middle.axes(d) == goal;
  }
  if (arrived || middle.dimensions() == 0) return middle;
  // An exchange follows anyway, so a reduce-scatter suffices: the all-gather half of an all-reduce would be wasted.
  for (std::size_t axis = 0; axis < middle.mesh().axes; ++axis)
    if ((wanted.partial >> axis & 1U) != 0 && (middle.sharded_axes() >> axis & 1U) == 0) {
      const auto sizes = middle.box(0).size;
      middle.shard(static_cast<std::size_t>(std::max_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(
                                                                                                middle.dimensions())) -
                                            sizes.begin()),
                   axis);
    }
  return middle;
}

DISTX_INLINE RedistributionPlan::RedistributionPlan(const Relayout& wanted, const Coordinates& coordinates)
    : source(wanted.source.box(coordinates)), target(wanted.target.box(coordinates)) {
  const Sharding between = middle_of(wanted);
  middle = between.box(coordinates);
  if (wanted.partial != 0) reduce(wanted, between, coordinates);
  exchange_from(between, wanted.target, coordinates);
}
DISTX_INLINE void RedistributionPlan::reduce(const Relayout& wanted, const Sharding& between,
                                             const Coordinates& coordinates) {
  const MeshShape& mesh = between.mesh();
  const AxisSet scattered = wanted.partial & between.sharded_axes();
  std::vector<std::size_t> order;
  for (const bool first : {true, false})
    for (std::size_t axis = 0; axis < mesh.axes; ++axis) {
      const bool scatters = (scattered >> axis & 1U) != 0;
      if ((wanted.partial >> axis & 1U) != 0 && (wanted.ops_differ ? first : scatters == first)) order.push_back(axis);
    }
  const MeshLine line(mesh, scattered, coordinates);
  std::vector<std::size_t> left;  // elements of each block that this rank still holds terms of
  for (std::size_t member = 0; member < line.size(); ++member) {
    blocks.push_back(between.box(line[member]));
    left.push_back(blocks.back().volume());
  }
  const auto total = [](const std::size_t* from, std::size_t count) {
    std::size_t all = 0;
    for (std::size_t i = 0; i < count; ++i) all += from[i];
    return all;
  };
  for (const std::size_t axis : order) {
    ReduceStep step{axis, total(left.data(), left.size()), {}, static_cast<std::size_t>(coordinates[axis])};
    if ((scattered >> axis & 1U) != 0) {
      const std::size_t ranks = static_cast<std::size_t>(mesh.sizes[axis]), each = left.size() / ranks;
      for (std::size_t i = 0; i < ranks; ++i) step.counts.push_back(total(left.data() + i * each, each));
      left.assign(left.begin() + static_cast<std::ptrdiff_t>(step.own * each),
                  left.begin() + static_cast<std::ptrdiff_t>((step.own + 1) * each));
    }
    reductions.push_back(std::move(step));
  }
}
DISTX_INLINE void RedistributionPlan::exchange_from(const Sharding& between, const Sharding& goal,
                                                    const Coordinates& coordinates) {
  ExchangeStep step;
  step.gathers = true;
  for (std::size_t d = 0; d < between.dimensions(); ++d) {
    const Sharding::Axes &has = between.axes(d), &wants = goal.axes(d);
    const std::size_t common = has.common_prefix(wants);
    for (std::size_t i = common; i < has.count; ++i) step.axes |= 1U << has.axis[i];
    if (common < wants.count) step.gathers = false;
  }
  if (step.axes == 0) return;
  const MeshLine line(between.mesh(), step.axes, coordinates);
  step.own = line.own();
  for (std::size_t member = 0; member < line.size(); ++member) {
    const Coordinates other = line[member];
    step.out.push_back(middle & goal.box(other));
    step.in.push_back(between.box(other) & target);
  }
  exchange = std::move(step);
}

DISTX_INLINE WireBytes wire_bytes(const RedistributionPlan& plan, const MeshShape& mesh, std::size_t element_bytes) {
  const auto out = [&](std::size_t n) { return Span<AnyElement>(nullptr, n, ElementType::bytes, element_bytes); };
  const auto in = [&](std::size_t n) { return Span<const AnyElement>(out(n)); };
  WireBytes all;
  const auto add = [&](const auto& call, std::size_t own, std::size_t ranks) {
    const WireBytes wire = wire_bytes(call, static_cast<int>(own), static_cast<int>(ranks));
    all.sent += wire.sent;
    all.received += wire.received;
  };
  for (const auto& step : plan.reductions) {
    const auto ranks = static_cast<std::size_t>(mesh.sizes[step.axis]);
    if (step.scatters())
      add(ReduceScatter<AnyElement, AnyOp>{in(step.size), out(step.result()), {}, step.counts}, step.own, ranks);
    else
      add(AllReduce<AnyElement, AnyOp>{in(step.size), out(step.size)}, step.own, ranks);
  }
  if (plan.exchange) {
    const auto& step = *plan.exchange;
    std::size_t sent = 0, received = 0;
    for (std::size_t other = 0; other < step.in.size(); ++other) {
      sent += other == step.own ? 0 : step.out[other].volume();
      received += other == step.own ? 0 : step.in[other].volume();
    }
    all.sent += sent * element_bytes;
    all.received += received * element_bytes;
  }
  return all;
}

}  // namespace distx::inline DISTX_ABI::detail
