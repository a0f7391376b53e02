// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "distx/core/version.hpp"

// Copies between this process and another one, in one step; the system permits that to processes that may trace it.
namespace distx::inline DISTX_ABI::detail::shm::other_process {

template <class Move>
bool in_steps(std::byte* here, std::byte* there, std::size_t bytes, Move&& move) noexcept {
  while (bytes != 0) {
    const iovec mine{here, bytes}, theirs{there, bytes};
    const auto moved = move(mine, theirs);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    here += moved, there += moved, bytes -= static_cast<std::size_t>(moved);
  }
  return true;
}

/// Copies from another process; returns false, with errno, if the system refuses or the process has ended.
inline bool read(std::int64_t process, std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  return in_steps(to, const_cast<std::byte*>(from), bytes, [&](const iovec& mine, const iovec& theirs) {
    return ::process_vm_readv(static_cast<pid_t>(process), &mine, 1, &theirs, 1, 0);
  });
}
/// The same if the process has `expected` at `probe`: another one may have its number by now.
inline bool read_if(std::int64_t process, const std::uint64_t* probe, std::uint64_t expected, std::byte* to,
                    const std::byte* from, std::size_t bytes) noexcept {
  std::uint64_t seen = 0;
  const iovec mine[] = {{&seen, sizeof seen}, {to, bytes}};
  const iovec theirs[] = {{const_cast<std::uint64_t*>(probe), sizeof seen}, {const_cast<std::byte*>(from), bytes}};
  ssize_t moved = 0;
  do moved = ::process_vm_readv(static_cast<pid_t>(process), mine, 2, theirs, 2, 0);
  while (moved < 0 && errno == EINTR);
  if (moved < static_cast<ssize_t>(sizeof seen)) return false;
  if (seen != expected) return errno = ESRCH, false;
  const auto done = static_cast<std::size_t>(moved) - sizeof seen;
  return read(process, to + done, from + done, bytes - done);
}
/// Copies to another process; returns false, with errno, if the system refuses or the process has ended.
inline bool write(std::int64_t process, std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  return in_steps(const_cast<std::byte*>(from), to, bytes, [&](const iovec& mine, const iovec& theirs) {
    return ::process_vm_writev(static_cast<pid_t>(process), &mine, 1, &theirs, 1, 0);
  });
}

/// Returns whether such a call takes at most four times as long as a copy inside a cache. Then it is quicker than two
/// copies through a buffer, whose data change cores in between; in some virtual machines it takes far longer. Measured
/// once, on memory of this process.
inline bool copies_quickly() noexcept {
  static const bool quickly = [] {
    using clock = std::chrono::steady_clock;
    constexpr std::size_t bytes = std::size_t{64} << 10;
    const std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[2 * bytes]());
    if (memory == nullptr) return false;
    const auto least = [&](auto&& copy) {
      auto time = clock::duration::max();
      for (int i = 0; i < 16; ++i) {
        const auto begin = clock::now();
        copy(memory.get(), memory.get() + bytes);
        time = std::min(time, clock::now() - begin);
      }
      return time;
    };
    const auto called = least([](auto* to, auto* from) { return read(::getpid(), to, from, bytes); });
    const auto copied = least([](auto* to, auto* from) { return std::memcpy(to, from, bytes); });
    return called < 4 * copied;
  }();
  return quickly;
}

/// Returns whether the system lets this process make such a call, which writes nothing.
inline bool permits_writes(std::int64_t process) noexcept {
  return ::process_vm_writev(static_cast<pid_t>(process), nullptr, 0, nullptr, 0, 0) >= 0;
}
/// The same as `write`, and then writes `mark` to `marked`, in the system call that writes the last of the data: the
/// process sees the mark once this one writes no more, wherever this one was stopped. Of more than 2 GiB, that is the
/// last of several calls. Stores become visible in order on x86-64; on processors where they do not, the data may
/// follow the mark by as long as a store takes.
inline bool write_marked(std::int64_t process, std::byte* to, const std::byte* from, std::size_t bytes, void* marked,
                         std::uint64_t mark) noexcept {
  for (;;) {
    const iovec mine[] = {{const_cast<std::byte*>(from), bytes}, {&mark, sizeof mark}};
    const iovec theirs[] = {{to, bytes}, {marked, sizeof mark}};
    const ssize_t moved = ::process_vm_writev(static_cast<pid_t>(process), mine, 2, theirs, 2, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return false;
    if (static_cast<std::size_t>(moved) == bytes + sizeof mark) return true;
    const std::size_t done = std::min(bytes, static_cast<std::size_t>(moved));  // at most 2 GiB in one call
    to += done, from += done, bytes -= done;
  }
}

}  // namespace distx::inline DISTX_ABI::detail::shm::other_process
