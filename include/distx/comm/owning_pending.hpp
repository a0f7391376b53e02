// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <tuple>
#include <utility>

#include "distx/core/error.hpp"
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

/// A move-only handle on an asynchronous call that owns buffers which were moved into it, until `wait` returns one.
///
///     auto pending = distx::start_all_reduce(comm, std::move(gradient), distx::sum);
///     compute();
///     gradient = pending.wait();
///
/// Otherwise as Pending. It allocates once per call, which the borrowing form does not.
/// @tparam Returned  which of `Buffers`: the receive buffer, or the send buffer if that alone was moved in
/// @tparam OwnsTwo   whether both buffers were moved in
/// @tparam Buffers   the call's buffers in the order of its arguments; references are borrowed
template <class Pending, std::size_t Returned, bool OwnsTwo, class... Buffers>
class [[nodiscard]] OwningPending {
 public:
  OwningPending(Pending pending, std::shared_ptr<std::tuple<Buffers...>> buffers) noexcept
      : buffers_(std::move(buffers)), pending_(std::move(pending)) {
    // An abandoned call may use them longer than this handle exists.
    if constexpr (requires { pending_.keep(buffers_); }) pending_.keep(buffers_);
  }
  OwningPending(OwningPending&&) noexcept = default;
  OwningPending& operator=(OwningPending&& other) noexcept {
    pending_ = std::move(other.pending_);  // first: this waits for the call that uses the old buffers
    buffers_ = std::move(other.buffers_);
    return *this;
  }
  ~OwningPending() = default;

  /// Blocks the host until the call is complete and returns the buffer. With a stream, orders work that is later
  /// enqueued on it after the call instead, unless two buffers were moved in: one is freed here.
  /// @throws what `Pending::wait` throws; the buffer is then lost. InvalidState if it was returned or lost before
  template <class... Stream>
  [[nodiscard]] std::tuple_element_t<Returned, std::tuple<Buffers...>> wait(Stream... stream) {
    const auto buffers = std::move(buffers_);
    if (buffers == nullptr)
      throw InvalidState("this handle has no buffer: it was waited for before, or moved from", {.operation = "wait"});
    if constexpr (OwnsTwo)
      pending_.wait();
    else
      pending_.wait(stream...);
    return std::move(std::get<Returned>(*buffers));
  }
  /// Returns whether `wait()` would return, or throw, at once. Never blocks.
  [[nodiscard]] bool test() { return pending_.test(); }

 private:
  std::shared_ptr<std::tuple<Buffers...>> buffers_;
  Pending pending_;  // destroyed first: it may wait
};

}  // namespace distx::inline DISTX_ABI
