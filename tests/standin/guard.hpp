// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

// If the processor has protection keys, only work on streams can access the memory of GPUs: host code that reads or
// writes it ends with SIGSEGV, as it would with a real GPU.
namespace standin {

/// The key of the GPUs' memory; -1 where the processor or the system has none.
[[nodiscard]] int guard_key();

/// This thread may use the memory of GPUs until the scope ends.
class Unguarded {
 public:
  Unguarded();
  Unguarded(const Unguarded&) = delete;
  Unguarded& operator=(const Unguarded&) = delete;
  ~Unguarded();

 private:
  int before_ = 0;
};

}  // namespace standin
