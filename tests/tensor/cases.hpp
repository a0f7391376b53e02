// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/tensor/ops/apply.hpp>
#include <distx/threads.hpp>

#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "legal.hpp"

// Every legal combination of placements of an operation, and what its result is when put together: independent of
// redistribution and of gathering, for the ranks are threads and their parts can be looked at.
namespace cases {

struct Rows {};
struct Columns {};
using Grid = distx::Mesh<Columns, Rows>;
inline const std::vector<std::array<int, 2>> shapes = {{1, 1}, {1, 2}, {3, 1}, {2, 2}};

template <class... Ps>
struct List {};

template <class Axis, std::size_t Digit>
struct Placement {
  using type = distx::Shard<Digit - 3, Axis>;
};
template <class Axis>
struct Placement<Axis, 0> {
  using type = distx::Replicated<Axis>;
};
template <class Axis>
struct Placement<Axis, 1> {
  using type = distx::Partial<Axis>;
};
template <class Axis>
struct Placement<Axis, 2> {
  using type = distx::Partial<Axis, distx::Max>;
};

/// Calls f(List<layout of each operand>) for all combinations on two axes.
template <class Rule, std::size_t... Ranks, class F>
void for_each_case(F&& f) {
  using All = Legal<Rule, Ranks...>;
  const auto one = [&]<std::size_t OnColumns, std::size_t OnRows, std::size_t... I>(std::index_sequence<I...>) {
    f(List<distx::Layout<typename Placement<Columns, All::digit(All::codes[OnColumns], I)>::type,
                         typename Placement<Rows, All::digit(All::codes[OnRows], I)>::type>...>());
  };
  [&]<std::size_t... Code>(std::index_sequence<Code...>) {
    (one.template operator()<Code / All::count, Code % All::count>(std::make_index_sequence<sizeof...(Ranks)>()), ...);
  }(std::make_index_sequence<All::count * All::count>());
}

/// A tensor of doubles whose number of dimensions is a value.
struct Whole {
  std::vector<std::size_t> extents;
  std::vector<double> values;

  explicit Whole(std::vector<std::size_t> sizes) : extents(std::move(sizes)), values(volume()) {}
  /// Small whole numbers, so that sums are exact in any order.
  static Whole numbers(std::vector<std::size_t> sizes, unsigned seed, int most = 4) {
    Whole x(std::move(sizes));
    unsigned state = seed * 7919 + 1;
    for (double& value : x.values) {
      state = state * 1664525U + 1013904223U;
      value = static_cast<int>(state >> 16) % (2 * most + 1) - most;
    }
    return x;
  }
  [[nodiscard]] std::size_t volume() const {
    std::size_t all = 1;
    for (const auto extent : extents) all *= extent;
    return all;
  }
};

/// The sharding of a layout on a grid, and the axes over which it is a sum or a maximum.
struct Lie {
  distx::detail::Sharding sharding;
  distx::detail::AxisSet sums = 0, maxima = 0;

  template <class L, std::size_t Rank>
  static Lie of(const distx::detail::MeshShape& shape, const distx::Extents<Rank>& extents) {
    Lie lie{distx::detail::sharding_of<L, Grid>(shape, extents)};
    lie.note<distx::detail::placement_on<L, Columns>>(0);
    lie.note<distx::detail::placement_on<L, Rows>>(1);
    return lie;
  }

 private:
  template <class P>
  void note(unsigned axis) {
    constexpr auto place = distx::detail::axis_placement<P>(1);
    if (place.is_sum()) sums |= 1U << axis;
    if (place.is_max()) maxima |= 1U << axis;
  }
};

/// Calls f(place in the whole, place in the part) for each element of a rank's part.
inline void for_each_element(const distx::detail::Box& whole, const distx::detail::Box& part,
                             const std::function<void(std::size_t, std::size_t)>& f) {
  for (std::size_t at = 0; at < part.volume(); ++at) {
    std::size_t rest = at, place = 0, step = 1;
    for (std::size_t d = whole.dimensions; d-- > 0; step *= whole.size[d]) {
      place += (part.begin[d] + rest % part.size[d]) * step;
      rest /= part.size[d];
    }
    f(place, at);
  }
}

/// Returns a rank's part of a tensor, or its terms, whose reduction over the ranks is the tensor.
inline std::vector<double> part_of(const Whole& whole, const Lie& lie, int rank) {
  const auto places = lie.sharding.mesh().coordinates(rank);
  const auto box = lie.sharding.box(places);
  std::vector<double> part(box.volume());
  for_each_element(lie.sharding.whole(), box, [&](std::size_t place, std::size_t at) {
    double value = whole.values[place];
    for (std::size_t axis = 0; axis < 2; ++axis) {
      const int count = lie.sharding.mesh().sizes[axis];
      const auto noise = [&](int i) {
        return static_cast<double>((place * 5 + static_cast<std::size_t>(i) * 3) % 7) - 3;
      };
      if ((lie.sums >> axis & 1U) != 0) {
        double term = value;
        for (int i = 1; i < count; ++i) term -= noise(i);
        value = places[axis] == 0 ? term : noise(places[axis]);
      }
      if ((lie.maxima >> axis & 1U) != 0 && places[axis] != static_cast<int>(place) % count)
        value -= 1 + static_cast<double>(place % 3);
    }
    part[at] = value;
  });
  return part;
}

/// Returns the tensor that the ranks' parts form; describes in `wrong` if replicas differ or something is missing.
inline Whole together(const std::vector<std::size_t>& extents, const Lie& lie,
                      const std::vector<std::vector<double>>& parts, std::string& wrong) {
  Whole whole(extents);
  const auto& mesh = lie.sharding.mesh();
  // Of each element: by the place of the replica and by the place on the last axis, what is reduced over the first.
  std::vector<std::map<int, std::map<int, std::pair<double, int>>>> found(whole.volume());
  const auto reduce = [&](std::size_t axis, double a, double b) {
    return (lie.maxima >> axis & 1U) != 0 ? std::max(a, b) : a + b;
  };
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const auto places = mesh.coordinates(rank);
    const auto box = lie.sharding.box(places);
    const auto& part = parts[static_cast<std::size_t>(rank)];
    if (part.size() != box.volume()) wrong = "a part has another number of elements";
    if (!wrong.empty()) return whole;
    int replica = 0;
    for (std::size_t axis = 0; axis < 2; ++axis)
      if (((lie.sharding.sharded_axes() | lie.sums | lie.maxima) >> axis & 1U) == 0)
        replica = replica * 8 + places[axis] + 1;
    const int last = ((lie.sums | lie.maxima) >> 1 & 1U) != 0 ? places[1] : 0;
    for_each_element(lie.sharding.whole(), box, [&](std::size_t place, std::size_t at) {
      const auto [entry, is_new] = found[place][replica].try_emplace(last, part[at], 1);
      if (is_new) return;
      entry->second.first = reduce(0, entry->second.first, part[at]);
      ++entry->second.second;
    });
  }
  int terms = 1, replicas = 1;
  for (std::size_t axis = 0; axis < 2; ++axis) {
    if (((lie.sums | lie.maxima) >> axis & 1U) != 0)
      terms *= mesh.sizes[axis];
    else if ((lie.sharding.sharded_axes() >> axis & 1U) == 0)
      replicas *= mesh.sizes[axis];
  }
  for (std::size_t place = 0; place < found.size(); ++place) {
    if (static_cast<int>(found[place].size()) != replicas) wrong = "an element is missing";
    bool first_replica = true;
    for (const auto& [replica, lines] : found[place]) {
      double value = 0;
      int count = 0;
      for (const auto& [last, line] : lines) {
        value = count == 0 ? line.first : reduce(1, value, line.first);
        count += line.second;
      }
      if (count != terms) wrong = "a term is missing";
      if (!first_replica && value != whole.values[place]) wrong = "two replicas differ";
      whole.values[place] = value;
      first_replica = false;
    }
  }
  return whole;
}

/// Runs f on every rank of a grid; no wait in it lasts longer than 20 seconds.
inline void on_grid(const std::array<int, 2>& shape, const std::function<void(const Grid&)>& f) {
  using namespace std::chrono_literals;
  distx::spawn(distx::threads(shape[0] * shape[1], 20s), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector, 20s);
    f(Grid(comm, shape));
  });
}

template <class T, std::size_t Rank, class L>
auto lay(const Grid& grid, const Whole& whole) {
  distx::Extents<Rank> extents{};
  std::copy_n(whole.extents.begin(), Rank, extents.begin());
  distx::DistTensor<T, Rank, Grid, L> x(grid, extents);
  const auto part = part_of(whole, Lie::of<L>(distx::detail::shape_of(grid), extents), grid.rank());
  std::transform(part.begin(), part.end(), x.local().begin(), [](double value) { return static_cast<T>(value); });
  return x;
}

/// The parts of one result on all ranks.
class Parts {
 public:
  explicit Parts(const std::array<int, 2>& shape) : parts_(static_cast<std::size_t>(shape[0] * shape[1])) {}

  template <class X>
  void take(const X& x) {
    parts_[static_cast<std::size_t>(x.mesh().rank())].assign(x.local().begin(), x.local().end());
    if (x.mesh().rank() != 0) return;
    extents_.assign(x.extents().begin(), x.extents().end());
    lie_ = Lie::of<distx::detail::layout_of<X>>(distx::detail::shape_of(x.mesh()), x.extents());
  }
  /// Nothing, or what is wrong.
  [[nodiscard]] std::string compare(const Whole& expected, double tolerance) const {
    if (extents_ != expected.extents) return "the extents are others";
    std::string wrong;
    const Whole whole = together(extents_, lie_, parts_, wrong);
    for (std::size_t i = 0; i < whole.values.size() && wrong.empty(); ++i)
      if (!(std::abs(whole.values[i] - expected.values[i]) <= tolerance * (1 + std::abs(expected.values[i]))))
        wrong = "element " + std::to_string(i) + " is " + std::to_string(whole.values[i]) + ", not " +
                std::to_string(expected.values[i]);
    return wrong;
  }

 private:
  std::vector<std::vector<double>> parts_;
  std::vector<std::size_t> extents_;
  Lie lie_;
};

/// Calls `op(operands…)`, which gives one tensor, with operands in every legal combination of layouts on all shapes.
/// Says which results are not as expected.
template <class Rule, std::size_t... Ranks, class Op>
std::string check(const std::array<Whole, sizeof...(Ranks)>& operands, const Whole& expected, double tolerance,
                  const Op& op) {
  // There are a thousand combinations, so only code that depends on the layouts is compiled for each of them.
  using Operands = std::array<Whole, sizeof...(Ranks)>;
  using Run = void (*)(const Grid&, const Operands&, const Op&, Parts&);
  std::vector<Run> runs;
  for_each_case<Rule, Ranks...>([&]<class... Ls>(List<Ls...>) {
    runs.push_back([](const Grid& grid, const Operands& wholes, const Op& operation, Parts& parts) {
      [&]<std::size_t... I>(std::index_sequence<I...>) {
        parts.take(operation(lay<double, Ranks, Ls>(grid, wholes[I])...));
      }(std::index_sequence_for<Ls...>());
    });
  });
  std::string all;
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (const auto& shape : shapes) {
      Parts parts(shape);
      on_grid(shape, [&](const Grid& grid) { runs[i](grid, operands, op, parts); });
      if (const auto wrong = parts.compare(expected, tolerance); !wrong.empty())
        all += "case " + std::to_string(i + 1) + " on " + std::to_string(shape[0]) + " x " + std::to_string(shape[1]) +
               ": " + wrong + "; ";
    }
  return runs.empty() ? "there is no case" : all;
}

}  // namespace cases
