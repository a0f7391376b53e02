// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/comm/any_communicator.hpp"
#include "distx/observe/memory_ledger.hpp"

namespace distx::detail {

/// Memory that an account counts for as long as anybody holds it.
template <MemorySpace Space>
class HeldMemory {
 public:
  HeldMemory(std::shared_ptr<MemoryAccount> account, MemoryKind kind, CommunicatorMemory<std::byte, Space> memory)
      : account_(std::move(account)), kind_(kind), memory_(std::move(memory)) {
    account_->add(kind_, memory_.size());
  }
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;
  ~HeldMemory() { account_->remove(kind_, memory_.size()); }

  [[nodiscard]] Span<std::byte, Space> span() const noexcept { return memory_.span(); }

 private:
  std::shared_ptr<MemoryAccount> account_;
  MemoryKind kind_;
  CommunicatorMemory<std::byte, Space> memory_;
};

template <MemorySpace Space>
using Held = std::shared_ptr<HeldMemory<Space>>;

/// Communicator memory, zeros at first. Collective, with the same size on every rank.
template <MemorySpace Space>
Held<Space> hold_shared(AnyCommunicator<Space>& comm, const std::shared_ptr<MemoryAccount>& account, MemoryKind kind,
                        std::size_t bytes) {
  return std::make_shared<HeldMemory<Space>>(account, kind, comm.template allocate<std::byte>(bytes));
}

/// Memory of this rank alone: zeros at first, or `uninitialized`.
template <MemorySpace Space, class... Values>
Held<Space> hold_local(const std::shared_ptr<MemoryAccount>& account, MemoryKind kind, std::size_t bytes,
                       Values... values) {
  const auto buffer = std::make_shared<Buffer<std::byte, Space>>(bytes, values...);
  return std::make_shared<HeldMemory<Space>>(account, kind,
                                             CommunicatorMemory<std::byte, Space>(buffer->span(), buffer));
}

}  // namespace distx::detail
