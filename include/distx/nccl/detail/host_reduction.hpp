// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <utility>
#include <vector>

#include "distx/comm/calls/any_op.hpp"

namespace distx::inline DISTX_ABI::nccl::detail {

/// A reduction on the host that a stream runs, by cudaLaunchHostFunc.
struct HostReduction {
  calls::AnyOp op;
  std::byte* blocks = nullptr;  ///< every rank's block, contiguous; the result replaces the first
  std::size_t block_bytes = 0;
  std::size_t count = 0;
  std::vector<const void*> sources;
  std::exception_ptr error;  ///< thrown by a user's op, and kept: CUDA passes no exceptions on

  /// Throws what the op threw.
  void rethrow() {
    if (error != nullptr) [[unlikely]]
      std::rethrow_exception(std::exchange(error, nullptr));
  }

  static void run(void* self) noexcept {
    auto& reduction = *static_cast<HostReduction*>(self);
    try {
      for (std::size_t rank = 0; rank < reduction.sources.size(); ++rank)
        reduction.sources[rank] = reduction.blocks + rank * reduction.block_bytes;
      void* const target = reduction.blocks;
      reduction.op.reduce(&target, 1, reduction.sources.data(), reduction.sources.size(), reduction.count,
                          static_cast<int>(reduction.sources.size()));
    } catch (...) {
      reduction.error = std::current_exception();
    }
  }
};

}  // namespace distx::inline DISTX_ABI::nccl::detail
