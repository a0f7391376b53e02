// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <span>
#include <type_traits>
#include <vector>

#include "distx/comm/communicator.hpp"

// Converts user arguments to the spans of a call: Spans, contiguous ranges, single elements, and lists of those.
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

/// Satisfied by a Span, or memory that converts to one.
template <class A>
concept SpanLike = is_span<std::remove_cv_t<A>> || is_memory<std::remove_cv_t<A>>;

/// Satisfied by contiguous elements: a span, a host range of transferable elements, or one arithmetic element.
template <class A>
concept OneSpan = SpanLike<A> || Element<std::remove_cv_t<A>> ||
                  (HostRange<A> && !SpanLike<range_element_t<A>> && !HostRange<range_element_t<A>> &&
                   Transferable<std::remove_cv_t<range_element_t<A>>>);

/// Satisfied by a range of contiguous elements.
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

/// Fails to compile with one message if the communicator does not support a call.
template <class C, class Call>
constexpr bool diagnose() {
  if constexpr (!ErasableCall<Call>) {
    static_assert(ErasableCall<Call>,
                  "distx: this op cannot reduce these elements: average is for floating-point types; a custom op takes "
                  "two accumulators, returns one, is trivially copyable and has at most 16 bytes");
  } else if constexpr (!std::is_same_v<typename C::space, typename Call::space>) {
    static_assert(std::is_same_v<typename C::space, typename Call::space>,
                  "distx: the span is in a memory space that this communicator does not move");
  } else {
    static_assert(Executes<C, Call>, "distx: this communicator does not support this collective for these elements");
  }
  return Executes<C, Call>;
}

/// Workspace for libraries on top of communicators: the communicator's if it provides any, otherwise its own buffer.
template <class C>
class Scratch {
 public:
  Scratch(C& comm, std::size_t bytes) {
    if constexpr (requires { comm.scratch(bytes); }) {
      span_ = comm.scratch(bytes);
    } else {
      owned_ = Buffer<std::byte, typename C::space>(bytes);
      span_ = {owned_.data(), bytes};
    }
  }
  [[nodiscard]] Span<std::byte, typename C::space> span() const noexcept { return span_; }

 private:
  Buffer<std::byte, typename C::space> owned_;
  Span<std::byte, typename C::space> span_;
};

/// Makes a call: erased if the communicator supports erased calls, otherwise with its static types.
template <class C, class Call>
void execute(C& comm, const Call& call) {
  static_assert(Communicator<C>, "distx: the first argument is not a Communicator");
  if constexpr (Communicator<C>) {
    if constexpr (!ErasableCall<Call>)
      diagnose<C, Call>();
    else if constexpr (Executes<C, erased_t<Call>>)
      comm.execute(erase(call));
    else if constexpr (Executes<C, Call>)
      comm.execute(call);
    else
      diagnose<C, Call>();
  }
}

/// A placeholder returned after a diagnosed compile error, to suppress follow-up errors.
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
/// The memory space of a communicator, or the host's for any other type, so that the call can diagnose it.
template <class C>
using space_of_t = typename space_of<C>::type;
template <class C>
using stream_of_t = typename space_of_t<C>::stream;

template <class C, class Call>
[[nodiscard]] auto start(C& comm, const Call& call, stream_of_t<C> after) {
  static_assert(Communicator<C>, "distx: the first argument is not a Communicator");
  if constexpr (!Communicator<C>) {
    return NoPending{};
  } else if constexpr (!ErasableCall<Call>) {
    diagnose<C, Call>();
    return NoPending{};
  } else if constexpr (Starts<C, erased_t<Call>>) {
    return comm.start(erase(call), after);
  } else if constexpr (Starts<C, Call>) {
    return comm.start(call, after);
  } else {
    diagnose<C, Call>();
    return NoPending{};
  }
}

}  // namespace detail

/// Satisfied by the elements of a collective: a Span, communicator memory, a contiguous host range, or one element.
template <class A>
concept SpanArgument = detail::OneSpan<std::remove_reference_t<A>>;

/// Satisfied by a list of operands: a range of SpanArguments.
template <class A>
concept ListArgument = detail::ListOfSpans<std::remove_reference_t<A>>;

}  // namespace distx
