// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "distx/comm/calls/validate.hpp"
#include "distx/comm/runtime/communicator_state.hpp"
#include "distx/comm/runtime/pending.hpp"

namespace distx::detail {

/// Satisfied if `backend.execute(call)` compiles: the backend supports this erased call, blocking.
template <class B, class Call>
concept BackendExecutes = std::same_as<typename Call::space, typename B::space> &&
                          requires(B& backend, const Call& call) { backend.execute(call); };

/// Satisfied if `backend.start(state, call, after)` compiles: the backend supports this erased call asynchronously.
template <class B, class Call>
concept BackendStarts = std::same_as<typename Call::space, typename B::space> &&
                        requires(B& backend, const std::shared_ptr<CommunicatorState<B>>& state, const Call& call,
                                 typename B::space::stream after) {
                          {
                            backend.start(state, call, after)
                          } -> std::same_as<std::shared_ptr<Operation<typename B::space>>>;
                        };

/// Returns all ranks' values in rank order, over a communicator's backend. Collective.
template <class Backend, class T>
[[nodiscard]] std::vector<T> all_gathered(Backend& backend, const T& mine, const std::source_location& location) {
  std::vector<T> all(static_cast<std::size_t>(backend.self().size));
  backend.execute(erase(AllGather<T>{{&mine, 1}, all, {}, location}));
  return all;
}

/// The front end of every communicator: `class C : public BasicCommunicator<C, Backend>`.
///
/// Erases and validates calls, revokes the communicator when one fails, and implements everything that backends have in
/// common. A `Backend` has:
///
/// - `using space`, and `const RankOf& self() const`;
/// - `void execute(const Call&)` for each erased call that it supports, blocking; throws on failure;
/// - `std::shared_ptr<Operation<space>> start(state, const Call&, stream)`, the same asynchronously;
/// - `void check_usable(const ErrorContext&)`, which throws if the communicator was revoked;
/// - `void revoke(const std::string&) noexcept`, which makes the calls of every rank throw; the argument is what
///   `RevocationReason::parse` reads;
/// - `std::shared_ptr<CommunicatorState<Backend>> split(int color, int key, const std::source_location&)`;
/// - optionally `CommunicatorMemory<std::byte, space> allocate(std::size_t count, std::size_t element_bytes, const
///   std::source_location&)`; without it, `allocate` returns ordinary memory;
/// - optionally `CommonMemory<space> allocate_common(std::size_t bytes, const std::vector<ByteRange>& own, const
///   std::source_location&)`, if all ranks can access one memory.
template <class Derived, class Backend>
class BasicCommunicator {
 public:
  using space = typename Backend::space;

  [[nodiscard]] int rank() const noexcept { return backend_of().self().rank; }
  [[nodiscard]] int size() const noexcept { return backend_of().self().size; }
  /// Returns the backend's name as it appears in error messages.
  [[nodiscard]] std::string_view backend() const noexcept { return backend_of().self().backend; }
  /// Returns another handle on this communicator.
  [[nodiscard]] Derived share() const { return Derived(state_); }
  /// Returns whether both are handles on one communicator.
  friend bool operator==(const Derived& a, const Derived& b) noexcept { return a.state_ == b.state_; }

  /// Makes a call and blocks until this rank's part of it is complete.
  template <ErasableCall Call>
    requires BackendExecutes<Backend, erased_t<Call>>
  void execute(const Call& call) {
    execute_erased(erase(call));
  }
  /// Starts a call after what is enqueued on the stream `after`.
  template <ErasableCall Call>
    requires BackendStarts<Backend, erased_t<Call>>
  [[nodiscard]] Pending<space> start(const Call& call, typename space::stream after = {}) {
    const auto erased = erase(call);
    const FlightTicket ticket = state_->flight.enqueue(erased);
    const FlightScope flight(ticket.record);
    try {
      validate(erased, backend_of().self());
      backend_of().check_usable(backend_of().self().context(erased));
      return Pending<space>(backend_of().start(state_, erased, after), ticket);
    } catch (...) {
      state_->give_up_for_exception();
      throw;
    }
  }

  /// Returns a communicator of the ranks that pass the same `color`, ordered by `key`, then by rank. Collective.
  [[nodiscard]] Derived split(int color, int key, std::source_location location = std::source_location::current()) {
    FlightScope flight(state_->flight.begin("split", location));
    return state_->guarded([&] {
      auto part = backend_of().split(color, key, location);
      std::vector<int> members;
      if constexpr (BackendExecutes<Backend, AllGather<AnyElement>>)
        members = all_gathered(part->backend, state_->flight.world_rank(), location);
      part->flight.split_from(state_->flight, color, std::move(members));
      flight.complete();
      return Derived(std::move(part));
    });
  }
  /// Allocates `count` zeroed elements in the memory that this communicator transfers fastest. Collective.
  /// @throws MismatchError if the ranks request different sizes; MemoryError if an allocation fails
  template <class T>
  [[nodiscard]] CommunicatorMemory<T, space> allocate(std::size_t count,
                                                      std::source_location location = std::source_location::current()) {
    static_assert(std::is_trivially_copyable_v<T>, "distx: allocate: elements are moved as bytes");
    if constexpr (requires { backend_of().allocate(count, sizeof(T), location); }) {
      FlightScope flight(state_->flight.begin("allocate", location));
      return state_->guarded([&] {
        auto memory = backend_of().allocate(count, sizeof(T), location);
        flight.complete();
        return CommunicatorMemory<T, space>::from_bytes(std::move(memory), count);
      });
    } else {
      return CommunicatorMemory<T, space>::plain(count);
    }
  }
  /// Allocates `bytes` > 0 zeroed bytes that all ranks read in place, and each rank writes in its ranges `own`; nothing
  /// if the ranks do not share memory. Collective.
  /// @throws MismatchError if the ranks request different sizes; MemoryError if an allocation fails
  [[nodiscard]] std::optional<CommonMemory<space>> allocate_common(
      std::size_t bytes, const std::vector<ByteRange>& own,
      std::source_location location = std::source_location::current()) {
    if constexpr (requires { backend_of().allocate_common(bytes, own, location); }) {
      FlightScope flight(state_->flight.begin("allocate_common", location));
      return state_->guarded([&] {
        auto memory = backend_of().allocate_common(bytes, own, location);
        flight.complete();
        return std::optional(std::move(memory));
      });
    } else {
      return {};
    }
  }
  /// Revokes the communicator: every rank's current or next call throws RevokedError with that reason. Not collective.
  void revoke(const std::string& reason) noexcept { backend_of().revoke(reason); }

  /// @name Building blocks for libraries on top of communicators
  /// @{
  [[nodiscard]] Span<std::byte, space> scratch(std::size_t bytes) { return state_->scratch(bytes); }
  [[nodiscard]] GroupCache& group_cache() noexcept { return state_->groups; }
  /// @}

 protected:
  using State = CommunicatorState<Backend>;

  explicit BasicCommunicator(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  BasicCommunicator(BasicCommunicator&&) noexcept = default;
  BasicCommunicator& operator=(BasicCommunicator&&) noexcept = default;
  ~BasicCommunicator() = default;

  [[nodiscard]] const std::shared_ptr<State>& state() const noexcept { return state_; }
  [[nodiscard]] Backend& backend_of() const noexcept { return state_->backend; }

 private:
  template <class Erased>
  void execute_erased(const Erased& call) {
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

  std::shared_ptr<State> state_;
};

/// One rank's request in `split`; a group is the ranks with one color, in the order of their keys.
struct SplitRequest {
  int color = 0, key = 0, rank = 0;
};
/// Returns the requests with this rank's color, in the order of the new communicator.
template <class Request>
[[nodiscard]] std::vector<Request> group_of(const std::vector<Request>& all, int color) {
  std::vector<Request> group;
  for (const Request& other : all)
    if (other.color == color) group.push_back(other);
  std::stable_sort(group.begin(), group.end(), [](const Request& a, const Request& b) { return a.key < b.key; });
  return group;
}

}  // namespace distx::detail
