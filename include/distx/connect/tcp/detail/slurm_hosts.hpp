// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// Returns the first host of a list of Slurm's, such as `node[01-03,7],gpu1`; null if the list is malformed.
[[nodiscard]] inline std::optional<std::string> first_slurm_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    const auto plain = list.substr(0, list.find_first_of("[],"));
    host += plain;
    list.remove_prefix(plain.size());
    if (list.empty() || list.front() == ',') break;
    // The first number of the first range keeps its leading zeros.
    const auto end = list.find(']'), first_end = std::min(list.find_first_of(",-]"), list.size());
    const auto first = list.substr(1, first_end - 1);
    if (end == 0 || end == std::string_view::npos || first.empty()) return std::nullopt;
    if (first.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
    host += first;
    list.remove_prefix(end + 1);
  }
  if (host.empty()) return std::nullopt;
  return host;
}

/// Returns a port for a job step: the same on all its ranks, different in steps that run at the same time, and below
/// the ports that the system gives to outgoing connections.
[[nodiscard]] constexpr int slurm_port(std::uint32_t job, std::uint32_t step) noexcept {
  constexpr std::uint32_t least = 15000, count = 15000;
  return static_cast<int>(least + (job * 31u + step) % count);
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
