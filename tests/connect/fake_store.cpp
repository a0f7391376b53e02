// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Serves a store as torchrun's agent does: prints its port, and ends when its input does.
#include "connect/fake_store.hpp"

#include <cstdio>

int main() {
  const test::FakeStore store;
  std::printf("%d\n", store.port());
  std::fflush(stdout);
  while (std::getchar() != EOF) continue;
}
