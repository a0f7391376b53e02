// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <distx/comm/any_communicator.hpp>
#include <distx/comm/reductions.hpp>

#include "../data/digits.hpp"
#include "layer_training.hpp"

namespace examples {

/// Returns the fraction of the digits that the model classifies correctly. Collective.
///
/// Each rank evaluates an equal share, because opening a layer is collective; the last shares may repeat digits, which
/// do not count again.
template <class Model>
double accuracy(distx::AnyCommunicator<>& comm, Model& model, LayerTraining& training, const Digits& digits) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::size_t share = (digits.size() + ranks - 1) / ranks, first = static_cast<std::size_t>(comm.rank()) * share;
  std::vector<std::size_t> mine(share);
  for (std::size_t i = 0; i < share; ++i) mine[i] = (first + i) % digits.size();
  const auto part = select(digits, mine);
  const auto scope = training.evaluate();
  const auto read = model.predict(part.images, [&](auto& layer) { return training.open(layer); });
  std::uint64_t correct = 0;
  for (std::size_t i = 0; i < share; ++i) correct += first + i < digits.size() && read[i] == part.labels[i] ? 1 : 0;
  distx::all_reduce(comm, correct, distx::sum);
  return static_cast<double>(correct) / static_cast<double>(digits.size());
}

}  // namespace examples
