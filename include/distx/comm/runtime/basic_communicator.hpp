// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "distx/comm/arguments.hpp"
#include "distx/comm/communicator.hpp"
#include "distx/comm/pending.hpp"
#include "distx/comm/split_rule.hpp"

namespace distx::inline DISTX_ABI::detail {

template <class Backend>
class CommunicatorState;

/// The memory space of a backend, for programs that do not parse it.
template <class Backend>
struct BackendTraits {
  using space = typename Backend::space;
};
struct HostBackend {
  using space = Host;
};

/// The front end of every communicator: `class C : public BasicCommunicator<C, Backend>`.
///
/// Erases and validates calls, revokes the communicator when one fails, and implements everything that backends have in
/// common. A `Backend` has:
///
/// - `using space`, and `const RankOf& self() const`;
/// - `void execute(const Call<space>&)`, blocking; throws on failure;
/// - `std::shared_ptr<Operation<space>> start(state, const Call<space>&, stream)`, the same asynchronously;
/// - `void check_usable(const ErrorContext&)`, which throws if the communicator was revoked;
/// - `void revoke(const std::string&) noexcept`, which makes the calls of every rank throw; the argument is what
///   `RevocationReason::parse` reads;
/// - `std::shared_ptr<CommunicatorState<Backend>> split(int color, int key, const std::source_location&)`, or the same
///   of a `const SplitRule&`;
/// - optionally `CommunicatorMemory<std::byte, space> allocate(std::size_t count, std::size_t element_bytes, const
///   std::source_location&)`; without it, `allocate` returns ordinary memory;
/// - optionally `Adoption<space> adopt(Span<std::byte, space>, const std::source_location&)`, if it has `allocate`;
/// - optionally `std::optional<CommonMemory<space>> allocate_common(std::size_t bytes, const std::vector<ByteRange>&
///   own, const std::source_location&)`, if all ranks can access one memory;
/// - optionally `std::optional<CommonMemory<space>> allocate_for_host(std::size_t bytes, const std::source_location&)`,
///   if some ranks can;
/// - optionally `static constexpr bool passes_operands = true`, if a reduce-scatter calls its `consumer`.
///
/// `basic_communicator_definitions.hpp` defines the members; programs in the compiled form do not parse backends.
template <class Derived, class Backend>
class BasicCommunicator {
 public:
  using space = typename BackendTraits<Backend>::space;

  [[nodiscard]] int rank() const noexcept { return self().rank; }
  [[nodiscard]] int size() const noexcept { return self().size; }
  /// Returns the backend's name as it appears in error messages.
  [[nodiscard]] std::string_view backend() const noexcept { return self().backend; }
  /// Returns another handle on this communicator.
  [[nodiscard]] Derived share() const { return Derived(state_); }
  /// Returns whether both are handles on one communicator.
  friend bool operator==(const Derived& a, const Derived& b) noexcept {
    return a.state_.get() == b.state_.get();  // addresses: the lookup of another operator would instantiate the state
  }

  /// Makes a call and blocks until this rank's part of it is complete.
  void execute(const Call<space>& call);
  /// Starts a call after what is enqueued on the stream `after`.
  [[nodiscard]] Pending<space> start(const Call<space>& call, typename space::stream after = {});

  /// Returns a communicator of the ranks that pass the same `color`, ordered by `key`, then by rank. Collective.
  [[nodiscard]] Derived split(int color, int key, std::source_location location = std::source_location::current());
  [[nodiscard]] Derived split(const SplitRule& rule, const std::source_location& location);
  /// Allocates `count` zeroed elements in the memory that this communicator transfers fastest. Collective.
  /// @throws MismatchError if the ranks request different sizes; MemoryError if an allocation fails
  template <class T>
  [[nodiscard]] CommunicatorMemory<T, space> allocate(std::size_t count,
                                                      std::source_location location = std::source_location::current()) {
    static_assert(std::is_trivially_copyable_v<T>, "distx: allocate: elements are moved as bytes");
    auto bytes = allocate_bytes(count, sizeof(T), location);
    if constexpr (std::same_as<space, Host>)
      if (!bytes) return CommunicatorMemory<T, space>::plain(count);
    return CommunicatorMemory<T, space>::from_bytes(std::move(*bytes), count);
  }
  /// Makes the caller's memory communicator memory, in place, until the returned handle is destroyed. Collective, with
  /// the same number of bytes on every rank.
  ///
  /// The elements keep their addresses and values, and the caller keeps owning them: the handle must be destroyed
  /// before they are freed. Where ranks are processes that share memory, the memory must be whole pages, and they
  /// become pages of a shared segment; destroying the handle makes them private again. Until then a child process
  /// shares them, and `realloc` and `std::vector::resize` must not move them. No thread of this process may write to
  /// the memory during `adopt` and the destruction. Other communicators of host memory transfer the caller's memory as
  /// fast as their own, so this does nothing.
  ///
  /// All or nothing: if one rank refuses, every rank throws, its memory is as before, and the communicator remains
  /// usable.
  /// @throws InvalidArgument if the memory is not whole private pages, or is locked, mapped from a file, already
  /// shared, or adopted; MismatchError if sizes differ; MemoryError if the system lacks memory for the shared pages
  template <SpanArgument A>
    requires std::same_as<space, Host>
  [[nodiscard]] auto adopt(A&& memory, std::source_location location = std::source_location::current()) {
    return typed_adoption<A>(memory, [&](Span<std::byte> bytes) { return adopt_bytes(bytes, location); });
  }
  /// Allocates `bytes` > 0 zeroed bytes that all ranks read in place, and each rank writes in its ranges `own`; nothing
  /// if the ranks do not share memory. Collective.
  /// @throws MismatchError if the ranks request different sizes; MemoryError if an allocation fails
  [[nodiscard]] std::optional<CommonMemory<space>> allocate_common(
      std::size_t bytes, const std::vector<ByteRange>& own,
      std::source_location location = std::source_location::current());
  /// Allocates `bytes` > 0 zeroed bytes that the ranks of each host share; nothing if that is all ranks, or if hosts do
  /// not share memory. Collective.
  ///
  /// An all-gather may receive into it if the ranks of a host receive at the same place: when a rank makes the call, it
  /// reads nothing there anymore, and when the call returns, no rank writes there. Other calls may not receive there.
  /// @throws MismatchError if the ranks request different sizes; MemoryError if an allocation fails
  [[nodiscard]] std::optional<CommonMemory<space>> allocate_for_host(
      std::size_t bytes, std::source_location location = std::source_location::current());
  /// Returns whether a reduce-scatter passes the operands of large blocks to its `consumer`, if it has one.
  [[nodiscard]] bool passes_operands() const noexcept;
  /// Revokes the communicator: every rank's current or next call throws RevokedError with that reason. Not collective.
  void revoke(const std::string& reason) noexcept;
  /// Returns a function that revokes the communicator and those split from it, as long as a handle on it exists. The
  /// function is not a handle, and may be called from any thread.
  [[nodiscard]] std::function<void(const std::string&)> revoker() const;

  /// @name Building blocks for libraries on top of communicators
  /// @{
  [[nodiscard]] Span<std::byte, space> scratch(std::size_t bytes);
  [[nodiscard]] GroupCache& group_cache() noexcept;
  /// @}

 protected:
  using State = CommunicatorState<Backend>;

  explicit BasicCommunicator(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
  BasicCommunicator(BasicCommunicator&&) noexcept = default;
  BasicCommunicator& operator=(BasicCommunicator&&) noexcept = default;
  ~BasicCommunicator() = default;

  [[nodiscard]] const std::shared_ptr<State>& state() const noexcept { return state_; }
  [[nodiscard]] Backend& backend_of() const noexcept;

 private:
  [[nodiscard]] const RankOf& self() const noexcept;
  /// Returns what `f` returns, which makes an operation that is not a call.
  /// @throws InvalidState in a process that was forked from this rank's
  template <class F>
  [[nodiscard]] auto run(const char* operation, const std::source_location& location, F&& f);
  /// Returns nothing if the backend transfers all memory equally fast.
  [[nodiscard]] std::optional<CommunicatorMemory<std::byte, space>> allocate_bytes(
      std::size_t count, std::size_t element_bytes, const std::source_location& location);
  [[nodiscard]] CommunicatorMemory<std::byte, space> adopt_bytes(Span<std::byte, space> memory,
                                                                 const std::source_location& location);

  std::shared_ptr<State> state_;
};

}  // namespace distx::inline DISTX_ABI::detail
