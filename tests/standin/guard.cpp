// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/guard.hpp"

#include <sys/mman.h>

#include <cstdlib>

#include "standin/standin.hpp"

namespace standin {

int guard_key() {
  static const int key = [] {
    const char* unguarded = std::getenv("DISTX_STANDIN_UNGUARDED");
    return unguarded == nullptr || *unguarded == '\0' ? pkey_alloc(0, PKEY_DISABLE_ACCESS) : -1;
  }();
  return key;
}

bool guards_memory() { return guard_key() >= 0; }

Unguarded::Unguarded() {
  if (guard_key() < 0) return;
  before_ = pkey_get(guard_key());
  static_cast<void>(pkey_set(guard_key(), 0));
}
Unguarded::~Unguarded() {
  if (guard_key() >= 0) static_cast<void>(pkey_set(guard_key(), static_cast<unsigned>(before_)));
}

}  // namespace standin
