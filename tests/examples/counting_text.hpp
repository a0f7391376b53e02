// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "../../examples/models/mesh_gpt.hpp"

namespace test {

/// Returns sequences whose tokens increase by 3 modulo 11: inputs with `ahead` 0, and their targets with `ahead` 1.
inline std::vector<examples::Token> counting_text(std::size_t length, int step, int first, int count,
                                                  std::size_t ahead) {
  std::vector<examples::Token> tokens;
  for (int sequence = first; sequence < first + count; ++sequence)
    for (std::size_t t = ahead; t < length + ahead; ++t)
      tokens.push_back(static_cast<examples::Token>((static_cast<std::size_t>(2 * sequence + step) + 3 * t) % 11));
  return tokens;
}

}  // namespace test
