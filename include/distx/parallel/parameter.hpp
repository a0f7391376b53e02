// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "distx/comm/detail/in_order.hpp"
#include "distx/memory/operations.hpp"
#include "distx/parallel/parameter_options.hpp"

namespace distx {

namespace detail {

/// What a Parameter and the training that materialised it share.
template <MemorySpace Space>
struct ParameterState {
  std::string name;
  std::size_t size = 0;
  ElementType type{};
  std::size_t element_bytes = 0;
  ParameterOptions options{};
  std::function<void(Span<AnyElement, Space>)> initialize;

  Span<AnyElement, Space> value{};     // empty until materialised, and while only shards of it are held
  Span<AnyElement, Space> gradient{};  // empty where frozen, and while there is none
  std::shared_ptr<void> value_memory{};
  std::shared_ptr<void> gradient_memory{};
  std::function<void(typename Space::stream)> open_gradient{};  // null where the gradient's memory is always there
  bool in_training = false;
  bool sharded = false;  // whole in the scopes of `unshard` only
  bool lost = false;     // sharded by a training that has ended
  bool touched = false;  // gradient() was asked for in this step
  typename Space::stream zeroed_on{};
  bool sent = false;  // its gradient is no longer this rank's to write

  /// The first gradient of a step is zero.
  void touch(typename Space::stream stream) {
    if (std::exchange(touched, true)) return order<Space>(zeroed_on, stream);
    zeroed_on = stream;
    if (open_gradient) open_gradient(stream);
    fill(stream, Span<std::byte, Space>(gradient.bytes(), gradient.size_bytes()), std::byte{0});
  }
};

}  // namespace detail

/// A weight and its gradient that the training owns: empty until a DataParallel is made of it, then in its memory.
///
/// `value()` and `gradient()` are asked for each time: what they return holds until the next step, no longer, and at
/// stage 3 of ZeRO in the scope of `unshard` only. The values start on a 64-byte boundary and, below stage 3, may be
/// read after the training has gone. Move-only.
template <class T, MemorySpace Space = Host>
class Parameter {
  static_assert(FloatingElement<T>, "distx::Parameter: weights are float, double, bfloat16 or float16");

 public:
  /// `initialize(values)` writes the first values into zeros. Every rank calls it; the root's values win.
  template <class F>
    requires std::invocable<F&, Span<T, Space>>
  Parameter(std::string name, std::size_t size, F initialize, ParameterOptions options = {})
      : state_(std::make_shared<detail::ParameterState<Space>>()) {
    detail::check_parameter(name, size, options);
    state_->name = std::move(name);
    state_->size = size;
    state_->type = element_type<T>;
    state_->element_bytes = sizeof(T);
    state_->options = options;
    state_->initialize = [f = std::move(initialize)](Span<AnyElement, Space> values) mutable { f(typed(values)); };
  }
  /// Zeros at first.
  Parameter(std::string name, std::size_t size, ParameterOptions options = {})
      : Parameter(std::move(name), size, [](Span<T, Space>) {}, options) {}
  Parameter(Parameter&&) noexcept = default;
  Parameter& operator=(Parameter&&) noexcept = default;

  [[nodiscard]] const std::string& name() const noexcept { return state_->name; }
  [[nodiscard]] std::size_t size() const noexcept { return state_->size; }
  [[nodiscard]] const ParameterOptions& options() const noexcept { return state_->options; }

  /// @throws Error before a DataParallel was made of it; at stage 3, outside the scopes of its `unshard`
  [[nodiscard]] Span<T, Space> value() const {
    if (state_->value.empty())
      fail(state_->sharded ? "is held in shards, one on each rank: read it in the scope of auto weights = "
                             "training.unshard(…)"
           : state_->lost  ? "was held in shards by a training that has ended: call release() before that ends"
                           : "has no memory yet: make a DataParallel of it first",
           "value");
    return typed(state_->value);
  }
  /// The gradient to add to; the first one of a step is zero, so there is nothing to reset.
  /// @throws Error after `ready`, until the next step; where it is frozen
  [[nodiscard]] Span<T, Space> gradient(typename Space::stream stream = {}) const {
    if (!state_->options.trainable) fail("is frozen and has no gradient: set .trainable", "gradient");
    if (!state_->in_training) fail("is in no training: make a DataParallel of it first", "gradient");
    if (state_->sent)
      fail("was declared ready, and its gradient is being reduced: write it before ready, or declare more .uses",
           "gradient");
    state_->touch(stream);
    return typed(state_->gradient);
  }

 private:
  template <MemorySpace>
  friend class ParameterList;

  static Span<T, Space> typed(Span<AnyElement, Space> span) noexcept {
    return {static_cast<T*>(span.data()), span.size()};
  }
  friend const void* identity_of(const Parameter& parameter) noexcept { return parameter.state_.get(); }
  [[noreturn]] void fail(const char* words, const char* operation) const {
    throw Error("'" + name() + "' " + words, {.operation = operation});
  }

  std::shared_ptr<detail::ParameterState<Space>> state_;
};

}  // namespace distx
