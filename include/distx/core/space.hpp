// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <string_view>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

/// The stream of host memory. Host work is complete when its call returns, so the stream is empty and never waits.
struct HostStream {
  constexpr void synchronize() const noexcept {}
};

/// The event of host memory, which is always complete.
struct HostEvent {
  constexpr void record(HostStream) const noexcept {}
  constexpr void synchronize() const noexcept {}
  [[nodiscard]] constexpr bool done() const noexcept { return true; }
};

/// The memory space of ordinary process memory.
struct Host {
  using stream = HostStream;
  using event = HostEvent;
  static constexpr std::string_view name = "host";
  static constexpr bool host_accessible = true;
};

/// A kind of memory: its name, whether host code may access it, and the stream and event types that order work on it.
template <class S>
concept MemorySpace = requires {
  typename S::stream;
  typename S::event;
  { S::name } -> std::convertible_to<std::string_view>;
  { S::host_accessible } -> std::convertible_to<bool>;
};

/// A memory space that host code may access.
template <class S>
concept HostAccessible = MemorySpace<S> && S::host_accessible;

}  // namespace distx::inline DISTX_ABI
