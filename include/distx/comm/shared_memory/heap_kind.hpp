// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/shared_memory/heap.hpp"

namespace distx::shared_memory {

/// How ranks of one process share an arena: the first makes it, the others take their share of it.
struct HeapKind {
  using Made = std::shared_ptr<Arena>;
  using Token = const Made*;

  /// `made` stays where it is until all ranks have found it.
  static void make(int size, const Timeout& deadline, Made& made, Token& token) {
    made = std::make_shared<HeapArena>(size, deadline);
    token = &made;
  }
  static std::shared_ptr<Arena> find(Token token, int, int, const Timeout&) {
    if (token == nullptr) throw MemoryError("the first rank could not make an arena");
    return *token;
  }
};

}  // namespace distx::shared_memory
