// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>

namespace standin {

[[nodiscard]] std::size_t live_cublas_handles();

}  // namespace standin
