// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <limits>

#include "distx/core/detail/bell.hpp"

namespace distx::inline DISTX_ABI::detail::shm {

/// Parking for threads of several processes that map the word.
inline constexpr Parking across_processes{
    .sleep =
        [](Parking::Word& word, std::uint32_t seen, std::chrono::nanoseconds limit) noexcept {
          constexpr int futex_wait = 0;
          const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
          const timespec time{static_cast<std::time_t>(seconds.count()), static_cast<long>((limit - seconds).count())};
          ::syscall(SYS_futex, &word, futex_wait, seen, &time, nullptr, 0);
        },
    .wake_all =
        [](Parking::Word& word) noexcept {
          constexpr int futex_wake = 1;
          ::syscall(SYS_futex, &word, futex_wake, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
        },
};

}  // namespace distx::inline DISTX_ABI::detail::shm
