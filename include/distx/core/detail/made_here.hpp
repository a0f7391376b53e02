// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "distx/core/error.hpp"

// A process that is forked has copies of its parent's objects, but none of the parent's threads; the connections, files
// and shared memory of the objects remain the parent's. fork raises a counter, so no call asks the system.
namespace distx::inline DISTX_ABI::detail {

/// The forks between the first process of the program and this one.
inline constinit std::atomic<unsigned> forks{0};
inline std::atomic<int> process_id{static_cast<int>(::getpid())};
inline const int forks_are_counted = ::pthread_atfork(nullptr, nullptr, [] {
  forks.fetch_add(1, std::memory_order_relaxed);
  process_id.store(static_cast<int>(::getpid()), std::memory_order_relaxed);
});

/// The process that made an object.
class MadeHere {
 public:
  /// Returns whether this is that process.
  [[nodiscard]] bool is_here() const noexcept { return forks_ == forks.load(std::memory_order_relaxed); }
  /// @param object  such as "this communicator"
  [[noreturn, gnu::cold]] void throw_elsewhere(std::string_view object, const ErrorContext& context) const {
    throw InvalidState(std::string(object) + " was made by process " + std::to_string(process_) +
                           ", from which this process, " + std::to_string(process_id.load()) +
                           ", was forked; make another one after the fork, or end this process by exec or _exit",
                       context);
  }
  /// @throws InvalidState in another process
  void check(std::string_view object, const ErrorContext& context) const {
    if (!is_here()) [[unlikely]]
      throw_elsewhere(object, context);
  }

 private:
  unsigned forks_ = forks.load(std::memory_order_relaxed);
  int process_ = process_id.load(std::memory_order_relaxed);
};

/// Deletes an object in the process that made it, and leaves it alone in one that was forked: its destructor would end
/// what the parent uses, or join threads that do not exist.
struct DeleteHere {
  template <class T>
  void operator()(T* object) const noexcept {
    if (made.is_here()) delete object;
  }
  MadeHere made{};
};

/// Makes an object that only this process destroys.
template <class T, class... Arguments>
[[nodiscard]] std::shared_ptr<T> make_here(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), DeleteHere{});
}

}  // namespace distx::inline DISTX_ABI::detail
