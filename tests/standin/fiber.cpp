// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/fiber.hpp"

#include <cstdint>
#include <utility>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace standin {

namespace {

constexpr std::size_t stack_bytes = 256 << 10;

// Notifies a sanitizer before and after a change of stacks; does nothing without one.
#if defined(__SANITIZE_ADDRESS__)
void leave(void** shadow, const void* to, std::size_t size) { __sanitizer_start_switch_fiber(shadow, to, size); }
void arrive(void* shadow, const void** from, std::size_t* size) { __sanitizer_finish_switch_fiber(shadow, from, size); }
#else
void leave(void**, const void*, std::size_t) {}
void arrive(void*, const void**, std::size_t*) {}
#endif
#if defined(__SANITIZE_THREAD__)
void* new_shadow() { return __tsan_create_fiber(0); }
void end_shadow(void* shadow) { __tsan_destroy_fiber(shadow); }
void* this_shadow() { return __tsan_get_current_fiber(); }
void change_to(void* shadow) { __tsan_switch_to_fiber(shadow, 0); }
#else
void* new_shadow() { return nullptr; }
void end_shadow(void*) {}
void* this_shadow() { return nullptr; }
void change_to(void*) {}
#endif

}  // namespace

// Not set to zeros: of most stacks only the end is ever used.
Fiber::Fiber() : stack_(std::make_unique_for_overwrite<char[]>(stack_bytes)), own_shadow_(new_shadow()) {}
Fiber::~Fiber() { end_shadow(own_shadow_); }

void Fiber::begin(std::function<void()> function) {
  function_ = std::move(function);
  begun_ = false;
  ended_ = false;
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_.get();
  own_.uc_stack.ss_size = stack_bytes;
  own_.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  // makecontext takes a function without parameters, and passes it integers.
  makecontext(&own_, reinterpret_cast<void (*)()>(&Fiber::enter), 2, static_cast<unsigned>(self),
              static_cast<unsigned>(self >> 32));
}

void Fiber::resume() {
  void* shadow = nullptr;
  outside_shadow_ = this_shadow();
  leave(&shadow, stack_.get(), stack_bytes);
  change_to(own_shadow_);
  change_to_own();
  arrive(shadow, nullptr, nullptr);
}

void Fiber::pause() {
  void* shadow = nullptr;
  leave(ended_ ? nullptr : &shadow, outside_stack_, outside_size_);
  change_to(outside_shadow_);
  change_to_outside();
  arrive(shadow, &outside_stack_, &outside_size_);
}

// swapcontext makes a system call each time, for the signal mask. The sanitizers intercept longjmp, and expect one
// stack.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
void Fiber::change_to_own() { swapcontext(&outside_, &own_); }
void Fiber::change_to_outside() { swapcontext(&own_, &outside_); }
#else
void Fiber::change_to_own() {
  if (_setjmp(outside_place_) != 0) return;
  if (begun_) _longjmp(own_place_, 1);
  begun_ = true;
  setcontext(&own_);
}
void Fiber::change_to_outside() {
  if (_setjmp(own_place_) == 0) _longjmp(outside_place_, 1);
}
#endif

void Fiber::enter(unsigned low, unsigned high) { reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32 | low)->run(); }

void Fiber::run() {
  arrive(nullptr, &outside_stack_, &outside_size_);
  function_();
  function_ = nullptr;
  ended_ = true;
  pause();
}

}  // namespace standin
