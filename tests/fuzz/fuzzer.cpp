// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  fuzz::FUZZ_TARGET(std::as_bytes(std::span(bytes, size)));
  return 0;
}
