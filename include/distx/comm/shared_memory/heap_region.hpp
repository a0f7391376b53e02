// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <vector>

#include "distx/comm/shared_memory/message_request.hpp"
#include "distx/comm/shared_memory/shared_region.hpp"

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

  /// Removes the request; returns false if it has already been matched and will complete.
  bool withdraw(MessageRequest& mine) {
    const std::lock_guard lock(mutex_);
    return std::erase(waiting_, &mine) != 0;
  }

 private:
  std::mutex mutex_;
  std::vector<MessageRequest*> waiting_;
};

struct OwnedControl {
  explicit OwnedControl(int size)
      : owned_memory(SharedLayout::bytes_for(size, {}) + alignof(PublishedCall)),
        owned(aligned(owned_memory.data()), size, {}) {
    owned.construct();
  }
  static std::byte* aligned(std::byte* memory) noexcept {
    const auto address = std::bit_cast<std::uintptr_t>(memory);
    return memory + (alignof(PublishedCall) - address % alignof(PublishedCall)) % alignof(PublishedCall);
  }
  Buffer<std::byte> owned_memory;
  SharedLayout owned;
};

/// The region of ranks in one address space: all use this one object and access all memory in place.
class HeapRegion final : private OwnedControl, public SharedRegion {
 public:
  HeapRegion(int size, const Timeout& deadline)
      : OwnedControl(size), SharedRegion(owned, deadline), mailboxes_(static_cast<std::size_t>(size)) {}

  /// Makes a region; `keep` holds it until every rank has opened it.
  [[nodiscard]] static RegionToken make(int size, const Timeout& deadline, std::shared_ptr<void>& keep) {
    return token_of<SharedRegion>(std::make_shared<HeapRegion>(size, deadline), keep);
  }
  [[nodiscard]] static std::shared_ptr<SharedRegion> open(const RegionToken& token, int, int, const Timeout&) {
    if (token.words[0] == 0) throw MemoryError("the first rank failed to allocate the communicator");
    return found<SharedRegion>(token);
  }
  [[nodiscard]] RegionToken make_sibling(int size, std::shared_ptr<void>& keep) override {
    return make(size, deadline(), keep);
  }
  [[nodiscard]] std::shared_ptr<SharedRegion> open_sibling(const RegionToken& token, int rank, int size) override {
    return open(token, rank, size, deadline());
  }

  [[nodiscard]] RegionToken make_common(std::size_t bytes, const ErrorContext&, std::shared_ptr<void>& keep) override {
    return token_of(std::make_shared<Buffer<std::byte>>(bytes), keep);
  }
  [[nodiscard]] CommonMemory<Host> open_common(const RegionToken& token, std::size_t, const std::vector<ByteRange>&,
                                               const ErrorContext&) override {
    const auto memory = found<Buffer<std::byte>>(token);
    return {memory->span(), memory};
  }

  [[nodiscard]] SharedAddress address_of(const void* memory, std::size_t) noexcept override {
    return {1, std::bit_cast<std::uintptr_t>(memory)};
  }
  [[nodiscard]] std::byte* at(const SharedAddress& place) noexcept override {
    return std::bit_cast<std::byte*>(static_cast<std::uintptr_t>(place.offset));
  }
  void post(const std::shared_ptr<MessageRequest>& mine, const ErrorContext&) override {
    if (mailbox(*mine).post(*mine)) ring_for_message(mine->sends ? mine->to : mine->from);
  }
  [[nodiscard]] bool advance(MessageRequest& mine) noexcept override { return mine.done(); }
  bool withdraw(MessageRequest& mine) noexcept override { return mailbox(mine).withdraw(mine); }

 private:
  /// Returns the address of a handle that `keep` holds.
  template <class T>
  [[nodiscard]] static RegionToken token_of(std::shared_ptr<T> made, std::shared_ptr<void>& keep) {
    keep = std::make_shared<std::shared_ptr<T>>(std::move(made));
    return {{std::bit_cast<std::uintptr_t>(keep.get())}};
  }
  template <class T>
  [[nodiscard]] static std::shared_ptr<T> found(const RegionToken& token) {
    return *std::bit_cast<std::shared_ptr<T>*>(static_cast<std::uintptr_t>(token.words[0]));
  }
  Mailbox& mailbox(const MessageRequest& e) noexcept { return mailboxes_[static_cast<std::size_t>(e.to)]; }

  std::vector<Mailbox> mailboxes_;
};

}  // namespace distx::inline DISTX_ABI::detail::shared_memory
