// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/step/gradient_norm.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Computes the norm of a step's gradients, and the factor that clips them, in a GPU's memory and in stream order: the
/// host reads the result only in a later call.
///
/// The bits are those of `extent_of` and `norm_of`. That takes two passes over the gradients: the largest magnitude
/// determines the unit of the fixed-point sum. With a unit derived from an earlier step, bits would depend on that
/// step, and the sum could overflow. If a gradient is not finite the factor is NaN, which makes the kernels of the
/// update skip the step on every rank.
template <MemorySpace Space>
class DeviceClip {
 public:
  using stream = typename Space::stream;
  using Gradients = std::vector<Fragment<Space>>;

  explicit DeviceClip(std::size_t parameters)
      : parameters_(parameters), there_(parameters + fixed), here_(parameters + fixed) {}

  /// Enqueues the computation for the gradients of this rank's shard. Collective over `comm` and each of
  /// `others`.
  /// @param counted  which parameters count, if there are others
  void enqueue(AnyCommunicator<Space>& comm, std::vector<AnyCommunicator<Space>>& others,
               const std::vector<bool>& counted, const Gradients& gradients, double clip_norm, stream after,
               const std::source_location& location) {
    std::vector<ReducedPiece<Space>> pieces;
    for (const auto& fragment : gradients) pieces.push_back({fragment.gradient, fragment.parameter});
    fill(after, Span<std::byte, Space>(reinterpret_cast<std::byte*>(there_.data()), there_.size() * sizeof(double)),
         std::byte{0});
    const auto each = numbers().first(parameters_), most = numbers().subspan(parameters_, 1);
    largest_magnitudes(after, std::span(std::as_const(pieces)), each);
    if (comm.size() > 1) reduce_in_order(comm, each, max, after, location);
    largest_magnitude(after, each, most);
    for (auto& over : others)
      if (over.size() > 1) reduce_in_order(over, most, max, after, location);
    if (!others.empty()) std::erase_if(pieces, [&](const auto& piece) { return !counted[piece.result]; });
    fixed_point_squares(after, std::span(std::as_const(pieces)), Span<const double, Space>(most), parts());
    if (comm.size() > 1) reduce_in_order(comm, parts(), sum, after, location);
    for (auto& over : others)
      if (over.size() > 1) reduce_in_order(over, parts(), sum, after, location);
    clip_factor(after, Span<const double, Space>(most), Span<const std::uint64_t, Space>(parts()), clip_norm, 1.0,
                result());
    copy(after, here_.span(), Span<const double, Space>(numbers()));
    enqueued(after, location);
  }
  /// Takes note that a computation has been enqueued, by `enqueue` or in captured work.
  void enqueued(stream after, const std::source_location& location) {
    copied_.record(after);
    location_ = location;
    pending_ = used_ = true;
  }
  /// Takes note that the last computation was captured, and has not been enqueued.
  void captured(stream after) {
    copied_.record(after);  // the host cannot ask for an event of a capture
    pending_ = false;
  }
  /// Takes note that the next step's norm is computed by the host.
  void forget() noexcept { used_ = false; }

  /// Returns where the factor is, for kernels.
  [[nodiscard]] const double* factor() const noexcept { return &result().data()->factor; }
  /// Whether `norm` is that of the last step.
  [[nodiscard]] bool used() const noexcept { return used_; }
  /// Whether the result of the last step was not read yet.
  [[nodiscard]] bool pending() const noexcept { return pending_; }
  /// Returns the norm of the last step; infinity if a gradient was not finite. Blocks the host until it is known.
  [[nodiscard]] double norm() const {
    wait();
    return here_[parameters_ + 3];
  }
  /// Waits for the result of the last step, if it is not known yet, and returns what was found and where it was
  /// clipped.
  [[nodiscard]] std::pair<GradientExtent, std::source_location> result_of_last_step() {
    wait();
    pending_ = false;
    GradientExtent extent{here_[parameters_]};
    for (std::size_t i = parameters_; i-- > 0;)
      if (!is_finite(here_[i])) extent.not_finite = i;
    return {extent, location_};
  }

 private:
  /// After the largest magnitude of each parameter: that of all, the two parts of the sum, and the ClipFactor.
  static constexpr std::size_t fixed = 5;

  template <class T, class Op>
  static void reduce_in_order(AnyCommunicator<Space>& comm, Span<T, Space> values, Op op, stream after,
                              const std::source_location& location) {
    make_in_order(comm, AllReduce<T, Op, Space>{values, values, op, location}, after);
  }
  void wait() const {
    if (!copied_.done()) copied_.synchronize();
  }
  [[nodiscard]] Span<double, Space> numbers() const noexcept { return there_.span(); }
  [[nodiscard]] Span<std::uint64_t, Space> parts() const noexcept {
    return {reinterpret_cast<std::uint64_t*>(there_.data() + parameters_ + 1), 2};
  }
  [[nodiscard]] Span<ClipFactor, Space> result() const noexcept {
    return {reinterpret_cast<ClipFactor*>(there_.data() + parameters_ + 3), 1};
  }

  std::size_t parameters_;
  Buffer<double, Space> there_;
  StagingBuffer<double, Space> here_;
  typename Space::event copied_{};
  std::source_location location_{};
  bool used_ = false;
  bool pending_ = false;
};

}  // namespace distx::inline DISTX_ABI::detail
