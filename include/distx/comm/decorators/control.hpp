// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <string>
#include <type_traits>

#include "distx/comm/communicator.hpp"
#include "distx/connect/connector.hpp"

namespace distx::inline DISTX_ABI {

/// A channel that collects observations: a connector, or a communicator that can broadcast host bytes.
template <class C>
concept ControlChannel =
    Connector<C> || (Communicator<C> && HostAccessible<typename C::space> && calls::HasBroadcast<C, std::byte>);

namespace detail {

template <ControlChannel C>
void control_broadcast(C& control, std::span<std::byte> bytes, int root) {
  if constexpr (Connector<C>)
    control.broadcast(bytes, root);
  else
    control.execute(Broadcast<std::byte, typename C::space>{{bytes.data(), bytes.size()}, root});
}
template <ControlChannel C, class T>
  requires std::is_trivially_copyable_v<T>
[[nodiscard]] T control_value(C& control, T value, int root) {
  control_broadcast(control, std::as_writable_bytes(std::span<T>(&value, 1)), root);
  return value;
}

/// Calls `f(rank, text)` with every rank's text on every rank, one rank at a time, so no rank holds all texts.
template <ControlChannel C, class F>
void for_each_text(C& control, const std::string& mine, F&& f) {
  for (int rank = 0; rank < control.size(); ++rank) {
    std::string text = rank == control.rank() ? mine : std::string();
    text.resize(control_value(control, static_cast<std::uint64_t>(text.size()), rank));
    control_broadcast(control, std::as_writable_bytes(std::span<char>(text)), rank);
    f(rank, text);
  }
}

}  // namespace detail
}  // namespace distx::inline DISTX_ABI
