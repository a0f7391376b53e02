// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <span>
#include <type_traits>
#include <vector>

#include "distx/comm/communicator.hpp"

// How a user's arguments become the spans of a call: Spans, contiguous ranges, single elements; and lists of those.
namespace distx {

namespace detail {

template <class T>
inline constexpr bool is_span = false;
template <class T, class S>
inline constexpr bool is_span<Span<T, S>> = true;
template <class T>
inline constexpr bool is_memory = false;
template <class T, class S>
inline constexpr bool is_memory<CommunicatorMemory<T, S>> = true;
template <class T, class S>
inline constexpr bool is_memory<Buffer<T, S>> = true;

template <class A>
concept HostRange = requires(A& range) { std::span(range); };
template <class A>
using range_element_t = typename decltype(std::span(std::declval<A&>()))::element_type;

/// A Span, or memory that gives one.
template <class A>
concept SpanLike = is_span<std::remove_cv_t<A>> || is_memory<std::remove_cv_t<A>>;

/// Elements side by side: a span, a host range of what may be moved, or one arithmetic element by itself.
template <class A>
concept OneSpan = SpanLike<A> || Element<std::remove_cv_t<A>> ||
                  (HostRange<A> && !SpanLike<range_element_t<A>> && !HostRange<range_element_t<A>> &&
                   Transferable<std::remove_cv_t<range_element_t<A>>>);

/// A range of such.
template <class A>
concept ListOfSpans = !OneSpan<A> && HostRange<A> && OneSpan<range_element_t<A>>;

template <class A>
constexpr auto as_span(A& argument) {
  if constexpr (is_span<std::remove_cv_t<A>>)
    return argument;
  else if constexpr (is_memory<std::remove_cv_t<A>>)
    return argument.span();
  else if constexpr (Element<std::remove_cv_t<A>>)
    return Span<A, Host>(&argument, 1);
  else
    return Span<range_element_t<A>, Host>(std::span(argument).data(), std::span(argument).size());
}

template <class A>
using span_t = decltype(as_span(std::declval<A&>()));
template <class A>
using value_t = typename span_t<A>::value_type;
template <class A>
using space_t = typename span_t<A>::space;

template <ListOfSpans A>
auto as_list(A& argument) {
  std::vector<span_t<range_element_t<A>>> list;
  for (auto& item : std::span(argument)) list.push_back(as_span(item));
  return list;
}

template <class T, class S>
constexpr Span<const T, S> as_const(Span<T, S> span) noexcept {
  return {span.data(), span.size()};
}
template <class T, class S>
constexpr Span<const T, S> as_const(Span<const T, S> span) noexcept {
  return span;
}

/// The sentence for a call that a communicator cannot make, as the only error.
template <class C, class Call>
constexpr bool diagnose() {
  if constexpr (!ErasableCall<Call>) {
    static_assert(ErasableCall<Call>,
                  "distx: this op cannot reduce these elements: average is for float, double and shorter floats; a "
                  "user's op takes two accumulators, returns one, is trivially copyable and has at most 16 bytes");
  } else if constexpr (!std::is_same_v<typename C::space, typename Call::space>) {
    static_assert(std::is_same_v<typename C::space, typename Call::space>,
                  "distx: the span lies in a memory space that this communicator does not move");
  } else {
    static_assert(Executes<C, Call>, "distx: this communicator has no such collective for these elements");
  }
  return Executes<C, Call>;
}

template <class C, class Call>
void execute(C& comm, const Call& call) {
  static_assert(Communicator<C>, "distx: the first argument is no Communicator");
  if constexpr (Communicator<C>) {
    if constexpr (Executes<C, Call> && ErasableCall<Call>)
      comm.execute(call);
    else
      diagnose<C, Call>();
  }
}

/// Stands for the Pending after an error that has been told, so that its user is not told another.
struct NoPending {
  template <class... Stream>
  void wait(Stream...) {}
  bool test() { return true; }
};

template <class C>
struct space_of {
  using type = Host;
};
template <class C>
  requires requires { typename C::space::stream; }
struct space_of<C> {
  using type = typename C::space;
};
/// The space of a communicator; of anything else the host's, so that a call can say that it is none.
template <class C>
using space_of_t = typename space_of<C>::type;
template <class C>
using stream_of_t = typename space_of_t<C>::stream;

template <class C, class Call>
[[nodiscard]] auto start(C& comm, const Call& call, stream_of_t<C> after) {
  static_assert(Communicator<C>, "distx: the first argument is no Communicator");
  if constexpr (Communicator<C> && Starts<C, Call> && ErasableCall<Call>) {
    return comm.start(call, after);
  } else {
    if constexpr (Communicator<C>) diagnose<C, Call>();
    return NoPending{};
  }
}

}  // namespace detail

/// What may stand for the elements of a collective: a Span, communicator memory, a contiguous host range, one element.
template <class A>
concept SpanArgument = detail::OneSpan<std::remove_reference_t<A>>;

/// What may stand for a list of them.
template <class A>
concept ListArgument = detail::ListOfSpans<std::remove_reference_t<A>>;

}  // namespace distx
