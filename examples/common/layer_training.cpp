// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "layer_training.hpp"

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <distx/comm/reductions.hpp>

#include "../models/parameter_matrix.hpp"

namespace examples {

namespace {

const distx::ParameterGroup no_decay{.weight_decay = 0.0};

/// The part that does not depend on which arrays are trained.
template <class Training>
class Timed : public LayerTraining {
 public:
  Timed(std::span<Layer<float>> layers, Training training) : first_(layers.data()), training_(std::move(training)) {}

  void begin_step() override { training_.begin_step(); }
  Scope micro_batch(const distx::MicroBatchIndex& which) override { return training_.micro_batch(which); }
  Scope evaluate() override { return training_.evaluate(); }
  void step(const distx::StepOptions& options) override { training_.step(options); }
  [[nodiscard]] const StepTimes& times() const override { return training_.times(); }
  [[nodiscard]] distx::observe::MemoryLedger memory() const override { return training_.memory(); }
  void save(const std::filesystem::path& directory, const distx::checkpoint::SaveOptions& options) override {
    training_.save(directory, options);
  }
  distx::checkpoint::Loaded load(const std::filesystem::path& folder) override { return training_.load(folder); }
  std::uint64_t recover(distx::AnyCommunicator<>& comm) override { return training_.recover(comm); }

 protected:
  [[nodiscard]] std::size_t place(const Layer<float>& layer) const { return static_cast<std::size_t>(&layer - first_); }

  Layer<float>* first_;
  Training training_;
};

/// The layers' arrays are what is trained.
class InPlace final : public Timed<BorrowedTraining> {
 public:
  using Refs = std::vector<distx::ParameterRef<float>>;

  InPlace(distx::AnyCommunicator<>& comm, std::span<Layer<float>> layers, const TrainingFlags& flags, const Refs& refs)
      : Timed(layers, make_training(comm.share(), refs, flags)), refs_(refs) {}

  static Refs refs(std::span<Layer<float>> layers) {
    Refs all;
    for (auto& layer : layers) {
      const auto rows = static_cast<std::size_t>(layer.weight.cols());  // it lies column by column
      all.push_back(distx::ref(layer.name + ".weight", layer.weight, layer.weight_gradient, {.rows = rows}));
      all.push_back(distx::ref(layer.name + ".bias", layer.bias, layer.bias_gradient, {.group = no_decay}));
    }
    return all;
  }

  Scope open(Layer<float>&) override { return nullptr; }
  void ready(Layer<float>& layer, float) override {  // the whole loss: there is one micro-batch
    const std::size_t at = 2 * place(layer);
    training_.ready(refs_[at], refs_[at + 1]);
  }
  void add_to(WeightsHash& hash) override {
    for (const auto& ref : refs_) hash.add(std::span<const float>(ref.weight.data(), ref.weight.size()));
  }

 private:
  Refs refs_;
};

/// A layer as the training owns it.
template <class Weight>
struct OwnedLayer {
  Eigen::Index inputs, outputs;
  distx::Parameter<Weight> weight, bias;

  explicit OwnedLayer(Layer<float>& layer)
      : inputs(layer.weight.cols()),
        outputs(layer.weight.rows()),
        weight(layer.name + ".weight", static_cast<std::size_t>(layer.weight.size()), values_of(layer.weight),
               {.rows = static_cast<std::size_t>(inputs)}),
        bias(layer.name + ".bias", static_cast<std::size_t>(layer.bias.size()), values_of(layer.bias),
             {.group = no_decay}) {}

  /// Returns a function that writes the array's values when the training asks for them, then releases them.
  static auto values_of(const auto& array) {
    return [values = std::vector<float>(array.data(), array.data() + array.size())](auto out) mutable {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<Weight>(values[i]);
      values = {};
    };
  }
};

/// The training owns weights and gradients; the layers' arrays have them while they are used.
template <class Weight>
class Lent final : public Timed<TimedTraining<Weight>> {
  using Base = Timed<TimedTraining<Weight>>;
  using Owned = std::vector<OwnedLayer<Weight>>;

 public:
  using Scope = LayerTraining::Scope;

  Lent(distx::AnyCommunicator<>& comm, std::span<Layer<float>> layers, const TrainingFlags& flags)
      : Lent(comm, layers, flags, Owned(layers.begin(), layers.end())) {}

  Scope open(Layer<float>& layer) override {
    const auto& owned = owned_[this->place(layer)];
    const auto whole = this->training_.unshard(owned.weight, owned.bias);
    layer.weight.resize(owned.outputs, owned.inputs);
    layer.bias.resize(owned.outputs);
    copy(owned.weight, layer.weight.data());
    copy(owned.bias, layer.bias.data());
    return Scope(nullptr, [&layer](void*) { release(layer); });
  }
  void ready(Layer<float>& layer, float share) override {
    const auto& owned = owned_[this->place(layer)];
    add(owned.weight, layer.weight_gradient.data(), share);
    add(owned.bias, layer.bias_gradient.data(), share);
    this->training_.ready(owned.weight, owned.bias);
    layer.weight_gradient.resize(0, 0);
    layer.bias_gradient.resize(0);
  }
  void add_to(WeightsHash& hash) override {
    for (const auto& owned : owned_) {
      const auto whole = this->training_.unshard(owned.weight, owned.bias);
      for (const auto* parameter : {&owned.weight, &owned.bias})
        hash.add(std::span<const Weight>(parameter->value().data(), parameter->size()));
    }
  }

 private:
  Lent(distx::AnyCommunicator<>& comm, std::span<Layer<float>> layers, const TrainingFlags& flags, Owned owned)
      : Base(layers, make_training<Weight>(comm.share(), parameters(owned), flags)), owned_(std::move(owned)) {
    for (auto& layer : layers) {
      release(layer);
      layer.weight_gradient.resize(0, 0);
      layer.bias_gradient.resize(0);
    }
  }

  static std::vector<const distx::Parameter<Weight>*> parameters(const Owned& owned) {
    std::vector<const distx::Parameter<Weight>*> all;
    for (const auto& layer : owned) all.insert(all.end(), {&layer.weight, &layer.bias});
    return all;
  }
  static void release(Layer<float>& layer) {
    layer.weight.resize(0, 0);
    layer.bias.resize(0);
  }
  static void copy(const distx::Parameter<Weight>& parameter, float* to) {
    const auto values = parameter.value();
    for (std::size_t i = 0; i < values.size(); ++i) to[i] = static_cast<float>(values[i]);
  }
  static void add(const distx::Parameter<Weight>& parameter, const float* from, float share) {
    const auto gradient = parameter.gradient();
    for (std::size_t i = 0; i < gradient.size(); ++i)
      gradient[i] = static_cast<Weight>(static_cast<float>(gradient[i]) + share * from[i]);
  }

  Owned owned_;
};

}  // namespace

std::string common_hash(distx::AnyCommunicator<>& comm, LayerTraining& training) {
  WeightsHash hash;
  training.add_to(hash);
  std::uint32_t least = hash.value(), greatest = hash.value();
  distx::all_reduce(comm, least, distx::min);
  distx::all_reduce(comm, greatest, distx::max);
  if (least != greatest) throw std::runtime_error("the ranks have different weights");
  return hash.text();
}

WeightCounts count_weights(std::span<const Layer<float>> layers) {
  WeightCounts counts;
  for (const auto& layer : layers) {
    counts.all += static_cast<std::size_t>(layer.weight.size() + layer.bias.size());
    counts.in_matrices += static_cast<std::size_t>(layer.weight.size());
  }
  return counts;
}

std::unique_ptr<LayerTraining> make_layer_training(distx::AnyCommunicator<> comm, std::span<Layer<float>> layers,
                                                   const TrainingFlags& flags) {
  if (flags.short_weights()) return std::make_unique<Lent<distx::bfloat16>>(comm, layers, flags);
  if (flags.zero >= 2 || flags.accumulate > 1 || flags.reproducible)
    return std::make_unique<Lent<float>>(comm, layers, flags);
  return std::make_unique<InPlace>(comm, layers, flags, InPlace::refs(layers));
}

}  // namespace examples
