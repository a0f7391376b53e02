// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"
#include "distx/comm/detail/in_order.hpp"
#include "distx/memory/fixed_point.hpp"
#include "distx/parallel/detail/bucket/flat_buffer.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The largest magnitude of all ranks' gradients, and the first parameter whose gradient is not finite.
struct GradientExtent {
  double largest = 0;
  std::size_t not_finite = none;
  static constexpr std::size_t none = ~std::size_t{0};
};

/// Returns the largest magnitude of each fragment's gradient, or infinity where it is not finite. Blocks the host.
template <MemorySpace Space>
[[nodiscard]] std::vector<double> magnitudes_of([[maybe_unused]] AnyCommunicator<Space>& comm,
                                                typename Space::stream stream,
                                                const std::vector<Fragment<Space>>& gradients) {
  std::vector<double> all(gradients.size());
  if constexpr (HostAccessible<Space>) {
    for (std::size_t i = 0; i < all.size(); ++i)
      all[i] = with_type(gradients[i].gradient, [&](auto values) { return largest_magnitude(stream, values); });
  } else {
    const auto found = buffer_on<double, Space>(stream, all.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      with_type(gradients[i].gradient,
                [&](auto values) { largest_magnitude(stream, values, found.span().subspan(i, 1)); });
    stream.synchronize();
    comm.host_copies().read(as_bytes(Span<double>(all)), as_bytes(Span<const double, Space>(found)));
  }
  return all;
}

/// Returns the sum of the squares of all fragments' gradients. Blocks the host.
/// @pre `largest` is at least the largest magnitude of all
template <MemorySpace Space>
[[nodiscard]] FixedPointSum squares_of([[maybe_unused]] AnyCommunicator<Space>& comm, typename Space::stream stream,
                                       const std::vector<Fragment<Space>>& gradients, double largest) {
  FixedPointSum total;
  if constexpr (HostAccessible<Space>) {
    const int exponent = FixedPointSum::exponent_for(largest);
    for (const auto& fragment : gradients)
      total += with_type(fragment.gradient, [&](auto values) { return fixed_point_squares(stream, values, exponent); });
  } else {
    const auto most = buffer_on<double, Space>(stream, 1, uninitialized);
    copy(stream, most.span(), Span<const double>(&largest, 1));
    const auto found = buffer_on<std::uint64_t, Space>(stream, 2 * gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i)
      with_type(gradients[i].gradient, [&](auto values) {
        fixed_point_squares(stream, values, Span<const double, Space>(most), found.span().subspan(2 * i, 2));
      });
    std::vector<std::uint64_t> parts(found.size());
    stream.synchronize();
    comm.host_copies().read(as_bytes(Span<std::uint64_t>(parts)), as_bytes(Span<const std::uint64_t, Space>(found)));
    for (std::size_t i = 0; i < parts.size(); i += 2) {  // low parts may exceed 32 bits
      total += {parts[i] + (parts[i + 1] >> 32), parts[i + 1] & 0xffffffffu};
    }
  }
  return total;
}

/// Stands for the largest magnitude of gradients that are not finite.
inline constexpr double magnitude_of_not_finite = std::numeric_limits<double>::infinity();

/// Returns the extent of all ranks' gradients; each rank passes its shard. Collective over `comm`.
/// @param finite_loss  if false on a rank, the largest magnitude is `magnitude_of_not_finite`
template <MemorySpace Space>
[[nodiscard]] GradientExtent extent_of(AnyCommunicator<Space>& comm, typename Space::stream stream,
                                       const std::vector<Fragment<Space>>& gradients, bool finite_loss,
                                       std::size_t parameters, const std::source_location& location) {
  double found[2] = {finite_loss ? 0 : magnitude_of_not_finite,
                     0};  // the magnitude; the number of parameters from the first that is not finite on
  const auto magnitudes = magnitudes_of<Space>(comm, stream, gradients);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (is_finite(magnitudes[i]))
      found[0] = std::max(found[0], magnitudes[i]);
    else
      found[1] = std::max(found[1], static_cast<double>(parameters - gradients[i].parameter));
  }
  if (comm.size() > 1) all_reduce_values(comm, Span<double>(found, 2), max, location);
  return {found[0], found[1] > 0 ? parameters - static_cast<std::size_t>(found[1]) : GradientExtent::none};
}

/// Returns the largest of all ranks' magnitudes. Collective over `comm`.
template <MemorySpace Space>
[[nodiscard]] double largest_of(AnyCommunicator<Space>& comm, double mine, const std::source_location& location) {
  all_reduce_values(comm, Span<double>(&mine, 1), max, location);
  return mine;
}

/// The same over several communicators, one after another; without any, `mine`.
template <MemorySpace Space>
[[nodiscard]] double largest_of(std::vector<AnyCommunicator<Space>>& comms, double mine,
                                const std::source_location& location) {
  for (auto& comm : comms) mine = largest_of(comm, mine, location);
  return mine;
}

/// Returns the Euclidean norm of the gradients of all ranks of `comm` and of `others`: the same bits for every
/// partition. Collective over each.
/// @pre all are finite
template <MemorySpace Space>
[[nodiscard]] double norm_of(AnyCommunicator<Space>& comm, std::vector<AnyCommunicator<Space>>& others,
                             typename Space::stream stream, const std::vector<Fragment<Space>>& gradients,
                             double largest, const std::source_location& location) {
  if (largest == 0) return 0;
  FixedPointSum total = squares_of<Space>(comm, stream, gradients, largest);
  const auto add_over = [&](AnyCommunicator<Space>& over) {
    if (over.size() == 1) return;
    std::uint64_t parts[2] = {total.high, total.low};
    all_reduce_values(over, Span<std::uint64_t>(parts, 2), sum, location);
    total = {parts[0] + (parts[1] >> 32), parts[1] & 0xffffffffu};
  };
  add_over(comm);
  for (auto& over : others) add_over(over);
  return total.root(FixedPointSum::exponent_for(largest));
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
