// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/runtime/message_header.hpp"
#include "distx/comm/runtime/progress_thread.hpp"

namespace distx::inline DISTX_ABI::detail::shared_memory {

/// One side of a message: done once its bytes have been copied.
class MessageRequest : public Completion {
 public:
  /// Resets the request for reuse; keeps `listed`. @pre no other thread uses it
  void clear() noexcept {
    reset();
    source = nullptr;
    target = nullptr;
    sends = mismatch = exchanges = exchanged = false;
    queued = Queued::no;
    polls = 0;
    buffer = nullptr;
  }

  const std::byte* source = nullptr;  ///< of a sender, otherwise null
  std::byte* target = nullptr;        ///< of a receiver, otherwise null
  MessageHeader header{};
  std::size_t bytes = 0;
  bool sends = false;
  int from = 0;
  int to = 0;
  int tag = 0;
  /// Set if the two sides do not match, with the header of the other side; valid once done.
  bool mismatch = false;
  MessageHeader other{};
  /// Set of a send if the same call awaits a message with the same tag and header from the same rank.
  bool exchanges = false;
  /// Set of a receive that is done if its message was the send of such a call.
  bool exchanged = false;
  bool blocking = false;  ///< the caller waits for nothing else: the region may briefly poll for the other side
  /// For the region while the envelope is queued: where it is, and the resources that it holds.
  enum class Queued : std::uint8_t { no, in_cell, in_slot } queued = Queued::no;  ///< in_slot: of the pair of ranks
  std::size_t cell = 0;                                                           ///< or slot
  std::uint64_t slot_word = 0;
  std::uint32_t polls = 0;  ///< of a message in the slot
  std::shared_ptr<void> buffer;
  bool listed = false;  ///< in a list of the region; may be so since an earlier message
};

}  // namespace distx::inline DISTX_ABI::detail::shared_memory
