// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <vector>

#include "distx/comm/shared_memory/arena.hpp"
#include "distx/comm/shared_memory/mailbox.hpp"

namespace distx::shared_memory {

struct OwnedControl {
  explicit OwnedControl(int size) : owned_memory(Control::bytes_for(size, {})), owned(owned_memory.data(), size, {}) {
    owned.construct();
  }
  Buffer<std::byte> owned_memory;
  Control owned;
};

/// The arena of ranks that share one address space: all hold this one object, and reach all memory in place.
class HeapArena final : private OwnedControl, public Arena {
 public:
  HeapArena(int size, const Timeout& deadline)
      : OwnedControl(size), Arena(owned, deadline), mailboxes_(static_cast<std::size_t>(size)) {}

  [[nodiscard]] Place place_of(const void* memory, std::size_t) noexcept override {
    return {1, std::bit_cast<std::uintptr_t>(memory)};
  }
  [[nodiscard]] std::byte* at(const Place& place) noexcept override {
    return std::bit_cast<std::byte*>(static_cast<std::uintptr_t>(place.offset));
  }
  void post(const std::shared_ptr<Envelope>& mine, const ErrorContext&) override { mailbox(*mine).post(mine); }
  [[nodiscard]] bool advance(Envelope& mine) noexcept override { return mine.done(); }
  bool withdraw(Envelope& mine) noexcept override { return mailbox(mine).withdraw(mine); }

 private:
  Mailbox& mailbox(const Envelope& e) noexcept { return mailboxes_[static_cast<std::size_t>(e.to)]; }

  std::vector<Mailbox> mailboxes_;
};

}  // namespace distx::shared_memory
