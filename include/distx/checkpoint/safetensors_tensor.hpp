// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "distx/checkpoint/detail/safetensors_types.hpp"

namespace distx::inline DISTX_ABI::checkpoint {

/// A tensor of a safetensors file.
struct SafetensorsTensor {
  std::string name;
  std::string type;  ///< the format's name, such as "F32"
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  ///< its bytes in the data after the header are [begin, end)
  std::uint64_t end = 0;

  [[nodiscard]] std::uint64_t elements() const noexcept {
    return detail::elements_of(shape).value_or(0);  // validated when the file was opened
  }
};

}  // namespace distx::inline DISTX_ABI::checkpoint
