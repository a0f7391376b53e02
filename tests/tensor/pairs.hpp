// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/tensor/detail/redistribution.hpp>

#include <sstream>
#include <string>
#include <vector>

// Every pair of layouts as values, and what each rank has of a made-up tensor in them: independent of redistribution.
namespace pairs {

using distx::detail::Box;
using distx::detail::Coordinates;
using distx::detail::MeshShape;
using distx::detail::Relayout;
using distx::detail::Sharding;
using Value = std::int32_t;

/// A tensor's extents, of any number of dimensions.
using Sizes = std::vector<std::size_t>;

inline constexpr int replicated = -1, partial = -2;

/// A placement for each axis: a dimension, `replicated` or `partial`.
using Placed = std::vector<int>;

inline std::vector<Placed> all_layouts(std::size_t axes, std::size_t dimensions, bool partials) {
  std::vector<Placed> all{{}};
  for (std::size_t axis = 0; axis < axes; ++axis) {
    std::vector<Placed> longer;
    for (const auto& one : all)
      for (int placed = partials ? partial : replicated; placed < static_cast<int>(dimensions); ++placed) {
        longer.push_back(one);
        longer.back().push_back(placed);
      }
    all = std::move(longer);
  }
  return all;
}

inline Sharding sharding_of(const MeshShape& mesh, const Sizes& sizes, const Placed& placed) {
  Sharding sharding;
  if (sizes.size() == 1) sharding = Sharding(mesh, distx::Extents<1>{sizes[0]});
  if (sizes.size() == 2) sharding = Sharding(mesh, distx::Extents<2>{sizes[0], sizes[1]});
  if (sizes.size() == 3) sharding = Sharding(mesh, distx::Extents<3>{sizes[0], sizes[1], sizes[2]});
  for (std::size_t axis = 0; axis < placed.size(); ++axis)
    if (placed[axis] >= 0) sharding.shard(static_cast<std::size_t>(placed[axis]), axis);
  return sharding;
}

inline Relayout relayout(const MeshShape& mesh, const Sizes& sizes, const Placed& from, const Placed& to) {
  Relayout wanted{sharding_of(mesh, sizes, from), 0, false, sharding_of(mesh, sizes, to)};
  for (std::size_t axis = 0; axis < from.size(); ++axis)
    if (from[axis] == partial && mesh.sizes[axis] > 1) wanted.partial |= 1U << axis;
  return wanted;
}

/// Calls f with the place of each element of a box in the whole tensor, row by row.
template <class F>
void for_each(const Box& whole, const Box& box, F&& f) {
  for (std::size_t i = 0; i < box.volume(); ++i) {
    std::size_t left = i, at = 0, step = 1;
    for (std::size_t d = box.dimensions; d-- > 0;) {
      at += (box.begin[d] + left % box.size[d]) * step;
      left /= box.size[d];
      step *= whole.size[d];
    }
    f(at);
  }
}

inline Value element(std::size_t at) { return static_cast<Value>(7 * at + 3); }

/// Returns the part of a rank in a layout; for a Partial, its terms, which add up to the tensor along each axis.
inline std::vector<Value> part(const Sharding& sharding, const Placed& placed, const Coordinates& places) {
  std::vector<Value> values;
  for_each(sharding.whole(), sharding.box(places), [&](std::size_t at) {
    Value value = element(at);
    for (std::size_t axis = 0; axis < placed.size(); ++axis) {
      if (placed[axis] != partial) continue;
      const int n = sharding.mesh().sizes[axis], place = places[axis];
      const auto other = static_cast<Value>(at % 5 + axis);
      // The last rank along the axis has what the others' terms leave.
      value = place + 1 < n ? other * (place + 1) : value - other * (n * (n - 1) / 2);
    }
    values.push_back(value);
  });
  return values;
}

inline std::string words(const MeshShape& mesh, const Sizes& sizes, const Placed& from, const Placed& to) {
  std::ostringstream out;
  out << "mesh " << mesh.to_string() << ", extents";
  for (const auto size : sizes) out << ' ' << size;
  out << ", from";
  for (const int one : from) out << ' ' << one;
  out << " to";
  for (const int one : to) out << ' ' << one;
  return out.str();
}

}  // namespace pairs
