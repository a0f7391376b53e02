// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <utility>
#include <vector>

#include "distx/comm/detail/fused_list.hpp"
#include "distx/core/detail/revocation_reason.hpp"

// Coalesced collectives: a function of reductions.hpp, movement.hpp or point_to_point.hpp that takes lists of buffers
// of one element type computes the result of one call per item. Small items are packed into one message. The number of
// items and the length of item i are the same on every rank; lists that only the root uses may be empty on the other
// ranks. Errors are those of the call on one buffer, and a MismatchError if the lists differ in their lengths; an empty
// list makes a call for it.
namespace distx::inline DISTX_ABI {

/// The asynchronous calls of a list and the packed copies of its small items; `wait` unpacks them.
template <class P, class T, class S>
class PendingList {
 public:
  /// Starts the calls that `make_call(send, receive)` returns for the items. For the functions `start_…` of lists.
  /// @throws the error of the item that failed, if another one's call is revoked because of it
  template <class C, class MakeCall>
  PendingList(detail::FusedList<T, S> list, C& comm, const MakeCall& make_call, typename S::stream after)
      : list_(std::move(list)), packed_(std::make_shared<Buffer<std::byte, S>>(list_.fused_bytes())) {
    try {
      start(comm, make_call, after);
    } catch (const RevokedError&) {
      wait_for_all(std::exchange(pendings_, {}));
      throw;
    }
  }
  PendingList(PendingList&&) noexcept = default;
  PendingList& operator=(PendingList&& other) noexcept {
    settle();
    list_ = std::move(other.list_);
    packed_ = std::move(other.packed_);
    pendings_ = std::exchange(other.pendings_, {});
    return *this;
  }
  ~PendingList() { settle(); }

  /// Blocks the host until all calls are complete, and unpacks the small items.
  void wait() { finish({}); }
  /// Orders work that is later enqueued on `stream` after all calls; blocks if the memory space is the host's.
  void wait(typename S::stream stream) { finish(stream, stream); }
  /// Returns whether all calls are complete. Never blocks.
  [[nodiscard]] bool test() {
    for (auto& pending : pendings_)
      if (!pending.test()) return false;
    return true;
  }

 private:
  template <class C, class MakeCall>
  void start(C& comm, const MakeCall& make_call, typename S::stream after) {
    for (const auto item : list_.large())
      pendings_.push_back(detail::start(comm, list_.call_on(item, make_call), after));
    if (!list_.fuses()) return;
    list_.pack(after, packed_->span());
    pendings_.push_back(detail::start(comm, list_.fused_call(make_call), after));
    if constexpr (requires(P& pending) { pending.keep(packed_); }) pendings_.back().keep(packed_);
  }
  template <class... Stream>
  void finish(typename S::stream unpacked_on, Stream... stream) {
    if (pendings_.empty()) return;
    wait_for_all(std::exchange(pendings_, {}), stream...);
    if (list_.fuses()) list_.unpack(unpacked_on);
  }
  /// One item may have found the reason, such as a mismatch, for which the others are revoked: throws the error of that
  /// item.
  template <class... Stream>
  static void wait_for_all(std::vector<P> pendings, Stream... stream) {
    std::exception_ptr revoked;
    for (auto& pending : pendings) {
      try {
        pending.wait(stream...);
      } catch (const RevokedError&) {
        if (revoked == nullptr) revoked = std::current_exception();
      }
    }
    if (revoked != nullptr) std::rethrow_exception(revoked);
  }

  void settle() noexcept {
    if (std::uncaught_exceptions() > uncaught_) pendings_.clear();  // this revokes the communicator
    try {
      wait();
    } catch (...) {
      pendings_.clear();  // the failed call has revoked the communicator: its next call throws the reason
    }
  }

  int uncaught_ = std::uncaught_exceptions();
  detail::FusedList<T, S> list_;
  std::shared_ptr<Buffer<std::byte, S>> packed_;
  std::vector<P> pendings_;  // last: the calls borrow the packed copies
};

namespace detail {

using here = std::source_location;

/// The calls of a list: `make(send, receive)` returns that of an item.
template <class T, class S, class Make>
struct ListOfCalls {
  std::vector<Span<const T, S>> sends;
  std::vector<Span<T, S>> receives;
  Make make;
};

template <class T, class S, class Make>
auto make_calls(Span<const T, S> send, Span<T, S> receive, const Make& make) {
  return make(send, receive);
}
template <class T, class S, class Make>
auto make_calls(std::vector<Span<const T, S>> sends, std::vector<Span<T, S>> receives, const Make& make) {
  return ListOfCalls<T, S, Make>{std::move(sends), std::move(receives), make};
}

/// Returns the call on two buffers, or those on the items of two lists.
/// @tparam Op  the type of the op, if the call has one
/// @param arguments  what the call has after its buffers
template <template <class...> class Call, class... Op, class Send, class Receive, class... Arguments>
auto call_of(Send& send, Receive& receive, Arguments... arguments) {
  return make_calls(from(send), into<Send>(receive), [=]<class T, class S>(Span<const T, S> s, Span<T, S> r) {
    return Call<T, Op..., S>{s, r, arguments...};
  });
}

/// Returns the call on one buffer that is written, or those on the items of a list.
template <template <class...> class Call, class Buffer, class... Arguments>
auto call_on(Buffer& buffer, Arguments... arguments) {
  return make_calls(from(buffer), into<Buffer>(buffer),
                    [=]<class T, class S>(Span<const T, S>, Span<T, S> r) { return Call<T, S>{r, arguments...}; });
}

/// Starts the call on two buffers, or those on the items of two lists, by `start_on`.
template <template <class...> class Call, class... Op, class C, class Send, class Receive, class... Arguments>
[[nodiscard]] auto start_call(C& comm, stream_of_t<C> after, Send&& send, Receive&& receive, Arguments... arguments) {
  return start_on(
      comm, after, [&](auto& s, auto& r) { return call_of<Call, Op...>(s, r, arguments...); }, std::forward<Send>(send),
      std::forward<Receive>(receive));
}

/// Returns the items, sorted by how they are transferred. If the list is invalid, revokes the communicator and throws.
template <class C, class T, class S, class Make>
FusedList<T, S> fused_list(C& comm, ListOfCalls<T, S, Make>& list) {
  const auto call = list.make(Span<const T, S>(), Span<T, S>());
  const ErrorContext context{name_of(call.kind), comm.backend(), comm.rank(), comm.size(), call.location};
  try {
    return {std::move(list.sends), std::move(list.receives), ListSides::of(call, comm.rank()), comm.size(), context};
  } catch (const InvalidArgument& error) {
    comm.revoke(RevocationReason::of(error).published());
    throw;
  }
}
template <class C, class T, class S, class Make>
void execute(C& comm, ListOfCalls<T, S, Make>&& calls) {
  auto list = fused_list(comm, calls);
  for (const auto item : list.large()) execute(comm, list.call_on(item, calls.make));
  if (!list.fuses()) return;
  typename S::stream stream{};
  const Scratch<C> packed(comm, list.fused_bytes());
  list.pack(stream, packed.span());
  execute(comm, list.fused_call(calls.make));
  list.unpack(stream);
}
template <class C, class T, class S, class Make>
[[nodiscard]] auto start(C& comm, ListOfCalls<T, S, Make>&& calls, typename S::stream after) {
  auto list = fused_list(comm, calls);
  using P = decltype(start(comm, list.fused_call(calls.make), after));
  return PendingList<P, T, S>(std::move(list), comm, calls.make, after);
}

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
