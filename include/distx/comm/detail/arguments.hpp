// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <initializer_list>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "distx/comm/communicator.hpp"
#include "distx/comm/owning_pending.hpp"

// Converts user arguments to the spans of a call: Spans, contiguous ranges, single elements, and lists of those.
namespace distx::inline DISTX_ABI::detail {

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

template <class A>
inline constexpr bool is_string = false;
template <class T, class Traits, class Allocator>
inline constexpr bool is_string<std::basic_string<T, Traits, Allocator>> = true;

/// Satisfied by a range of contiguous elements.
template <class A>
concept ListOfSpans =
    !OneSpan<A> && HostRange<A> && OneSpan<range_element_t<A>> && !is_string<std::remove_cv_t<range_element_t<A>>>;

template <class A>
inline constexpr bool is_vector_of_bool = false;
template <class Allocator>
inline constexpr bool is_vector_of_bool<std::vector<bool, Allocator>> = true;

/// Satisfied by common mistakes, which `as_span` diagnoses: a pointer, std::vector<bool>, a range of elements that
/// cannot be sent, or a range that is not contiguous.
template <class A>
concept MistakenSpan =
    !OneSpan<A> && !ListOfSpans<A> &&
    (std::is_pointer_v<std::remove_cv_t<A>> || is_vector_of_bool<std::remove_cv_t<A>> || std::ranges::range<A>);

/// Fails to compile with one message that says why A is not a buffer.
template <MistakenSpan A>
constexpr void diagnose_span() {
  static_assert(!std::is_pointer_v<std::remove_cv_t<A>>,
                "distx: a pointer does not say how many elements it points to; pass std::span(pointer, count)");
  static_assert(!is_vector_of_bool<std::remove_cv_t<A>>,
                "distx: std::vector<bool> does not store addressable elements; use std::vector<std::uint8_t>");
  static_assert(!HostRange<A>,
                "distx: the elements of this range cannot be sent: they must be trivially copyable, unlike std::string "
                "or std::vector");
  static_assert(
      std::is_pointer_v<std::remove_cv_t<A>> || is_vector_of_bool<std::remove_cv_t<A>> || HostRange<A>,
      "distx: the elements of this range are not contiguous in memory, unlike those of std::vector, std::array "
      "and std::span; copy them into one of these");
}

template <class A>
constexpr auto as_span(A& argument) {
  if constexpr (is_span<std::remove_cv_t<A>>)
    return argument;
  else if constexpr (is_memory<std::remove_cv_t<A>>)
    return argument.span();
  else if constexpr (Element<std::remove_cv_t<A>>)
    return Span<A, Host>(&argument, 1);
  else if constexpr (MistakenSpan<A>) {
    diagnose_span<std::remove_cv_t<A>>();
    return Span<float, Host>();
  } else
    return Span<range_element_t<A>, Host>(std::span(argument).data(), std::span(argument).size());
}

template <class A>
using span_t = decltype(as_span(std::declval<A&>()));
template <class A>
using value_t = typename span_t<A>::value_type;
template <class A>
using space_t = typename span_t<A>::space;

template <class T, class S>
constexpr Span<const T, S> as_const(Span<T, S> span) noexcept {
  return {span.data(), span.size()};
}
template <class T, class S>
constexpr Span<const T, S> as_const(Span<const T, S> span) noexcept {
  return span;
}

/// Returns the send side as the span that a call needs, or a list as a vector of these.
template <class Send>
auto from(Send& send) {
  if constexpr (ListOfSpans<Send>) {
    std::vector<decltype(from(*std::span(send).data()))> list;
    for (auto& item : std::span(send)) list.push_back(from(item));
    return list;
  } else {
    return as_const(as_span(send));
  }
}
/// Returns the receive side likewise; fails to compile with a message if the types do not match.
template <class Send, class Receive>
auto into(Receive& receive) {
  if constexpr (ListOfSpans<Send>) {
    using Item = range_element_t<Send>;
    std::vector<Span<value_t<Item>, space_t<Item>>> list;
    for (auto& item : std::span(receive)) list.push_back(into<Item>(item));
    return list;
  } else {
    using Wanted = Span<value_t<Send>, space_t<Send>>;
    if constexpr (std::convertible_to<span_t<Receive>, Wanted>) {
      return Wanted(as_span(receive));
    } else if constexpr (!std::is_same_v<value_t<Send>, value_t<Receive>>) {
      static_assert(std::is_same_v<value_t<Send>, value_t<Receive>>,
                    "distx: send and receive have elements of two types");
    } else if constexpr (std::is_const_v<typename span_t<Receive>::element_type>) {
      static_assert(!std::is_const_v<typename span_t<Receive>::element_type>,
                    "distx: the buffer to receive into is const");
    } else {
      static_assert(std::is_same_v<space_t<Send>, space_t<Receive>>,
                    "distx: send and receive are in different memory spaces");
    }
    if constexpr (!std::convertible_to<span_t<Receive>, Wanted>) return Wanted();
  }
}

/// Satisfied by a range where an op is expected.
template <class Call>
concept OpIsRange = requires(const Call& call) { requires HostRange<const decltype(call.op)>; };
/// Satisfied by a reduction of characters, which are not numbers.
template <class Call>
concept ReducesCharacters = requires(const Call& call) { call.op; } && std::same_as<typename Call::element, char>;

/// Fails to compile with one message if the communicator does not support a call.
template <class C, class Call>
constexpr bool diagnose() {
  if constexpr (OpIsRange<Call>) {
    static_assert(!OpIsRange<Call>, "distx: the op is missing; pass distx::sum, or another op, after the buffers");
  } else if constexpr (ReducesCharacters<Call>) {
    static_assert(!ReducesCharacters<Call>,
                  "distx: char is a character and cannot be reduced; use std::int8_t or std::uint8_t");
  } else if constexpr (!ErasableCall<Call>) {
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

/// Satisfied by an argument that the caller keeps alive: an lvalue, or a view on the caller's elements.
template <class A>
concept Outlives = std::is_lvalue_reference_v<A> || is_span<std::remove_cvref_t<A>> ||
                   std::ranges::enable_borrowed_range<std::remove_cvref_t<A>>;
template <class A>
concept ListOutlives =
    std::is_lvalue_reference_v<A> || Outlives<std::remove_cv_t<range_element_t<std::remove_reference_t<A>>>>;

template <class A>
concept IntegerRange = requires(const A& range) {
  requires std::integral<std::remove_cv_t<typename decltype(std::span(range))::element_type>>;
};

/// The counts of a blocking call, one integer per rank: `std::vector<std::size_t>`, MPI's `std::vector<int>`,
/// `{3, 4}`, or `{}` if all blocks are equal.
class BlockCounts {
 public:
  BlockCounts() = default;
  BlockCounts(std::initializer_list<std::size_t> counts) : counts_(counts.begin(), counts.size()) {}
  template <class A>
    requires(!std::same_as<A, BlockCounts>)
  BlockCounts(const A& counts) {  // NOLINT(google-explicit-constructor): an argument
    static_assert(IntegerRange<A>, "distx: counts are one integer per rank; pass a std::vector<std::size_t> or {3, 4}");
    if constexpr (std::convertible_to<const A&, Counts>) {
      counts_ = counts;
    } else if constexpr (IntegerRange<A>) {
      for (const auto count : std::span(counts)) owned_.push_back(static_cast<std::size_t>(count));
      counts_ = owned_;
    }
  }
  BlockCounts(BlockCounts&&) = delete;

  operator Counts() const noexcept { return counts_; }  // NOLINT(google-explicit-constructor): an argument

 private:
  std::vector<std::size_t> owned_;
  Counts counts_;
};

/// The counts of lists: none.
class EqualBlocks {
 public:
  EqualBlocks() = default;
  template <class A>
    requires(!std::same_as<A, EqualBlocks>)
  EqualBlocks(const A&) {  // NOLINT(google-explicit-constructor): an argument
    static_assert(std::same_as<A, EqualBlocks>,
                  "distx: a list of buffers takes no counts; omit them, or pass {} before a stream");
  }
  template <std::integral T>
  EqualBlocks(std::initializer_list<T>) : EqualBlocks(T()) {}

  operator Counts() const noexcept { return {}; }  // NOLINT(google-explicit-constructor): an argument
};

/// The counts of an asynchronous call, which are borrowed as its buffers are.
class BorrowedCounts {
 public:
  BorrowedCounts() = default;
  template <class A>
    requires(!std::same_as<std::remove_cvref_t<A>, BorrowedCounts>)
  BorrowedCounts(A&& counts) {  // NOLINT(google-explicit-constructor): an argument
    static_assert(Outlives<A> && std::convertible_to<A, Counts>,
                  "distx: an asynchronous call borrows its counts; pass a std::vector<std::size_t> that lives until "
                  "wait()");
    if constexpr (Outlives<A> && std::convertible_to<A, Counts>) counts_ = counts;
  }
  template <std::integral T>
  BorrowedCounts(std::initializer_list<T>) {
    static_assert(!std::integral<T>,
                  "distx: an asynchronous call borrows its counts; pass a std::vector<std::size_t> that lives until "
                  "wait()");
  }

  operator Counts() const noexcept { return counts_; }  // NOLINT(google-explicit-constructor): an argument

 private:
  Counts counts_;
};

/// The counts of a blocking, and of an asynchronous call that sends `Send`.
template <class Send>
using CountsOf = std::conditional_t<ListOfSpans<std::remove_reference_t<Send>>, EqualBlocks, BlockCounts>;
template <class Send>
using BorrowedCountsOf = std::conditional_t<ListOfSpans<std::remove_reference_t<Send>>, EqualBlocks, BorrowedCounts>;

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
    if constexpr (!ErasableCall<Call> || ReducesCharacters<Call>)
      diagnose<C, Call>();
    else if constexpr (Executes<C, calls::Call<typename Call::space>>)
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
  } else if constexpr (!ErasableCall<Call> || ReducesCharacters<Call>) {
    diagnose<C, Call>();
    return NoPending{};
  } else if constexpr (Starts<C, calls::Call<typename Call::space>>) {
    return comm.start(erase(call), after);
  } else if constexpr (Starts<C, Call>) {
    return comm.start(call, after);
  } else {
    diagnose<C, Call>();
    return NoPending{};
  }
}

/// Starts the call that `make` returns for the buffers. Buffers that are passed as rvalues and own their elements are
/// moved to memory which lives until the call is complete; lists are borrowed.
template <class C, class Make, class... Buffers>
[[nodiscard]] auto start_on(C& comm, stream_of_t<C> after, Make make, Buffers&&... buffers) {
  constexpr bool lists = (ListOfSpans<std::remove_reference_t<Buffers>> && ...);
  static_assert(!lists || (ListOutlives<Buffers> && ...),
                "distx: an asynchronous call borrows its buffers until wait(), and this list owns them and is a "
                "temporary; give it a name that lives until then");
  if constexpr (lists || (Outlives<Buffers> && ...)) {
    return start(comm, make(buffers...), after);
  } else {
    constexpr std::size_t count = sizeof...(Buffers);
    constexpr bool owned[]{!Outlives<Buffers>...};
    constexpr std::size_t returned = owned[count - 1] ? count - 1 : count - 2;
    auto kept = std::make_shared<std::tuple<Buffers...>>(std::forward<Buffers>(buffers)...);
    auto pending = start(comm, std::apply(make, *kept), after);
    constexpr bool both = owned[0] && returned != 0;
    using Handle = OwningPending<decltype(pending), returned, both, Buffers...>;
    return Handle(std::move(pending), std::move(kept));
  }
}

/// Returns the caller's memory as typed communicator memory, if `adopt(bytes)` returns it as bytes.
template <class A, class Adopt>
auto typed_adoption(A& memory, Adopt&& adopt) {
  static_assert(Outlives<A>,
                "distx: adopt borrows the memory until the returned handle is destroyed, and this is a temporary; give "
                "it a name that lives until then");
  const auto elements = as_span(memory);
  using T = typename decltype(elements)::element_type;
  static_assert(!std::is_const_v<T>, "distx: adopt: other ranks write to communicator memory, and this is const");
  return CommunicatorMemory<T, Host>::from_bytes(
      adopt(Span<std::byte>(reinterpret_cast<std::byte*>(elements.data()), elements.size_bytes())), elements.size());
}
template <class C>
[[noreturn]] void throw_cannot_adopt(const C& comm, const std::source_location& location) {
  throw InvalidArgument("this communicator cannot adopt memory; use memory of its allocate",
                        {"adopt", comm.backend(), comm.rank(), comm.size(), location});
}

}  // namespace distx::inline DISTX_ABI::detail
