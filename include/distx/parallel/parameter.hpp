// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "distx/comm/detail/in_order.hpp"
#include "distx/memory/operations.hpp"
#include "distx/parallel/detail/base/step_faults.hpp"
#include "distx/parallel/parameter_options.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The state that a Parameter and its training share.
template <MemorySpace Space>
struct ParameterState {
  std::string name;
  std::size_t size = 0;
  ElementType type{};
  std::size_t element_bytes = 0;
  ParameterOptions options{};
  std::function<void(Span<AnyElement, Space>)> initialize;

  Span<AnyElement, Space> value{};     // empty without memory, and while only shards of it are held
  Span<AnyElement, Space> gradient{};  // empty where frozen, and while it has no memory
  std::shared_ptr<void> value_memory{};
  std::shared_ptr<void> gradient_memory{};
  /// Gives the gradient memory, and returns whether it has zeroed it; null where the gradient always has memory.
  std::function<bool(typename Space::stream)> open_gradient{};
  bool in_training = false;
  bool sharded = false;    // whole in the scopes of `unshard` only
  bool lost = false;       // sharded by a training that has ended
  bool requested = false;  // gradient() was called in this step
  typename Space::stream zeroed_on{};
  bool sent = false;                           // the gradient is being reduced
  std::shared_ptr<const std::string> ended{};  // the error that has ended the training

  /// Gives the gradient memory and zeroes it when it is first requested in a step.
  void prepare_gradient(typename Space::stream stream) {
    if (std::exchange(requested, true)) return order<Space>(zeroed_on, stream);
    zeroed_on = stream;
    if (open_gradient && open_gradient(stream)) return;
    fill(stream, Span<std::byte, Space>(gradient.bytes(), gradient.size_bytes()), std::byte{0});
  }
};

}  // namespace detail

/// A weight and its gradient in memory that the training allocates.
///
/// A Parameter has no memory until a DataParallel, or a LocalTraining, is made of it. Spans returned by `value()` and
/// `gradient()` are valid until the next step, and at stage 3 of ZeRO inside the scope of `unshard` only, so they are
/// asked for each time. Values begin on a 64-byte boundary and, below stage 3, stay readable after the training has
/// ended. Move-only.
/// @code
/// distx::Parameter<float> weight("conv1.weight", 150, [](distx::Span<float> values) { fill_normal(values); });
/// distx::DataParallel<> training(comm, distx::ParameterList<>().add(weight), distx::AdamW{});
/// @endcode
template <class T, MemorySpace Space = Host>
class Parameter {
  static_assert(FloatingElement<T>, "distx::Parameter: the element type must be float, double, bfloat16 or float16");

 public:
  /// Constructs a parameter of `size` elements.
  ///
  /// @param initialize  `initialize(values)` writes the first values over zeros; every rank calls it when the training
  ///   is constructed, and the values of `.broadcast_from` are used
  /// @throws InvalidArgument for an empty name, no elements or invalid options
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
  /// Constructs a parameter whose first values are zeros.
  Parameter(std::string name, std::size_t size, ParameterOptions options = {})
      : Parameter(std::move(name), size, [](Span<T, Space>) {}, options) {}
  Parameter(Parameter&&) noexcept = default;
  Parameter& operator=(Parameter&&) noexcept = default;

  [[nodiscard]] const std::string& name() const noexcept { return state_->name; }
  /// Returns the number of elements.
  [[nodiscard]] std::size_t size() const noexcept { return state_->size; }
  [[nodiscard]] const ParameterOptions& options() const noexcept { return state_->options; }

  /// Returns the values, all of them.
  /// @throws InvalidState before a training is made of it; at stage 3, outside the scopes of `unshard`
  [[nodiscard]] Span<T, Space> value() const {
    if (state_->value.empty())
      fail(state_->sharded ? detail::StepFault::sharded
           : state_->lost  ? detail::StepFault::shards_lost
                           : detail::StepFault::no_memory,
           "value");
    return typed(state_->value);
  }
  /// Returns the gradient, to add to. The first call of a step allocates it where gradients are sharded, and zeroes it
  /// in the order of `stream`. It is const because a Parameter refers to its memory as a span does: a function that
  /// receives the model as const computes gradients.
  /// @throws InvalidArgument if the parameter is frozen; InvalidState outside a training, or from `ready` until the
  ///   next step
  [[nodiscard]] Span<T, Space> gradient(typename Space::stream stream = {}) const {
    if (!state_->options.trainable) throw InvalidArgument(detail::frozen_message(name()), {.operation = "gradient"});
    if (!state_->in_training) fail(detail::StepFault::not_in_training, "gradient");
    if (state_->ended) throw InvalidState(*state_->ended, {.operation = "gradient"});
    if (state_->sent) fail(detail::StepFault::gradient_sent, "gradient");
    state_->prepare_gradient(stream);
    return typed(state_->gradient);
  }

 private:
  template <MemorySpace>
  friend class ParameterList;

  static Span<T, Space> typed(Span<AnyElement, Space> span) noexcept {
    return {static_cast<T*>(span.data()), span.size()};
  }
  friend const void* identity_of(const Parameter& parameter) noexcept { return parameter.state_.get(); }
  [[noreturn]] void fail(detail::StepFault fault, const char* operation) const {
    throw InvalidState(detail::message_of(fault, name()), {.operation = operation});
  }

  std::shared_ptr<detail::ParameterState<Space>> state_;
};

}  // namespace distx::inline DISTX_ABI
