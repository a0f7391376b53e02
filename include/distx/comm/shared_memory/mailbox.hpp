// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "distx/comm/shared_memory/message_request.hpp"

namespace distx::inline DISTX_ABI::detail::shared_memory {

/// The unmatched messages to one rank, sent or awaited. Messages with the same sender and tag match in order.
class Mailbox {
 public:
  /// Matches the message with its counterpart and completes both, or queues it until the counterpart is posted. The
  /// request must exist until it is done or withdrawn.
  /// @return whether the counterpart was completed
  bool post(MessageRequest& mine) {
    MessageRequest* other = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const auto match = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& e) {
        return e->sends != mine.sends && e->from == mine.from && e->tag == mine.tag;
      });
      if (match == waiting_.end()) {
        waiting_.push_back(&mine);
        return false;
      }
      other = *match;
      waiting_.erase(match);
    }
    const MessageRequest& sender = mine.sends ? mine : *other;
    const MessageRequest& receiver = mine.sends ? *other : mine;
    const bool fits = sender.header == receiver.header;
    if (fits && sender.bytes != 0) std::memmove(receiver.target, sender.source, sender.bytes);
    mine.mismatch = other->mismatch = !fits;
    mine.other = other->header;
    other->other = mine.header;
    other->finish();  // its rank may reuse it from here on
    mine.finish();
    return true;
  }

  /// Removes the envelope; returns false if it has already been matched and will complete.
  bool withdraw(MessageRequest& mine) {
    const std::lock_guard lock(mutex_);
    return std::erase(waiting_, &mine) != 0;
  }

 private:
  std::mutex mutex_;
  std::vector<MessageRequest*> waiting_;
};

}  // namespace distx::inline DISTX_ABI::detail::shared_memory
