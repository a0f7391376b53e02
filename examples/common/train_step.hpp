// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <distx/comm/any_communicator.hpp>
#include <distx/comm/reductions.hpp>
#include <distx/parallel/data_parallel_options.hpp>

namespace examples {

/// The mean over the ranks; each has one value. Collective.
inline double average_over_ranks(distx::AnyCommunicator<>& comm, double value) {
  distx::all_reduce(comm, value, distx::average);
  return value;
}

/// A rank's batch in micro-batches: makes each of as many places.
/// @pre count divides the number of places
template <class Make>
auto micro_batches(std::span<const std::size_t> places, std::size_t count, Make&& make) {
  std::vector<decltype(make(places))> parts;
  for (const std::size_t share = places.size() / count; !places.empty(); places = places.subspan(share))
    parts.push_back(make(places.first(share)));
  return parts;
}

struct Nothing {
  int operator()() const { return 0; }
};

/// One step over a rank's micro-batches; the mean loss of all ranks. Collective.
/// @param pass called as pass(micro-batch, share): goes forward and backward, with gradients of `share` times the loss,
///        and returns the loss
/// @param around called as around() when the step's update begins; what it returns is let go when that is done
/// @throws distx::Error where the loss is no finite number
template <class Training, class Batch, class Pass, class Around = Nothing>
double train_step(distx::AnyCommunicator<>& comm, Training& training, const std::vector<Batch>& parts, double rate,
                  Pass&& pass, Around&& around = {}) {
  const double share = 1.0 / static_cast<double>(parts.size());
  double loss = 0;
  training.begin_step();
  for (const auto& part : parts) {
    const auto scope = training.micro_batch(&part == &parts.back());
    loss += share * static_cast<double>(pass(part, share));
  }
  {
    [[maybe_unused]] const auto scope = around();
    training.step({.learning_rate = rate});
  }
  loss = average_over_ranks(comm, loss);
  if (!std::isfinite(loss))
    throw distx::Error(
        "the loss is no finite number any more: choose a lower --learning-rate, or --clip the gradients");
  return loss;
}

}  // namespace examples
