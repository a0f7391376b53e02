// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include "distx/comm/detail/arguments.hpp"
#include "distx/memory/buffer.hpp"
#include "distx/memory/detail/current_device.hpp"

// Stream-ordered helpers for any memory space; in host memory they do nothing or run at once.
namespace distx::inline DISTX_ABI::detail {

/// Whether work on this memory is complete when its call returns.
template <MemorySpace Space>
inline constexpr bool done_at_return = std::is_empty_v<typename Space::stream>;

/// Returns memory that is allocated and freed stream-ordered, if the memory space supports it.
/// @param how  `uninitialized`, or nothing to set the elements to zero
template <class T, MemorySpace Space, class... How>
[[nodiscard]] Buffer<T, Space> buffer_on(typename Space::stream stream, std::size_t size, How... how) {
  if constexpr (std::constructible_from<Buffer<T, Space>, std::size_t, How..., typename Space::stream>)
    return Buffer<T, Space>(size, how..., stream);
  else
    return Buffer<T, Space>(size, how...);
}

/// Returns this thread's reusable event of the current device. Recording it again does not affect earlier waits.
template <MemorySpace Space>
[[nodiscard]] const typename Space::event& ordering_event() {
  static thread_local std::vector<std::pair<int, typename Space::event>> events;
  const int device = CurrentDevice<Space>().number;
  for (const auto& [number, event] : events)
    if (number == device) return event;
  return events.emplace_back(device, typename Space::event()).second;
}

/// Orders work that is later enqueued on `later` after all work already enqueued on `earlier`.
template <MemorySpace Space>
void order(typename Space::stream earlier, typename Space::stream later) {
  if constexpr (!done_at_return<Space>) {
    if (earlier == later) return;
    const auto& event = ordering_event<Space>();
    event.record(earlier);
    later.wait(event);
  }
}

/// Makes a call whose result later work on the stream may use; the host does not wait if it does not have to.
template <class C, class Call>
void make_in_order(C& comm, const Call& call, typename C::space::stream stream) {
  if constexpr (done_at_return<typename C::space>)
    execute(comm, call);
  else
    start(comm, call, stream).wait(stream);
}
/// Makes a call after the work enqueued on the stream, and waits for it.
template <class C, class Call>
void execute_after(C& comm, const Call& call, typename C::space::stream stream) {
  if constexpr (done_at_return<typename C::space>)
    execute(comm, call);
  else
    start(comm, call, stream).wait();
}

/// Runs work on one stream as part of another stream's order: it begins after the work enqueued there. If the scope is
/// left before `went_well`, the other stream waits for it, so no memory is freed too early.
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
    } catch (...) {  // the error in flight is the more specific one
    }
  }
  void rejoin() { order<Space>(side_, main_); }
  void went_well() noexcept { went_well_ = true; }

 private:
  Stream main_, side_;
  bool went_well_ = false;
};

}  // namespace distx::inline DISTX_ABI::detail
