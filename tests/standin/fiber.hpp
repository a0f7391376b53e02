// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <functional>
#include <memory>

namespace standin {

/// A function with its own stack, which takes turns with the thread that runs it.
class Fiber {
 public:
  Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber();

  /// Sets what it does when it is next resumed; it has ended what it did before.
  void begin(std::function<void()> function);
  /// Runs it until it pauses or ends.
  void resume();
  /// Called by the function: returns to the caller of `resume`.
  void pause();
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  static void enter(unsigned low, unsigned high);
  void run();

  void change_to_own();
  void change_to_outside();

  std::unique_ptr<char[]> stack_;
  ucontext_t own_{};
  ucontext_t outside_{};
  jmp_buf own_place_{};
  jmp_buf outside_place_{};
  std::function<void()> function_;
  bool begun_ = false;
  bool ended_ = true;
  // The stacks, for the sanitizers.
  const void* outside_stack_ = nullptr;
  std::size_t outside_size_ = 0;
  void* outside_shadow_ = nullptr;
  void* own_shadow_ = nullptr;
};

}  // namespace standin
