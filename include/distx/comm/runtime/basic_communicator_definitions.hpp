// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "distx/comm/calls/validate.hpp"
#include "distx/comm/runtime/basic_communicator.hpp"
#include "distx/comm/runtime/communicator_state.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns all ranks' values in rank order, over a communicator's backend. Collective.
template <class Backend, class T>
[[nodiscard]] std::vector<T> all_gathered(Backend& backend, const T& mine, const std::source_location& location) {
  std::vector<T> all(static_cast<std::size_t>(backend.self().size));
  backend.execute(AllGather<T>{{&mine, 1}, all, {}, location});
  return all;
}

template <class Derived, class Backend>
const RankOf& BasicCommunicator<Derived, Backend>::self() const noexcept {
  return backend_of().self();
}
template <class Derived, class Backend>
template <class F>
auto BasicCommunicator<Derived, Backend>::run(const char* operation, const std::source_location& location, F&& f) {
  state_->check_process(operation, location);
  FlightScope flight(state_->flight.begin(operation, location));
  return state_->guarded([&] {
    auto result = f();
    flight.complete();
    return result;
  });
}

template <class Derived, class Backend>
void BasicCommunicator<Derived, Backend>::execute(const Call<space>& call) {
  state_->check_process(call);
  FlightScope flight(state_->flight.begin(call));
  try {
    validate(call, backend_of().self());
    backend_of().execute(call);
  } catch (...) {
    state_->give_up_for_exception();
    throw;
  }
  flight.complete();
}
template <class Derived, class Backend>
auto BasicCommunicator<Derived, Backend>::start(const Call<space>& call,
                                                typename space::stream after) -> Pending<space> {
  state_->check_process(call);
  const FlightTicket ticket = state_->flight.enqueue(call);
  const FlightScope flight(ticket.record);
  try {
    validate(call, backend_of().self());
    backend_of().check_usable(backend_of().self().context(call));
    return Pending<space>(backend_of().start(state_, call, after), ticket);
  } catch (...) {
    state_->give_up_for_exception();
    throw;
  }
}

template <class Derived, class Backend>
Derived BasicCommunicator<Derived, Backend>::split(int color, int key, std::source_location location) {
  return split(SplitRule(color, key), location);
}
template <class Derived, class Backend>
Derived BasicCommunicator<Derived, Backend>::split(const SplitRule& rule, const std::source_location& location) {
  return run("split", location, [&] {
    const SplitRequest own = rule.of(rank());
    std::shared_ptr<State> part;
    if constexpr (requires { backend_of().split(rule, location); })
      part = backend_of().split(rule, location);
    else
      part = backend_of().split(own.color, own.key, location);
    state_->add_part(part);
    std::vector<int> members;
    if constexpr (std::same_as<space, Host>)
      members = all_gathered(part->backend, state_->flight.world_rank(), location);
    part->flight.split_from(state_->flight, own.color, std::move(members));
    return Derived(std::move(part));
  });
}
template <class Derived, class Backend>
auto BasicCommunicator<Derived, Backend>::allocate_bytes(std::size_t count, std::size_t element_bytes,
                                                         const std::source_location& location)
    -> std::optional<CommunicatorMemory<std::byte, space>> {
  if constexpr (requires { backend_of().allocate(count, element_bytes, location); }) {
    return run("allocate", location,
               [&] { return std::optional(backend_of().allocate(count, element_bytes, location)); });
  } else {
    static_assert(std::same_as<space, Host>);
    state_->check_process("allocate", location);
    return {};
  }
}
template <class Derived, class Backend>
auto BasicCommunicator<Derived, Backend>::adopt_bytes(
    Span<std::byte, space> memory, const std::source_location& location) -> CommunicatorMemory<std::byte, space> {
  if constexpr (requires { backend_of().adopt(memory, location); }) {
    state_->check_process("adopt", location);
    FlightScope flight(state_->flight.begin("adopt", location));
    auto adoption = state_->guarded([&] { return backend_of().adopt(memory, location); });
    if (adoption.refusal != nullptr) std::rethrow_exception(adoption.refusal);
    flight.complete();
    return std::move(adoption.memory);
  } else if constexpr (requires { backend_of().allocate(memory.size(), memory.size(), location); }) {
    throw_cannot_adopt(*this, location);
  } else {
    state_->check_process("adopt", location);
    return {memory, nullptr};
  }
}
template <class Derived, class Backend>
auto BasicCommunicator<Derived, Backend>::allocate_common(std::size_t bytes, const std::vector<ByteRange>& own,
                                                          std::source_location location)
    -> std::optional<CommonMemory<space>> {
  if constexpr (requires { backend_of().allocate_common(bytes, own, location); }) {
    return run("allocate_common", location, [&] { return backend_of().allocate_common(bytes, own, location); });
  } else {
    return {};
  }
}
template <class Derived, class Backend>
auto BasicCommunicator<Derived, Backend>::allocate_for_host(std::size_t bytes, std::source_location location)
    -> std::optional<CommonMemory<space>> {
  if constexpr (requires { backend_of().allocate_for_host(bytes, location); }) {
    return run("allocate_for_host", location, [&] { return backend_of().allocate_for_host(bytes, location); });
  } else {
    return {};
  }
}

template <class Derived, class Backend>
bool BasicCommunicator<Derived, Backend>::passes_operands() const noexcept {
  return requires { requires Backend::passes_operands; };
}
template <class Derived, class Backend>
void BasicCommunicator<Derived, Backend>::revoke(const std::string& reason) noexcept {
  state_->revoke(reason);
}
template <class Derived, class Backend>
std::function<void(const std::string&)> BasicCommunicator<Derived, Backend>::revoker() const {
  return [weak = std::weak_ptr<State>(state_)](const std::string& reason) {
    if (const auto state = weak.lock()) state->revoke_all(reason);
  };
}
template <class Derived, class Backend>
auto BasicCommunicator<Derived, Backend>::scratch(std::size_t bytes) -> Span<std::byte, space> {
  return state_->scratch(bytes);
}
template <class Derived, class Backend>
GroupCache& BasicCommunicator<Derived, Backend>::group_cache() noexcept {
  return state_->groups;
}
template <class Derived, class Backend>
Backend& BasicCommunicator<Derived, Backend>::backend_of() const noexcept {
  return state_->backend;
}

/// Returns the requests with this rank's color, in the order of the new communicator.
template <class Request>
[[nodiscard]] std::vector<Request> group_of(const std::vector<Request>& all, int color) {
  std::vector<Request> group;
  for (const Request& other : all)
    if (other.color == color) group.push_back(other);
  std::stable_sort(group.begin(), group.end(), [](const Request& a, const Request& b) { return a.key < b.key; });
  return group;
}

}  // namespace distx::inline DISTX_ABI::detail
