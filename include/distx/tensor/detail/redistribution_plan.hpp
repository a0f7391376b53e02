// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>
#include <vector>

#include "distx/comm/calls/wire_bytes.hpp"
#include "distx/tensor/detail/sharding.hpp"

// How a tensor gets from one layout to another. First its Partials are reduced, axis by axis, each rank ending with its
// part of the middle: the target itself, if every rank's target lies in its source; otherwise the source cut further,
// so that nothing is reduced twice. Then each rank takes what it lacks of its target from the one rank that has it in
// the middle and stands at its own place on all axes that do not cut the middle.
namespace distx::detail {

/// The ranks of a mesh that differ from one place on some axes only, in the mesh's order.
class MeshLine {
 public:
  MeshLine(const MeshShape& shape, AxisSet axes, const Coordinates& places) : shape_(shape), places_(places) {
    for (std::size_t axis = 0; axis < shape.axes; ++axis)
      if ((axes >> axis & 1U) != 0) {
        axes_.push_back(axis);
        size_ *= static_cast<std::size_t>(shape.sizes[axis]);
        own_ = own_ * static_cast<std::size_t>(shape.sizes[axis]) + static_cast<std::size_t>(places[axis]);
      }
  }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Of the place itself.
  [[nodiscard]] std::size_t own() const noexcept { return own_; }
  [[nodiscard]] Coordinates operator[](std::size_t member) const noexcept {
    Coordinates places = places_;
    for (auto axis = axes_.rbegin(); axis != axes_.rend(); ++axis) {
      const auto size = static_cast<std::size_t>(shape_.sizes[*axis]);
      places[*axis] = static_cast<int>(member % size);
      member /= size;
    }
    return places;
  }

 private:
  const MeshShape& shape_;
  Coordinates places_;
  std::vector<std::size_t> axes_;
  std::size_t size_ = 1;
  std::size_t own_ = 0;
};

/// One collective along an axis: a reduce-scatter with a count for each rank, or an all-reduce, which has none.
struct ReduceStep {
  std::size_t axis = 0;
  std::size_t size = 0;
  std::vector<std::size_t> counts{};
  std::size_t own = 0;

  [[nodiscard]] bool scatters() const noexcept { return !counts.empty(); }
  [[nodiscard]] std::size_t result() const noexcept { return scatters() ? counts[own] : size; }
};

/// One all-gather or all-to-all along some axes: a box for each rank.
struct ExchangeStep {
  AxisSet axes = 0;
  bool gathers = false;
  std::size_t own = 0;
  std::vector<Box> out{};
  std::vector<Box> in{};
};

/// What is asked for; the same on all ranks.
struct Relayout {
  Sharding source{};
  AxisSet partial = 0;
  bool ops_differ = false;  ///< then the Partials are reduced in the mesh's order
  Sharding target{};
};

/// The source cut as far as that is of use.
inline Sharding middle_of(const Relayout& wanted) {
  Sharding middle = wanted.source;
  if (wanted.partial == 0) return middle;
  bool arrived = true;
  for (std::size_t d = 0; d < middle.dimensions(); ++d) {
    const Sharding::Axes& goal = wanted.target.axes(d);
    while (middle.axes(d).begins(goal) && middle.axes(d).count < goal.count) {
      const std::size_t next = goal.axis[middle.axes(d).count];
      if ((wanted.source.cutting() >> next & 1U) != 0) break;
      middle.cut(d, next);
    }
    arrived = arrived && middle.axes(d) == goal;
  }
  if (arrived || middle.dimensions() == 0) return middle;
  // More has to be moved anyhow: half of an all-reduce would be in vain.
  for (std::size_t axis = 0; axis < middle.mesh().axes; ++axis)
    if ((wanted.partial >> axis & 1U) != 0 && (middle.cutting() >> axis & 1U) == 0) {
      const auto sizes = middle.box(0).size;
      middle.cut(static_cast<std::size_t>(
                     std::max_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(middle.dimensions())) -
                     sizes.begin()),
                 axis);
    }
  return middle;
}

/// What one place of the mesh does.
struct RedistributionPlan {
  RedistributionPlan(const Relayout& wanted, const Coordinates& places)
      : source(wanted.source.box(places)), target(wanted.target.box(places)) {
    const Sharding cut = middle_of(wanted);
    middle = cut.box(places);
    if (wanted.partial != 0) reduce(wanted, cut, places);
    exchange_from(cut, wanted.target, places);
  }

  Box source{};
  Box middle{};
  Box target{};
  std::vector<Box> blocks{};  ///< of the source, in the order in which the reductions want them
  std::vector<ReduceStep> reductions{};
  std::optional<ExchangeStep> exchange{};

  [[nodiscard]] std::size_t collectives() const noexcept { return reductions.size() + (exchange ? 1 : 0); }

 private:
  void reduce(const Relayout& wanted, const Sharding& cut, const Coordinates& places) {
    const MeshShape& mesh = cut.mesh();
    const AxisSet scattered = wanted.partial & cut.cutting();
    std::vector<std::size_t> order;
    for (const bool first : {true, false})
      for (std::size_t axis = 0; axis < mesh.axes; ++axis) {
        const bool scatters = (scattered >> axis & 1U) != 0;
        if ((wanted.partial >> axis & 1U) != 0 && (wanted.ops_differ ? first : scatters == first))
          order.push_back(axis);
      }
    const MeshLine line(mesh, scattered, places);
    std::vector<std::size_t> left;  // elements of each block that this rank still has terms of
    for (std::size_t member = 0; member < line.size(); ++member) {
      blocks.push_back(cut.box(line[member]));
      left.push_back(blocks.back().volume());
    }
    const auto total = [](const std::size_t* from, std::size_t count) {
      std::size_t all = 0;
      for (std::size_t i = 0; i < count; ++i) all += from[i];
      return all;
    };
    for (const std::size_t axis : order) {
      ReduceStep step{axis, total(left.data(), left.size()), {}, static_cast<std::size_t>(places[axis])};
      if ((scattered >> axis & 1U) != 0) {
        const std::size_t ranks = static_cast<std::size_t>(mesh.sizes[axis]), each = left.size() / ranks;
        for (std::size_t i = 0; i < ranks; ++i) step.counts.push_back(total(left.data() + i * each, each));
        left.assign(left.begin() + static_cast<std::ptrdiff_t>(step.own * each),
                    left.begin() + static_cast<std::ptrdiff_t>((step.own + 1) * each));
      }
      reductions.push_back(std::move(step));
    }
  }

  void exchange_from(const Sharding& cut, const Sharding& goal, const Coordinates& places) {
    ExchangeStep step;
    step.gathers = true;
    for (std::size_t d = 0; d < cut.dimensions(); ++d) {
      const Sharding::Axes &has = cut.axes(d), &wants = goal.axes(d);
      const std::size_t common = has.common(wants);
      for (std::size_t i = common; i < has.count; ++i) step.axes |= 1U << has.axis[i];
      if (common < wants.count) step.gathers = false;
    }
    if (step.axes == 0) return;
    const MeshLine line(cut.mesh(), step.axes, places);
    step.own = line.own();
    for (std::size_t member = 0; member < line.size(); ++member) {
      const Coordinates other = line[member];
      step.out.push_back(middle & goal.box(other));
      step.in.push_back(cut.box(other) & target);
    }
    exchange = std::move(step);
  }
};

/// The bytes of all its collectives on this place, by `wire_bytes`.
inline WireBytes wire_bytes(const RedistributionPlan& plan, const MeshShape& mesh, std::size_t element_bytes) {
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

}  // namespace distx::detail
