// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <cstddef>
#include <type_traits>

#include "distx/comm/detail/arguments.hpp"
#include "distx/memory/buffer.hpp"

// What is enqueued on the streams of a memory space, and in which order. On the host's memory all of it is nothing.
namespace distx::detail {

/// Whether work on this memory is done when its call returns.
template <MemorySpace Space>
inline constexpr bool done_at_return = std::is_empty_v<typename Space::stream>;

/// Memory that is made and goes back in the order of the stream, where the space has such. Its elements are not set.
template <class T, MemorySpace Space>
[[nodiscard]] Buffer<T, Space> buffer_on(typename Space::stream stream, std::size_t size, Uninitialized) {
  using Made = Buffer<T, Space>;
  if constexpr (std::constructible_from<Made, std::size_t, Uninitialized, typename Space::stream>)
    return Made(size, uninitialized, stream);
  else
    return Made(size, uninitialized);
}
/// Zeros.
template <class T, MemorySpace Space>
[[nodiscard]] Buffer<T, Space> buffer_on(typename Space::stream stream, std::size_t size) {
  using Made = Buffer<T, Space>;
  if constexpr (std::constructible_from<Made, std::size_t, typename Space::stream>)
    return Made(size, stream);
  else
    return Made(size);
}

/// What is enqueued on `later` from now on begins after all that was enqueued on `earlier`.
template <MemorySpace Space>
void order(typename Space::stream earlier, typename Space::stream later) {
  if constexpr (!done_at_return<Space>) {
    if (earlier == later) return;
    const typename Space::event event;
    event.record(earlier);
    later.wait(event);
  }
}

/// Makes a call whose result is for what is enqueued on the stream from now on; the host need not wait for it.
template <class C, class Call>
void make_in_order(C& comm, const Call& call, typename C::space::stream stream) {
  if constexpr (done_at_return<typename C::space>)
    execute(comm, call);
  else
    start(comm, call, stream).wait(stream);
}
/// Makes a call after what was enqueued on the stream, and waits for it.
template <class C, class Call>
void make_behind(C& comm, const Call& call, typename C::space::stream stream) {
  if constexpr (done_at_return<typename C::space>)
    execute(comm, call);
  else
    start(comm, call, stream).wait();
}

/// Work on one stream that belongs to another one's order: it begins after what was enqueued there. If it is left
/// before `went_well`, the other stream waits for it, so that no memory goes back too early.
template <MemorySpace Space>
class Detour {
  using Stream = typename Space::stream;

 public:
  Detour(Stream main, Stream side) : main_(main), side_(side) { order<Space>(main_, side_); }
  Detour(const Detour&) = delete;
  Detour& operator=(const Detour&) = delete;
  ~Detour() {
    if (went_well_) return;
    try {
      rejoin();
    } catch (...) {  // the error that is on its way says more
    }
  }
  void rejoin() { order<Space>(side_, main_); }
  void went_well() noexcept { went_well_ = true; }

 private:
  Stream main_, side_;
  bool went_well_ = false;
};

}  // namespace distx::detail
