// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <source_location>

#include "distx/parallel/detail/base/contiguous.hpp"
#include "distx/parallel/parameter.hpp"
#include "distx/parallel/parameter_ref.hpp"

// What kinds of arguments the calls of a training have.
namespace distx::inline DISTX_ABI::detail {

template <class A>
inline constexpr bool always_false = false;

template <class A>
inline constexpr bool is_parameter_ref = false;
template <class T, class S>
inline constexpr bool is_parameter_ref<ParameterRef<T, S>> = true;
template <class A>
inline constexpr bool is_parameter = false;
template <class T, class S>
inline constexpr bool is_parameter<Parameter<T, S>> = true;

template <class A>
inline constexpr bool is_parameter_pointer =
    std::is_pointer_v<A> && is_parameter<std::remove_cv_t<std::remove_pointer_t<A>>>;

template <class A>
concept RangeOfRefs = iteration::Range<A> && is_parameter_ref<iteration::iterated_t<A>>;

/// Whether a ParameterRef or a Parameter is of float or double.
template <class P>
inline constexpr bool has_full_precision = false;
template <template <class, class> class P, class T, class S>
inline constexpr bool has_full_precision<P<T, S>> = FloatingElement<T> && sizeof(T) != 2;

/// A range of parameters that are all of float or double.
template <class A>
concept RangeOfFullPrecision = iteration::Range<A> &&
                               (is_parameter_ref<iteration::iterated_t<A>> || is_parameter<iteration::iterated_t<A>> ||
                                is_parameter_pointer<iteration::iterated_t<A>>) &&
                               has_full_precision<std::remove_cv_t<std::remove_pointer_t<iteration::iterated_t<A>>>>;

/// A range of what `ready` takes.
template <class A>
concept ListOfReady = iteration::Range<A> && !FloatingElement<std::remove_cv_t<iteration::iterated_t<A>>>;

/// Calls f(identity, owned) for each parameter of what `ready` and `unshard` take.
template <class A, class F>
void for_each_parameter(const A& argument, const F& f) {
  if constexpr (is_parameter_ref<A>)
    f(argument.weight.data(), false);
  else if constexpr (is_parameter<A>)
    f(identity_of(argument), true);
  else if constexpr (is_parameter_pointer<A>)
    f(identity_of(*argument), true);
  else if constexpr (ListOfReady<A>)
    for (const auto& each : argument) for_each_parameter(each, f);
  else if constexpr (Contiguous<const A>)
    f(contiguous(argument).data(), false);
  else
    static_assert(always_false<A>,
                  "distx: ready and unshard take ParameterRefs, Parameters, the arrays of weights, or ranges of these");
}

/// An argument of `ready` or `unshard`, and the line of the call, which a default argument after a pack cannot have.
class ReadyArgument {
  using Visit = void (*)(void* visitor, const void* identity, bool owned);

 public:
  template <class A>
  ReadyArgument(const A& argument, const std::source_location& line = std::source_location::current())  // NOLINT
      : location(line), argument_(&argument), each_([](const void* given, void* visitor, Visit visit) {
          const auto f = [&](const void* identity, bool owned) { visit(visitor, identity, owned); };
          for_each_parameter(*static_cast<const A*>(given), f);
        }) {}

  /// Calls f(identity, owned) for each parameter.
  template <class F>
  void for_each(F&& f) const {
    each_(argument_, &f, [](void* visitor, const void* identity, bool owned) {
      (*static_cast<std::remove_reference_t<F>*>(visitor))(identity, owned);
    });
  }

  std::source_location location;

 private:
  const void* argument_;
  void (*each_)(const void*, void*, Visit);
};

}  // namespace distx::inline DISTX_ABI::detail
