// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdint>
#include <vector>

#include <distx/connect/connector.hpp>

#include "timing/operation.hpp"

namespace timing {

/// The settings of a table of collectives on GPUs.
struct NcclTable {
  std::vector<Operation> operations{timing::operations.begin(), timing::operations.end()};
  std::uint64_t least = 8, most = std::uint64_t{128} << 20;  ///< bytes, as nccl-tests count them
  unsigned factor = 4;
  int iterations = 20;  ///< calls that are timed together
  int warmup = 5;       ///< calls before them
  int rounds = 5;       ///< in each of which distx and NCCL have their turn
};

/// Returns the elements of a case of about `bytes` bytes, in blocks of whole 16 bytes as in nccl-tests; 0 if none fits.
constexpr std::size_t nccl_tests_whole(Operation operation, std::uint64_t bytes, int ranks) {
  const auto elements = static_cast<std::size_t>(bytes / sizeof(float));
  const auto n = static_cast<std::size_t>(ranks);
  return has_blocks(operation) ? elements / n / 4 * 4 * n : elements;
}

/// Times collectives of GPUs' memory by distx and by NCCL itself in turns, checks them, and prints nccl-tests' columns.
///
/// One GPU a rank. Collective; rank 0 prints.
/// @return the exit status: 1 where an element was wrong; 77 where no rank has a GPU or NCCL is absent, with the reason
/// @throws distx::Error where the ranks' GPUs cannot be used
int print_nccl_table(distx::AnyConnector& connector, const NcclTable& table);

}  // namespace timing
