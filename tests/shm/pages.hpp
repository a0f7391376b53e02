// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "distx/core/span.hpp"

namespace test {

/// Whole pages of the heap with at least `count` zeros.
template <class T>
class Pages {
 public:
  static constexpr std::size_t page = 4096 / sizeof(T);

  explicit Pages(std::size_t count)
      : size_((count + page - 1) / page * page), memory_(static_cast<T*>(std::aligned_alloc(4096, size_ * sizeof(T)))) {
    if (memory_ == nullptr) throw std::bad_alloc();
    std::fill_n(memory_.get(), size_, T{});
  }

  [[nodiscard]] distx::Span<T> span() const noexcept { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(T* memory) const noexcept { std::free(memory); }
  };
  std::size_t size_;
  std::unique_ptr<T[], Free> memory_;
};

}  // namespace test
