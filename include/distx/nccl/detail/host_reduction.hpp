// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <utility>
#include <vector>

#include "distx/comm/calls/any_op.hpp"

namespace distx::nccl::detail {

/// One reduction on the host, which a stream runs when it comes to it: what cudaLaunchHostFunc is given.
struct HostReduction {
  AnyOp op;
  std::byte* blocks = nullptr;  ///< every rank's, side by side; the result takes the place of the first
  std::size_t block_bytes = 0;
  std::size_t count = 0;
  std::vector<const void*> sources;
  std::exception_ptr error;  ///< what a user's op threw: nothing may be thrown through CUDA

  /// Throws what the op threw.
  void rethrow() {
    if (error != nullptr) [[unlikely]]
      std::rethrow_exception(std::exchange(error, nullptr));
  }

  static void run(void* self) noexcept {
    auto& job = *static_cast<HostReduction*>(self);
    try {
      for (std::size_t rank = 0; rank < job.sources.size(); ++rank)
        job.sources[rank] = job.blocks + rank * job.block_bytes;
      void* const target = job.blocks;
      job.op.reduce(&target, 1, job.sources.data(), job.sources.size(), job.count,
                    static_cast<int>(job.sources.size()));
    } catch (...) {
      job.error = std::current_exception();
    }
  }
};

}  // namespace distx::nccl::detail
