// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/engine/training.hpp"

namespace distx {

/// A moving average of the weights, of which each rank holds what it updates: avg = decay * avg + (1 - decay) * weight.
///
/// Made by `average` of a DataParallel, which outlives it; float, or double for double weights. Move-only.
template <MemorySpace Space>
class ExponentialAverage {
  using Segments = std::vector<Segment<Space>>;

 public:
  using stream = typename Space::stream;
  using here = std::source_location;

  ExponentialAverage(detail::Training<Space>& training, double decay, stream after, const here& location)
      : training_(&training), decay_(decay) {
    training.check_decay(decay, location);
    std::size_t bytes = 0;
    each([&](const Segment<Space>& segment) {
      bytes += detail::round_up_to_lines(segment.weight.size() * width(segment));
    });
    average_ = detail::hold_local<Space>(training.account(), MemoryKind::optimizer, bytes);
    training.ordered(after, [&] {
      with_average([&](const Segment<Space>& segment, Span<AnyElement, Space> mean) {
        detail::cast_to<Space>(after, mean, segment.weight);
      });
    });
  }

  /// Takes the weights in, after a step.
  void update(stream after = {}) {
    training_->ordered(after, [&] {
      with_average([&](const Segment<Space>& segment, Span<AnyElement, Space> mean) {
        detail::with_type(mean, [&]<class A>(Span<A, Space> to) {
          detail::with_type(segment.weight, [&]<class T>(Span<T, Space> weights) {
            mix(after, to, Span<const T, Space>(weights), decay_);
          });
        });
      });
    });
  }

  /// While one lives, the model has the average's values. Collective, at its end too, on the stream that it began on;
  /// there are no gradients in it.
  class [[nodiscard]] scope {
   public:
    scope(scope&& other) noexcept
        : training_(std::exchange(other.training_, nullptr)),
          segments_(std::move(other.segments_)),
          kept_(std::move(other.kept_)),
          without_gradients_(std::move(other.without_gradients_)),
          after_(other.after_) {}
    scope& operator=(scope&&) = delete;
    ~scope() {
      if (training_ == nullptr) return;
      try {
        training_->change_values(after_, training_->location(), [&] { copy_kept(false); });
      } catch (...) {  // the other ranks have been told, and the next call tells this one
      }
    }

   private:
    friend class ExponentialAverage;
    scope(detail::Training<Space>& training, Segments segments, stream after)
        : training_(&training),
          segments_(std::move(segments)),
          without_gradients_(training.without_gradients()),
          after_(after) {
      std::size_t bytes = 0;
      for (const auto& segment : segments_) bytes += detail::round_up_to_lines(segment.weight.size_bytes());
      kept_ = detail::hold_local<Space>(training.account(), MemoryKind::in_flight, bytes);
      training.ordered(after, [&] { copy_kept(true); });
    }
    void copy_kept(bool keep) {
      std::size_t begin = 0;
      for (const auto& segment : segments_) {
        const auto place = kept_->span().subspan(begin, segment.weight.size_bytes());
        const auto weight = detail::bytes_of(segment.weight);
        copy(after_, keep ? place : weight, keep ? weight : place);
        begin += detail::round_up_to_lines(place.size());
      }
    }
    detail::Training<Space>* training_;
    Segments segments_;
    detail::Held<Space> kept_;
    std::shared_ptr<void> without_gradients_;
    [[no_unique_address]] stream after_;
  };
  [[nodiscard]] scope swap_in(stream after = {}, const here& location = here::current()) {
    Segments segments;
    each([&](const Segment<Space>& segment) { segments.push_back(segment); });
    scope kept(*training_, std::move(segments), after);
    training_->change_values(after, location, [&] {
      with_average([&](const Segment<Space>& segment, Span<AnyElement, Space> mean) {
        detail::cast_to<Space>(after, segment.weight, mean);
      });
    });
    return kept;
  }

 private:
  static std::size_t width(const Segment<Space>& segment) noexcept {
    return segment.weight.type() == ElementType::f64 ? sizeof(double) : sizeof(float);
  }
  template <class F>
  void each(F&& f) {
    training_->each_updated(f);
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

  detail::Training<Space>* training_;
  double decay_;
  detail::Held<Space> average_;
};

}  // namespace distx
