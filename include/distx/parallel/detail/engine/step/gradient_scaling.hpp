// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/step/device_clip.hpp"
#include "distx/parallel/detail/engine/step/loss_scaler.hpp"
#include "distx/parallel/detail/engine/step/optimizer_shards.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Clips the gradients of a step by their norm, undoes the scale of the losses, and finds steps to be skipped.
template <MemorySpace Space>
class GradientScaling {
 public:
  using stream = typename Space::stream;
  using here = std::source_location;
  using Gradients = std::vector<Fragment<Space>>;

  /// @param scales_loss  whether some parameter of float16 has master weights
  GradientScaling(const DataParallelOptions& options, bool scales_loss) : options_(options) {
    if (scales_loss) scaler_ = LossScaler(options.first_loss_scale());
  }

  /// Counts parameters on the ranks of `others` too: the norm is that of all of them, and `counts` says which of this
  /// rank's parameters are counted here. Collective over each of `others`.
  void extend(std::vector<AnyCommunicator<Space>> others, std::vector<bool> counts,
              const std::source_location& location) {
    others_ = std::move(others);
    counts_ = std::move(counts);
    // A rank without a part of the float16 parameters scales its losses, and skips steps, with the others.
    if (largest_of(others_, scaler_.on() ? 1 : 0, location) > 0) scaler_ = LossScaler(options_.first_loss_scale());
  }

  /// Whether a step must inspect all gradients before it uses any.
  [[nodiscard]] bool inspects() const noexcept { return measures() || weight_ != 1; }
  /// Multiplies the gradients of this step.
  void weigh(double weight) noexcept { weight_ = weight; }
  /// What multiplies gradients in this step: all of them after `enqueue`; after `apply` those that are scaled late.
  [[nodiscard]] const GradientFactor& factor() const noexcept { return factor_; }
  /// The norm of the last step's gradients before they were clipped. Blocks the host until it is known.
  [[nodiscard]] double norm() const {
    if constexpr (!HostAccessible<Space>)
      if (device_ && device_->used()) return device_->norm();
    return norm_;
  }
  [[nodiscard]] const LossScaler& scaler() const noexcept { return scaler_; }
  [[nodiscard]] LossScaler& scaler() noexcept { return scaler_; }

  /// Enqueues the clipping of the reduced gradients, if that needs no decision of the host's. Collective.
  /// @return false if `apply` is to inspect them instead
  [[nodiscard]] bool enqueue(const ParameterStore<Space>& parameters, const OptimizerShards<Space>& shards,
                             AnyCommunicator<Space>& comm, stream after, const here& location) {
    if constexpr (!HostAccessible<Space>) {
      if (!skips() && options_.clips() && weight_ == 1) {
        make_device(parameters.size());
        device_->enqueue(comm, others_, counts_, gradients_of(parameters, shards), options_.clip_norm, after, location);
        factor_.there = device_->factor();
      }
    }
    return factor_.there != nullptr;
  }
  /// Allocates what a captured step uses. @pre the losses are not scaled
  void begin_capture(std::size_t parameters) {
    if constexpr (!HostAccessible<Space>)
      if (options_.clips()) make_device(parameters);
  }
  void end_capture(stream after) {
    if constexpr (!HostAccessible<Space>)
      if (options_.clips()) device_->captured(after);
  }
  /// Takes note that a captured step has been enqueued.
  void replayed(stream after, const std::source_location& location) {
    if constexpr (!HostAccessible<Space>)
      if (options_.clips()) device_->enqueued(after, location);
  }
  /// Throws the error of the last step that was enqueued.
  /// @throws NonFiniteError on every rank if its gradients were not finite
  void check_last_step(const ParameterStore<Space>& parameters, ErrorContext context) {
    if constexpr (!HostAccessible<Space>) {
      if (!device_ || !device_->pending()) return;
      const auto [extent, location] = device_->result_of_last_step();
      context.location = location;
      if (!is_finite(extent.largest)) fail(parameters, extent, context);
    }
  }

  /// Whether steps with losses or gradients that are not finite are skipped.
  [[nodiscard]] bool skips() const noexcept { return scaler_.on() || options_.skip_nonfinite; }
  /// Decides whether a step is skipped because a rank's loss is not finite. Collective if `.skip_nonfinite` is set.
  [[nodiscard]] bool skips_loss(bool finite, TrainingCommunicators<Space>& comms, const here& location) {
    if (!options_.skip_nonfinite) return false;
    double worst = finite ? 0 : magnitude_of_not_finite;
    if (comms.all().size() > 1) worst = largest_of(comms.all(), worst, location);
    worst = largest_of(others_, worst, location);
    if (worst != 0) scaler_.not_finite();
    return worst != 0;
  }

  /// Inspects the reduced gradients, and scales those that are not scaled late. Collective.
  /// @param finite_loss  whether this rank's loss is finite
  /// @return false if the step is to be skipped on all ranks
  /// @throws NonFiniteError on every rank if gradients are not finite, unless such steps are skipped
  [[nodiscard]] bool apply(const ParameterStore<Space>& parameters, const OptimizerShards<Space>& shards,
                           TrainingCommunicators<Space>& comms, bool finite_loss, stream after,
                           const ErrorContext& context) {
    factor_.value = weight_;
    if (measures() && !measure(parameters, shards, comms, finite_loss, after, context)) return false;
    if (factor_.value == 1) return true;
    shards.each_updated([&](const auto& fragment) {
      if (!shards.scales_late(fragment))
        with_type(fragment.gradient, [&](auto values) { scale(after, values, factor_.value); });
    });
    return true;
  }
  void begin_step() noexcept {
    factor_ = {};
    weight_ = 1;
  }

 private:
  [[nodiscard]] bool measures() const noexcept { return options_.clips() || skips(); }

  void make_device(std::size_t parameters) {
    if (!device_) device_ = std::make_shared<DeviceClip<Space>>(parameters);
  }
  /// Finds the factor from all gradients.
  /// @return false if the step is to be skipped
  [[nodiscard]] bool measure(const ParameterStore<Space>& parameters, const OptimizerShards<Space>& shards,
                             TrainingCommunicators<Space>& comms, bool finite_loss, stream after,
                             const ErrorContext& context) {
    Gradients gradients = gradients_of(parameters, shards);
    // With Hybrid a group has all gradients, but not all losses.
    auto& comm = comms.reducing();
    GradientExtent extent = extent_of(options_.skip_nonfinite ? comms.all() : comm, after, gradients,
                                      finite_loss || !options_.skip_nonfinite, parameters.size(), context.location);
    const bool finite = extent.not_finite == GradientExtent::none && is_finite(extent.largest);
    extent.largest = largest_of(others_, finite ? extent.largest : magnitude_of_not_finite, context.location);
    factor_.value = weight_ / scaler_.scale();
    if (!finite || !is_finite(extent.largest)) {
      if (!skips()) fail(parameters, extent, context);
      scaler_.not_finite();
      return false;
    }
    scaler_.finite();
    if constexpr (!HostAccessible<Space>)
      if (device_) device_->forget();
    if (options_.clips()) clip(gradients, extent.largest, comm, after, context.location);
    return true;
  }
  [[nodiscard]] static Gradients gradients_of(const ParameterStore<Space>& parameters,
                                              const OptimizerShards<Space>& shards) {
    Gradients gradients;
    shards.each_kept([&](const auto& fragment) {
      if (!parameters.steps()[fragment.parameter].skipped) gradients.push_back(fragment);
    });
    return gradients;
  }
  [[noreturn]] static void fail(const ParameterStore<Space>& parameters, const GradientExtent& extent,
                                const ErrorContext& context) {
    throw NonFiniteError(
        (extent.not_finite == GradientExtent::none ? "a gradient of another rank's part of the model"
                                                   : "the gradient of '" + parameters[extent.not_finite].name + "'") +
            " is infinite or not a number on some rank, and has no norm to clip; lower the learning rate, check this "
            "step's data (.guard_every = 1 names the rank), or set .skip_nonfinite",
        context);
  }
  void clip(Gradients& gradients, double largest, AnyCommunicator<Space>& comm, stream after,
            const std::source_location& location) {
    if (!others_.empty()) std::erase_if(gradients, [&](const auto& fragment) { return !counts_[fragment.parameter]; });
    norm_ = norm_of(comm, others_, after, gradients, largest, location) * factor_.value;
    if (norm_ > options_.clip_norm) factor_.value *= options_.clip_norm / norm_;
  }

  DataParallelOptions options_;
  LossScaler scaler_;
  std::vector<AnyCommunicator<Space>> others_{};
  std::vector<bool> counts_{};
  GradientFactor factor_{};
  double weight_ = 1;
  double norm_ = 0;
  std::shared_ptr<DeviceClip<Space>> device_{};  // null until the first step that needs it, and in host memory
};

}  // namespace distx::inline DISTX_ABI::detail
