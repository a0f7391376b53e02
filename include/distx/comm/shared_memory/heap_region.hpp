// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <vector>

#include "distx/comm/shared_memory/mailbox.hpp"
#include "distx/comm/shared_memory/shared_region.hpp"

namespace distx::inline DISTX_ABI::detail::shared_memory {

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
    auto* const made = new std::shared_ptr<SharedRegion>;
    keep.reset(made, [](std::shared_ptr<SharedRegion>* region) { delete region; });
    *made = std::make_shared<HeapRegion>(size, deadline);
    return {{std::bit_cast<std::uintptr_t>(made)}};
  }
  [[nodiscard]] static std::shared_ptr<SharedRegion> open(const RegionToken& token, int, int, const Timeout&) {
    if (token.words[0] == 0) throw MemoryError("the first rank failed to allocate the communicator");
    return *std::bit_cast<std::shared_ptr<SharedRegion>*>(static_cast<std::uintptr_t>(token.words[0]));
  }
  [[nodiscard]] RegionToken make_sibling(int size, std::shared_ptr<void>& keep) override {
    return make(size, deadline(), keep);
  }
  [[nodiscard]] std::shared_ptr<SharedRegion> open_sibling(const RegionToken& token, int rank, int size) override {
    return open(token, rank, size, deadline());
  }

  [[nodiscard]] RegionToken make_common(std::size_t bytes, const ErrorContext&, std::shared_ptr<void>& keep) override {
    auto memory = std::make_shared<Buffer<std::byte>>(bytes);
    const auto made = std::make_shared<std::shared_ptr<Buffer<std::byte>>>(std::move(memory));
    keep = made;
    return {{std::bit_cast<std::uintptr_t>(made.get())}};
  }
  [[nodiscard]] detail::CommonMemory<Host> open_common(const RegionToken& token, std::size_t,
                                                       const std::vector<detail::ByteRange>&,
                                                       const ErrorContext&) override {
    const auto memory =
        *std::bit_cast<std::shared_ptr<Buffer<std::byte>>*>(static_cast<std::uintptr_t>(token.words[0]));
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
  Mailbox& mailbox(const MessageRequest& e) noexcept { return mailboxes_[static_cast<std::size_t>(e.to)]; }

  std::vector<Mailbox> mailboxes_;
};

}  // namespace distx::inline DISTX_ABI::detail::shared_memory
