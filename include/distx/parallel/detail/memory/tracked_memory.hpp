// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/comm/any_communicator.hpp"
#include "distx/observe/memory_ledger.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Memory that an account counts until its last owner releases it.
template <MemorySpace Space>
class TrackedBytes {
 public:
  TrackedBytes(std::shared_ptr<MemoryAccount> account, observe::MemoryKind kind,
               CommunicatorMemory<std::byte, Space> memory)
      : memory_(std::move(memory)), counted_(std::move(account), kind, memory_.size()) {}

  [[nodiscard]] Span<std::byte, Space> span() const noexcept { return memory_.span(); }

 private:
  CommunicatorMemory<std::byte, Space> memory_;
  observe::CountedMemory counted_;
};

template <MemorySpace Space>
using TrackedMemory = std::shared_ptr<TrackedBytes<Space>>;

/// Allocates zeroed communicator memory. Collective over `comm`, with the same size on every rank.
template <MemorySpace Space>
TrackedMemory<Space> allocate_tracked(AnyCommunicator<Space>& comm, const std::shared_ptr<MemoryAccount>& account,
                                      observe::MemoryKind kind, std::size_t bytes,
                                      const std::source_location& location) {
  return std::make_shared<TrackedBytes<Space>>(account, kind, comm.template allocate<std::byte>(bytes, location));
}

/// Allocates memory of this rank alone: zeroed, or `uninitialized`.
template <MemorySpace Space, class... Values>
TrackedMemory<Space> allocate_tracked_local(const std::shared_ptr<MemoryAccount>& account, observe::MemoryKind kind,
                                            std::size_t bytes, Values... values) {
  const auto buffer = std::make_shared<Buffer<std::byte, Space>>(bytes, values...);
  return std::make_shared<TrackedBytes<Space>>(account, kind,
                                               CommunicatorMemory<std::byte, Space>(buffer->span(), buffer));
}

}  // namespace distx::inline DISTX_ABI::detail
