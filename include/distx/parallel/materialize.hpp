// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/comm/any_communicator.hpp"
#include "distx/memory/operations.hpp"
#include "distx/parallel/parameter_list.hpp"

namespace distx::detail {

/// Gives the owned parameters of one bucket their memory, side by side, each on a 64-byte boundary. Collective.
/// @return the gradients, padding included; empty where the parameters are frozen
template <MemorySpace Space>
Span<AnyElement, Space> materialize(AnyCommunicator<Space>& comm, std::vector<Entry<Space>>& entries,
                                    const std::vector<std::size_t>& members) {
  const auto rounded = [](std::size_t bytes) {
    return (bytes + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  };
  std::size_t total = 0;
  for (const auto member : members) total += rounded(entries[member].bytes());
  const auto allocate = [&] {
    return std::make_shared<CommunicatorMemory<std::byte, Space>>(comm.template allocate<std::byte>(total));
  };
  const auto values = allocate();
  const auto& first = entries[members.front()];
  const auto gradients = first.trained() ? allocate() : nullptr;
  const ElementType type = first.type();
  const std::size_t width = first.element_bytes();
  std::size_t begin = 0;
  for (const auto member : members) {
    auto& entry = entries[member];
    auto& state = *entry.owned;
    const auto old = state.value;
    const Span<AnyElement, Space> value(values->data() + begin, entry.size(), type, width);
    const auto bytes = [](Span<AnyElement, Space> span) {
      return Span<std::byte, Space>(span.bytes(), span.size_bytes());
    };
    // A parameter of an earlier training goes on with what it has learnt.
    if (old.empty()) state.initialize(value);
    else copy(typename Space::stream{}, bytes(value), bytes(old));
    entry.value = state.value = value;
    state.value_memory = values;
    if (gradients != nullptr) {
      entry.gradient = state.gradient = {gradients->data() + begin, entry.size(), type, width};
      state.gradient_memory = gradients;
    }
    begin += rounded(entry.bytes());
  }
  if (gradients == nullptr) return {};
  return {gradients->data(), total / width, type, width};
}

}  // namespace distx::detail
