// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/training_engine.hpp"

namespace distx {

template <class... Policies>
class DataParallel;

/// An exponential moving average of the weights: average = decay * average + (1 - decay) * weight.
///
/// Made by `DataParallel::average`; the training must outlive it. Each rank holds the average of the weights that it
/// updates, in float, or in double for double weights. Move-only.
/// @code
/// auto average = training.average(0.999);
/// for (…) { …; training.step(options); average.update(); }
/// { const auto averaged = average.swap_in(); evaluate(model); }
/// @endcode
template <MemorySpace Space>
class ExponentialAverage {
  using Engine = detail::TrainingEngine<Space>;
  using Segments = std::vector<Segment<Space>>;

 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  /// Updates the average with the current weights, in the order of `after`; call it after each step. Local.
  void update(stream after = {}) {
    engine_->ordered(after, [&] {
      with_average([&](const Segment<Space>& segment, Span<AnyElement, Space> mean) {
        detail::with_type(mean, [&]<class A>(Span<A, Space> to) {
          detail::with_type(segment.weight, [&]<class T>(Span<T, Space> weights) {
            mix(after, to, Span<const T, Space>(weights), decay_);
          });
        });
      });
    });
  }

  /// A scope in which the model has the average's values instead of the weights; its end, too, is collective.
  class [[nodiscard]] scope {
   public:
    scope(scope&& other) noexcept
        : engine_(std::exchange(other.engine_, nullptr)),
          segments_(std::move(other.segments_)),
          kept_(std::move(other.kept_)),
          token_(std::move(other.token_)),
          after_(other.after_) {}
    scope& operator=(scope&&) = delete;
    ~scope() {
      if (engine_ == nullptr) return;
      try {
        engine_->change_values(after_, engine_->location(), [&] { copy_kept(false); });
      } catch (...) {  // the communicators are revoked: the next call throws
      }
    }

   private:
    friend class ExponentialAverage;
    scope(Engine& engine, Segments segments, stream after)
        : engine_(&engine), segments_(std::move(segments)), token_(engine.swap_token()), after_(after) {
      std::size_t bytes = 0;
      for (const auto& segment : segments_) bytes += detail::round_up_to_lines(segment.weight.size_bytes());
      kept_ = detail::allocate_tracked_local<Space>(engine.account(), observe::MemoryKind::in_flight, bytes);
      engine.ordered(after, [&] { copy_kept(true); });
    }
    void copy_kept(bool keep) {
      std::size_t begin = 0;
      for (const auto& segment : segments_) {
        const auto kept = kept_->span().subspan(begin, segment.weight.size_bytes());
        const auto weight = detail::bytes_of(segment.weight);
        copy(after_, keep ? kept : weight, keep ? weight : kept);
        begin += detail::round_up_to_lines(kept.size());
      }
    }
    Engine* engine_;
    Segments segments_;
    detail::TrackedMemory<Space> kept_;
    std::shared_ptr<void> token_;
    [[no_unique_address]] stream after_;
  };
  /// Replaces the model's weights by the average until the scope ends, on the stream `after`; gradients are refused in
  /// the scope. Collective, between steps.
  /// @throws InvalidState during a step, or inside a scope of `unshard`
  [[nodiscard]] scope swap_in(stream after = {}, const here& location = here::current()) {
    Segments segments;
    each([&](const Segment<Space>& segment) { segments.push_back(segment); });
    scope kept(*engine_, std::move(segments), after);
    engine_->change_values(after, location, [&] {
      with_average([&](const Segment<Space>& segment, Span<AnyElement, Space> mean) {
        detail::cast_to<Space>(after, segment.weight, mean);
      });
    });
    return kept;
  }

 private:
  template <class... Policies>
  friend class DataParallel;

  ExponentialAverage(Engine& engine, double decay, stream after, const here& location)
      : engine_(&engine), decay_(decay) {
    engine.check_argument(decay >= 0 && decay < 1, "average", location, [&] {
      return "invalid decay " + detail::shortest(decay) + ": must be in [0, 1), such as 0.999";
    });
    std::size_t bytes = 0;
    each([&](const Segment<Space>& segment) {
      bytes += detail::round_up_to_lines(segment.weight.size() * width(segment));
    });
    average_ = detail::allocate_tracked_local<Space>(engine.account(), observe::MemoryKind::optimizer, bytes);
    engine.ordered(after, [&] {
      with_average([&](const Segment<Space>& segment, Span<AnyElement, Space> mean) {
        detail::cast_to<Space>(after, mean, segment.weight);
      });
    });
  }

  static std::size_t width(const Segment<Space>& segment) noexcept {
    return segment.weight.type() == ElementType::f64 ? sizeof(double) : sizeof(float);
  }
  template <class F>
  void each(F&& f) {
    engine_->shards().each_updated(f);
  }
  template <class F>
  void with_average(F&& f) {
    std::size_t begin = 0;
    each([&](const Segment<Space>& segment) {
      const auto type = segment.weight.type() == ElementType::f64 ? ElementType::f64 : ElementType::f32;
      const std::size_t size = segment.weight.size();
      f(segment, Span<AnyElement, Space>(average_->span().data() + begin, size, type, width(segment)));
      begin += detail::round_up_to_lines(size * width(segment));
    });
  }

  Engine* engine_;
  double decay_;
  detail::TrackedMemory<Space> average_;
};

}  // namespace distx
