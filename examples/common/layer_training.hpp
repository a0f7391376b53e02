// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <memory>
#include <span>
#include <string>

#include <distx/comm/any_communicator.hpp>
#include <distx/observe/memory_ledger.hpp>
#include <distx/training.hpp>

#include "../models/layer.hpp"
#include "make_training.hpp"
#include "timed_training.hpp"
#include "training_flags.hpp"
#include "weights_hash.hpp"

namespace examples {

/// A training of layers that own their arrays.
///
/// If only the optimizer's state is sharded, the training uses these arrays. Otherwise it owns weights and gradients,
/// and a layer's arrays are empty except while the layer is used: weights are copied in, and gradients out.
class LayerTraining {
 public:
  using Scope = std::shared_ptr<void>;

  virtual ~LayerTraining() = default;
  /// Until the scope ends, the layer has its weights.
  [[nodiscard]] virtual Scope open(Layer<float>& layer) = 0;
  /// The layer's gradients are final; `share` times these count.
  virtual void ready(Layer<float>& layer, float share) = 0;
  /// @name As TimedTraining has them
  /// @{
  virtual void begin_step() = 0;
  [[nodiscard]] virtual Scope micro_batch(const distx::MicroBatchIndex& which) = 0;
  [[nodiscard]] virtual Scope evaluate() = 0;
  virtual void step(const distx::StepOptions& options) = 0;
  [[nodiscard]] virtual const StepTimes& times() const = 0;
  [[nodiscard]] virtual distx::observe::MemoryLedger memory() const = 0;
  virtual void save(const std::filesystem::path& directory, const distx::checkpoint::SaveOptions& options) = 0;
  virtual distx::checkpoint::Loaded load(const std::filesystem::path& folder) = 0;
  virtual std::uint64_t recover(distx::AnyCommunicator<>& comm) = 0;
  /// @}
  /// Adds all weights. Collective.
  virtual void add_to(WeightsHash& hash) = 0;
};

/// Returns the hash of all weights. Collective.
/// @throws std::runtime_error on every rank if the ranks' weights differ
[[nodiscard]] std::string common_hash(distx::AnyCommunicator<>& comm, LayerTraining& training);

/// Returns the number of weights of layers that have their arrays.
[[nodiscard]] WeightCounts count_weights(std::span<const Layer<float>> layers);

/// A training by the flags. Collective.
/// @param layers outlive it
std::unique_ptr<LayerTraining> make_layer_training(distx::AnyCommunicator<> comm, std::span<Layer<float>> layers,
                                                   const TrainingFlags& flags);

}  // namespace examples
