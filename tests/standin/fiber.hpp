// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <ucontext.h>

#include <functional>
#include <vector>

namespace standin {

/// A function with a stack of its own, which changes over with the thread that runs it.
class Fiber {
 public:
  Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  /// Sets what it does when it is next resumed; it has ended what it did before.
  void begin(std::function<void()> function);
  /// Goes on with it until it pauses or ends.
  void resume();
  /// Called by the function: goes back to who has resumed it.
  void pause();
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  static void enter(unsigned low, unsigned high);
  void run();

  std::vector<char> stack_;
  ucontext_t own_{};
  ucontext_t outside_{};
  std::function<void()> function_;
  bool ended_ = true;
  // What the sanitizers are told of the stacks.
  const void* outside_stack_ = nullptr;
  std::size_t outside_size_ = 0;
  void* outside_shadow_ = nullptr;
  void* own_shadow_ = nullptr;
};

}  // namespace standin
