// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <distx/comm/any_communicator.hpp>
#include <distx/comm/reductions.hpp>
#include <distx/training.hpp>

namespace examples {

/// Returns the mean of all ranks' values. Collective.
inline double average_over_ranks(distx::AnyCommunicator<>& comm, double value) {
  distx::all_reduce(comm, value, distx::average);
  return value;
}

/// Splits a rank's batch into `count` micro-batches of equal size and makes each by `make(places)`.
/// @pre count divides the number of places
template <class Make>
auto micro_batches(std::span<const std::size_t> places, std::size_t count, Make&& make) {
  std::vector<decltype(make(places))> parts;
  for (const std::size_t share = places.size() / count; !places.empty(); places = places.subspan(share))
    parts.push_back(make(places.first(share)));
  return parts;
}

/// Returns the mean of all ranks' losses of a step. Collective.
/// @throws distx::NonFiniteError if it is not finite
inline double finite_loss(distx::AnyCommunicator<>& comm, double loss) {
  loss = average_over_ranks(comm, loss);
  if (!std::isfinite(loss))
    throw distx::NonFiniteError("the loss is not finite: choose a lower --learning-rate, or --clip the gradients",
                                {.operation = "train_step", .rank = comm.rank(), .size = comm.size()});
  return loss;
}

/// Makes one training step from a rank's micro-batches and returns the mean loss of all ranks. Collective.
/// @param pass called as pass(micro-batch, share): computes the loss and the gradients of `share` times the loss, and
///        returns the loss
/// @throws distx::NonFiniteError if the loss is not finite
template <class Training, class Batch, class Pass>
double train_step(distx::AnyCommunicator<>& comm, Training& training, const std::vector<Batch>& parts, double rate,
                  Pass&& pass) {
  const double share = 1.0 / static_cast<double>(parts.size());
  double loss = 0;
  training.begin_step();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto scope = training.micro_batch({.index = i, .count = parts.size()});
    loss += share * static_cast<double>(pass(parts[i], share));
  }
  training.step({.learning_rate = rate});
  return finite_loss(comm, loss);
}

}  // namespace examples
