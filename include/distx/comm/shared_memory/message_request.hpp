// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/runtime/progress_thread.hpp"
#include "distx/core/element.hpp"

namespace distx::shared_memory {

/// One side of a message: done once its bytes have been copied.
class MessageRequest : public detail::Completion {
 public:
  const std::byte* source = nullptr;  ///< of a sender, else null
  std::byte* target = nullptr;        ///< of a receiver, else null
  std::size_t count = 0;
  std::size_t bytes = 0;
  ElementType type = ElementType::bytes;
  bool sends = false;
  int from = 0;
  int to = 0;
  int tag = 0;
  std::uint64_t lengths = 0;  ///< a hash of the lengths of the items that a packed list carries
  /// What the other side had, where that does not fit; to be read when done.
  bool mismatch = false;
  std::size_t other_count = 0;
  ElementType other_type = ElementType::bytes;
  /// Of the region, while the envelope waits: where it has put it, and what it holds for it.
  std::size_t cell = 0;
  std::shared_ptr<void> buffer;
};

}  // namespace distx::shared_memory
