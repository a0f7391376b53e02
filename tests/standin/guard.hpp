// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

// Where the processor has protection keys, the memory of GPUs is for what runs on streams only: code of the host that
// reads or writes it ends in SIGSEGV, as it would beside a real GPU.
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
