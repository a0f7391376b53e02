// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "distx/comm/shared_memory/message_request.hpp"

namespace distx::detail::shared_memory {

/// The unmatched messages to one rank, sent or awaited. Messages with the same sender and tag match in order.
class Mailbox {
 public:
  /// Matches the message with its counterpart and completes both, or queues it until the counterpart is posted. The
  /// envelope must exist while it is queued.
  /// @return whether the counterpart was completed
  bool post(const std::shared_ptr<MessageRequest>& mine) {
    std::shared_ptr<MessageRequest> other;
    {
      const std::lock_guard lock(mutex_);
      const auto match = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& e) {
        return e->sends != mine->sends && e->from == mine->from && e->tag == mine->tag;
      });
      if (match == waiting_.end()) {
        waiting_.push_back(mine);
        return false;
      }
      other = std::move(*match);
      waiting_.erase(match);
    }
    const MessageRequest& sender = mine->sends ? *mine : *other;
    const MessageRequest& receiver = mine->sends ? *other : *mine;
    const bool fits =
        sender.bytes == receiver.bytes && sender.type == receiver.type && sender.lengths == receiver.lengths;
    if (fits && sender.bytes != 0) std::memmove(receiver.target, sender.source, sender.bytes);
    mine->mismatch = other->mismatch = !fits;
    mine->other_count = other->count;
    mine->other_type = other->type;
    other->other_count = mine->count;
    other->other_type = mine->type;
    other->finish();
    mine->finish();
    return true;
  }

  /// Removes the envelope; returns false if it has already been matched and will complete.
  bool withdraw(const MessageRequest& mine) {
    const std::lock_guard lock(mutex_);
    return std::erase_if(waiting_, [&](const auto& e) { return e.get() == &mine; }) != 0;
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<MessageRequest>> waiting_;
};

}  // namespace distx::detail::shared_memory
