// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/reductions.hpp"
#include "distx/memory/fixed_point.hpp"
#include "distx/parallel/run.hpp"

namespace distx {

/// A gradient or a loss that is infinite or not a number.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

namespace detail {

/// The largest magnitude of all ranks' gradients, and the first parameter that has one which is no finite number.
struct GradientExtent {
  double largest = 0;
  std::size_t not_finite = none;
  static constexpr std::size_t none = ~std::size_t{0};
};

/// Collective; each rank passes its own part.
template <HostAccessible Space>
[[nodiscard]] GradientExtent extent_of(AnyCommunicator<Space>& comm, typename Space::stream stream,
                                       const std::vector<Segment<Space>>& gradients, std::size_t parameters,
                                       const std::source_location& location) {
  double found[2] = {0, 0};  // the magnitude; how many parameters there are from the first that is not finite on
  for (const auto& segment : gradients) {
    const double largest =
        with_type(segment.gradient, [&](auto values) { return largest_magnitude(stream, values); });
    if (std::isfinite(largest)) found[0] = std::max(found[0], largest);
    else found[1] = std::max(found[1], static_cast<double>(parameters - segment.parameter));
  }
  if (comm.size() > 1) all_reduce(comm, Span<double, Space>(found, 2), max, location);
  return {found[0], found[1] > 0 ? parameters - static_cast<std::size_t>(found[1]) : GradientExtent::none};
}

/// In place of the largest magnitude where there is none.
inline constexpr double not_finite = std::numeric_limits<double>::infinity();
/// The largest of all ranks' magnitudes. Collective.
template <HostAccessible Space>
[[nodiscard]] double largest_of(AnyCommunicator<Space>& comm, double mine, const std::source_location& location) {
  all_reduce(comm, Span<double, Space>(&mine, 1), max, location);
  return mine;
}

/// The Euclidean norm of all ranks' gradients together, and of those of the ranks of `others` where there are some: the
/// same bits however they are shared out. Collective over both.
/// @pre all are finite
template <HostAccessible Space>
[[nodiscard]] double norm_of(AnyCommunicator<Space>& comm, AnyCommunicator<Space>* others,
                             typename Space::stream stream, const std::vector<Segment<Space>>& gradients,
                             double largest, const std::source_location& location) {
  if (largest == 0) return 0;
  const int exponent = FixedPointSum::exponent_for(largest);
  FixedPointSum total;
  for (const auto& segment : gradients)
    total += with_type(segment.gradient, [&](auto values) { return fixed_point_squares(stream, values, exponent); });
  for (auto* over : {&comm, others}) {
    if (over == nullptr || over->size() == 1) continue;
    std::uint64_t parts[2] = {total.high, total.low};
    all_reduce(*over, Span<std::uint64_t, Space>(parts, 2), sum, location);
    total = {parts[0] + (parts[1] >> 32), parts[1] & 0xffffffffu};
  }
  return total.root(exponent);
}

}  // namespace detail

}  // namespace distx
