// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <string_view>
#include <type_traits>

namespace distx {

/// The host's stream: host work is done when its call returns, so it orders nothing and occupies nothing.
struct HostStream {
  constexpr void synchronize() const noexcept {}
};

/// The host's event: it has always happened.
struct HostEvent {
  constexpr void record(HostStream) const noexcept {}
  constexpr void synchronize() const noexcept {}
  [[nodiscard]] constexpr bool done() const noexcept { return true; }
};

/// Ordinary memory of this process.
struct Host {
  using stream = HostStream;
  using event = HostEvent;
  static constexpr std::string_view name = "host";
  static constexpr bool host_accessible = true;
};

/// A kind of memory: its name, whether the host's code may touch it, and what orders work on it.
template <class S>
concept MemorySpace = requires {
  typename S::stream;
  typename S::event;
  { S::name } -> std::convertible_to<std::string_view>;
  { S::host_accessible } -> std::convertible_to<bool>;
};

template <class S>
concept HostAccessible = MemorySpace<S> && S::host_accessible;

}  // namespace distx
