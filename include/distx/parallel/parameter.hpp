// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <memory>
#include <utility>

#include "distx/comm/detail/in_order.hpp"
#include "distx/parallel/detail/base/step_faults.hpp"
#include "distx/parallel/detail/base/typed.hpp"
#include "distx/parallel/parameter_options.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The error that has ended a training, as later calls report it.
struct TrainingEnd {
  std::string message;
  bool rank_loss = false;

  [[noreturn]] void fail(const ErrorContext& context) const {
    if (rank_loss) throw RevokedError(message, context);
    throw InvalidState(message, context);
  }
};

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
  bool sent = false;  // the gradient is being reduced
  std::function<void(Span<AnyElement, Space>)> on_value{};
  std::shared_ptr<const TrainingEnd> ended{};

  /// Moves the values to other memory, or takes it away if `values` is empty.
  void place(Span<AnyElement, Space> values) {
    value = values;
    if (on_value) on_value(values);
  }
  /// Gives the gradient memory and zeroes it when it is first requested in a step.
  void prepare_gradient(typename Space::stream stream) {
    if (first_request(stream)) fill(stream, bytes_of(gradient), std::byte{0});
  }
  /// Adds `values`, of the gradient's type and size, to the gradient; the first ones of a step are copied.
  void add_gradient(typename Space::stream stream, Span<const AnyElement, Space> values) {
    if (first_request(stream))
      return copy(stream, bytes_of(gradient), Span<const std::byte, Space>(values.bytes(), values.size_bytes()));
    add_to(stream, gradient, values);
  }

 private:
  /// Gives the gradient memory, and returns whether it must be written before it is added to.
  [[nodiscard]] bool first_request(typename Space::stream stream) {
    if (std::exchange(requested, true)) {
      order<Space>(zeroed_on, stream);
      return false;
    }
    zeroed_on = stream;
    return !(open_gradient && open_gradient(stream));
  }
};

/// An element type of parameters; AnyElement where it is known at run time only.
template <class T>
concept ParameterElement = FloatingElement<T> || std::same_as<T, AnyElement>;

/// @throws InvalidArgument unless it is the type of a parameter's elements
inline void check_element_type(const std::string& name, ElementType type) {
  if (type != ElementType::f32 && type != ElementType::f64 && type != ElementType::bf16 && type != ElementType::f16)
    throw InvalidArgument("'" + name + "' is of " + std::string(name_of(type)) +
                              "; parameters are of float32, float64, bfloat16 or float16",
                          {.operation = "parameter"});
}

}  // namespace detail

/// A weight and its gradient in memory that the training allocates.
///
/// A Parameter has no memory until a DataParallel, or a LocalTraining, is made of it. Spans returned by `value()` and
/// `gradient()` are valid until the next step, and at stage 3 of ZeRO inside the scope of `unshard` only, so they are
/// asked for each time. Values begin on a 64-byte boundary and, below stage 3, stay readable after the training has
/// ended. Move-only.
///
/// A `Parameter<AnyElement>`, such as a wrapper of a framework has, is given its element type at run time, and returns
/// `Span<AnyElement>`.
/// @code
/// distx::Parameter<float> weight("conv1.weight", 150, [](distx::Span<float> values) { fill_normal(values); });
/// distx::DataParallel<> training(comm, distx::ParameterList<>().add(weight), distx::AdamW{});
/// @endcode
template <class T, MemorySpace Space = Host>
class Parameter {
  static_assert(detail::ParameterElement<T>,
                "distx::Parameter: the element type must be float, double, bfloat16, float16 or AnyElement");

 public:
  /// Constructs a parameter of `size` elements.
  ///
  /// @param initialize  `initialize(values)` writes the first values over zeros; every rank calls it when the training
  ///   is constructed, for one parameter after the other in the order of their buckets, and the values of
  ///   `.broadcast_from` are used. At stage 3 one bucket at a time has memory for whole values.
  /// @throws InvalidArgument for an empty name, no elements or invalid options
  template <class F>
    requires std::invocable<F&, Span<T, Space>> && FloatingElement<T>
  Parameter(std::string name, std::size_t size, F initialize, ParameterOptions options = {})
      : Parameter(element_type<T>, std::move(name), size, std::move(initialize), std::move(options)) {}
  /// Constructs a parameter whose first values are zeros.
  Parameter(std::string name, std::size_t size, ParameterOptions options = {})
    requires FloatingElement<T>
      : Parameter(std::move(name), size, [](Span<T, Space>) {}, std::move(options)) {}
  /// Constructs a parameter of `size` elements of `type`.
  /// @throws InvalidArgument also for a type that is not a parameter's
  template <class F>
    requires std::invocable<F&, Span<T, Space>> && std::same_as<T, AnyElement>
  Parameter(std::string name, ElementType type, std::size_t size, F initialize, ParameterOptions options = {})
      : Parameter(type, std::move(name), size, std::move(initialize), std::move(options)) {
    detail::check_element_type(state_->name, type);
  }
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
  ///   next step; after an error, the error of the training's calls
  [[nodiscard]] Span<T, Space> gradient(typename Space::stream stream = {}) const {
    check_writable("gradient");
    state_->prepare_gradient(stream);
    return typed(state_->gradient);
  }
  /// Adds values to the gradient, in the order of `stream`. The first ones of a step are copied, in one pass over the
  /// memory instead of the three of zeroing and adding.
  /// @throws InvalidArgument unless they have the gradient's type and size; else as `gradient`
  void add_gradient(Span<const T, Space> values, typename Space::stream stream = {}) const {
    check_writable("add_gradient");
    const Span<const AnyElement, Space> given(values);
    if (given.size() != size() || given.type() != state_->type)
      throw InvalidArgument("the gradient of '" + name() + "' has " + std::to_string(size()) + " elements of " +
                                std::string(name_of(state_->type)) + ", but " + std::to_string(given.size()) + " of " +
                                std::string(name_of(given.type())) + " were passed",
                            {.operation = "add_gradient"});
    state_->add_gradient(stream, given);
  }
  /// Calls `f(values)` whenever the values get memory or move, and `f` of an empty span when they lose it, as at stage
  /// 3 at the end of a scope of `unshard`, so that a framework's tensor can follow. `f` must not throw. Replaces an
  /// earlier one.
  template <std::invocable<Span<T, Space>> F>
  void on_value(F f) const {
    state_->on_value = [f = std::move(f)](Span<AnyElement, Space> values) mutable { f(typed(values)); };
  }

 private:
  template <MemorySpace>
  friend class ParameterList;

  template <class F>
  Parameter(ElementType type, std::string name, std::size_t size, F initialize, ParameterOptions options)
      : state_(std::make_shared<detail::ParameterState<Space>>()) {
    detail::check_parameter(name, size, options);
    state_->name = std::move(name);
    state_->size = size;
    state_->type = type;
    state_->element_bytes = size_of(type);
    state_->options = std::move(options);
    state_->initialize = [f = std::move(initialize)](Span<AnyElement, Space> values) mutable { f(typed(values)); };
  }
  static Span<T, Space> typed(Span<AnyElement, Space> span) noexcept {
    if constexpr (FloatingElement<T>)
      return {static_cast<T*>(span.data()), span.size()};
    else
      return span;
  }
  void check_writable(const char* operation) const {
    if (!state_->options.trainable) throw InvalidArgument(detail::frozen_message(name()), {.operation = operation});
    if (!state_->in_training) fail(detail::StepFault::not_in_training, operation);
    if (state_->ended) state_->ended->fail({.operation = operation});
    if (state_->sent) fail(detail::StepFault::gradient_sent, operation);
  }
  friend const void* identity_of(const Parameter& parameter) noexcept { return parameter.state_.get(); }
  [[noreturn]] void fail(detail::StepFault fault, const char* operation) const {
    throw InvalidState(detail::message_of(fault, name()), {.operation = operation});
  }

  std::shared_ptr<detail::ParameterState<Space>> state_;
};

}  // namespace distx::inline DISTX_ABI
