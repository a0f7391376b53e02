// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <nccl.h>

#include <array>
#include <cstddef>
#include <vector>

// NCCL's arithmetic on elements whose type is known at run time.
namespace standin {

/// The bytes of an element; 0 where there is no such type.
[[nodiscard]] std::size_t bytes_of(ncclDataType_t type);

/// One element of any type.
using Scalar = std::array<unsigned char, 8>;

enum class Arithmetic { sum, product, greatest, least, average, scaled_sum };

/// Reduces the ranks' elements in the order of the ranks; small types are rounded after each step.
/// @param scalars what each rank's elements are multiplied by, for `scaled_sum`
void reduce(ncclDataType_t type, Arithmetic arithmetic, const std::vector<const void*>& inputs,
            const std::vector<Scalar>& scalars, void* output, std::size_t count);

}  // namespace standin
