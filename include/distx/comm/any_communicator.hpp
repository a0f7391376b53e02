// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "distx/comm/arguments.hpp"
#include "distx/comm/communicator.hpp"
#include "distx/comm/pending.hpp"
#include "distx/comm/split_rule.hpp"
#include "distx/core/error.hpp"
#include "distx/memory/detail/host_copies.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The interface that AnyCommunicator calls.
template <MemorySpace Space>
class VirtualCommunicator {
 public:
  using stream = typename Space::stream;

  virtual ~VirtualCommunicator() = default;

  virtual void execute(const Call<Space>&) = 0;
  [[nodiscard]] virtual Pending<Space> start(const Call<Space>&, stream after) = 0;

  [[nodiscard]] virtual RankOf self() const = 0;
  [[nodiscard]] virtual std::shared_ptr<VirtualCommunicator> split(const SplitRule&, const std::source_location&) = 0;
  [[nodiscard]] virtual CommunicatorMemory<std::byte, Space> allocate(std::size_t count, std::size_t element_bytes,
                                                                      const std::source_location&) = 0;
  [[nodiscard]] virtual CommunicatorMemory<std::byte, Space> adopt(Span<std::byte, Space> memory,
                                                                   const std::source_location&) = 0;
  [[nodiscard]] virtual std::optional<CommonMemory<Space>> allocate_common(std::size_t bytes,
                                                                           const std::vector<ByteRange>& own,
                                                                           const std::source_location&) = 0;
  [[nodiscard]] virtual std::optional<CommonMemory<Space>> allocate_for_host(std::size_t bytes,
                                                                             const std::source_location&) = 0;
  [[nodiscard]] virtual bool passes_operands() const = 0;
  [[nodiscard]] virtual Span<std::byte, Space> scratch(std::size_t bytes) = 0;
  virtual void revoke(const std::string& reason) = 0;
  /// Returns the function of that name of the communicator; an empty one if it has none.
  [[nodiscard]] virtual std::function<void(const std::string&)> revoker() const = 0;

  GroupCache groups;
  HostCopies<Space> host_copies;
};

/// Adapts another communicator's Pending to Operation.
template <class P, MemorySpace Space>
class PendingOperation final : public Operation<Space> {
 public:
  explicit PendingOperation(P pending) : pending_(std::move(pending)) {}
  bool test() noexcept override {
    try {
      return pending_.test();
    } catch (...) {
      return true;  // `complete` throws it
    }
  }
  void complete() override { pending_.wait(); }
  void complete(typename Space::stream stream) override { pending_.wait(stream); }
  void abandon() noexcept override {}  // destroying the inner Pending does it
  void keep(std::shared_ptr<void> owner) override {
    if constexpr (requires { pending_.keep(std::move(owner)); })
      pending_.keep(std::move(owner));
    else
      owner_ = std::move(owner);
  }

 private:
  std::shared_ptr<void> owner_;
  P pending_;
};

template <MemorySpace Space, class P>
[[nodiscard]] Pending<Space> as_pending(P pending) {
  if constexpr (std::same_as<P, Pending<Space>>)
    return pending;
  else
    return Pending<Space>(std::make_shared<PendingOperation<P, Space>>(std::move(pending)));
}

/// Returns the interface of a communicator. A separate function, so that the compiled form has it.
template <class C>
[[nodiscard]] std::shared_ptr<VirtualCommunicator<typename C::space>> make_model(C comm);

/// Implements the interface for a communicator of type C.
template <class C>
class CommunicatorModel final : public VirtualCommunicator<typename C::space> {
  using Space = typename C::space;
  using stream = typename Space::stream;

 public:
  explicit CommunicatorModel(C comm) : comm_(std::move(comm)) {}

  void execute(const Call<Space>& call) override {
    if constexpr (Executes<C, Call<Space>>)
      comm_.execute(call);
    else if (call.kind == CollectiveKind::barrier)  // which every communicator has
      comm_.execute(Barrier<Space>{call.location, call.lengths, call.label});
    else
      throw_unsupported(call);
  }
  Pending<Space> start(const Call<Space>& call, stream after) override { return begin(comm_, call, after); }

  RankOf self() const override { return {comm_.rank(), comm_.size(), comm_.backend()}; }
  std::shared_ptr<VirtualCommunicator<Space>> split(const SplitRule& rule, const std::source_location& where) override {
    return make_model(split_by(comm_, rule, where));
  }
  CommunicatorMemory<std::byte, Space> allocate(std::size_t count, std::size_t element_bytes,
                                                const std::source_location& where) override {
    const std::size_t bytes = allocation_bytes(count, element_bytes, self().context("allocate", where));
    if constexpr (requires(C& c) { c.template allocate<std::byte>(bytes, where); })
      return comm_.template allocate<std::byte>(bytes, where);
    else
      return comm_.template allocate<std::byte>(bytes);
  }
  CommunicatorMemory<std::byte, Space> adopt(Span<std::byte, Space> memory,
                                             const std::source_location& where) override {
    if constexpr (requires(C& c) { c.adopt(memory, where); })
      return comm_.adopt(memory, where);
    else
      throw_cannot_adopt(comm_, where);
  }
  std::optional<CommonMemory<Space>> allocate_common(std::size_t bytes, const std::vector<ByteRange>& own,
                                                     const std::source_location& where) override {
    if constexpr (requires(C& c) { c.allocate_common(bytes, own, where); })
      return comm_.allocate_common(bytes, own, where);
    else
      return {};
  }
  std::optional<CommonMemory<Space>> allocate_for_host(std::size_t bytes, const std::source_location& where) override {
    if constexpr (requires(C& c) { c.allocate_for_host(bytes, where); })
      return comm_.allocate_for_host(bytes, where);
    else
      return {};
  }
  bool passes_operands() const override {
    if constexpr (requires(const C& c) { c.passes_operands(); })
      return comm_.passes_operands();
    else
      return false;
  }
  Span<std::byte, Space> scratch(std::size_t bytes) override {
    if constexpr (requires(C& c) { c.scratch(bytes); }) {
      return comm_.scratch(bytes);
    } else {
      if (scratch_.size() < bytes) scratch_ = Buffer<std::byte, Space>(bytes);
      return {scratch_.data(), bytes};
    }
  }
  void revoke(const std::string& reason) override { comm_.revoke(reason); }
  [[nodiscard]] std::function<void(const std::string&)> revoker() const override {
    if constexpr (requires { comm_.revoker(); })
      return comm_.revoker();
    else
      return {};
  }

 private:
  // The communicator is an argument because its `start` may not be named if it does not exist.
  template <class Inner>
  Pending<Space> begin(Inner& inner, const Call<Space>& call, stream after) {
    if constexpr (Starts<Inner, Call<Space>>)
      return as_pending<Space>(inner.start(call, after));
    else
      throw_unsupported(call);
  }
  [[noreturn]] void throw_unsupported(const Call<Space>& call) const {
    throw InvalidArgument("this communicator does not support this operation for elements of a type known at run time",
                          self().context(call));
  }

  C comm_;
  Buffer<std::byte, Space> scratch_;
};

template <class C>
std::shared_ptr<VirtualCommunicator<typename C::space>> make_model(C comm) {
  return std::make_shared<CommunicatorModel<C>>(std::move(comm));
}

}  // namespace detail

/// Holds a communicator of any backend in one memory space.
///
/// A call costs one virtual call and does not allocate, except an asynchronous one on a wrapper communicator, whose
/// Pending is allocated. Collectives have the contract of the communicator inside.
/// @throws InvalidArgument from calls that the communicator inside does not support
template <MemorySpace Space = Host>
class AnyCommunicator {
  using Interface = detail::VirtualCommunicator<Space>;

 public:
  using space = Space;

  template <class C>
    requires(!std::same_as<C, AnyCommunicator>) && Communicator<C> && std::same_as<typename C::space, Space>
  explicit AnyCommunicator(C comm) : self_(detail::make_model(std::move(comm))) {}
  AnyCommunicator(AnyCommunicator&&) noexcept = default;
  AnyCommunicator& operator=(AnyCommunicator&&) noexcept = default;

  [[nodiscard]] int rank() const { return self_->self().rank; }
  [[nodiscard]] int size() const { return self_->self().size; }
  [[nodiscard]] std::string_view backend() const { return self_->self().backend; }
  /// Returns another handle on this communicator.
  [[nodiscard]] AnyCommunicator share() const { return AnyCommunicator(self_); }
  friend bool operator==(const AnyCommunicator& a, const AnyCommunicator& b) noexcept { return a.self_ == b.self_; }

  void execute(const calls::Call<Space>& call) { self_->execute(call); }
  [[nodiscard]] Pending<Space> start(const calls::Call<Space>& call, typename Space::stream after = {}) {
    return self_->start(call, after);
  }

  [[nodiscard]] AnyCommunicator split(int color, int key,
                                      std::source_location location = std::source_location::current()) {
    return split(detail::SplitRule(color, key), location);
  }
  [[nodiscard]] AnyCommunicator split(const detail::SplitRule& rule, const std::source_location& location) {
    return AnyCommunicator(self_->split(rule, location));
  }
  template <class T>
  [[nodiscard]] CommunicatorMemory<T, Space> allocate(std::size_t size,
                                                      std::source_location location = std::source_location::current()) {
    return CommunicatorMemory<T, Space>::from_bytes(self_->allocate(size, sizeof(T), location), size);
  }
  /// Makes the caller's memory communicator memory, in place, until the returned handle is destroyed. Collective; the
  /// contract is that of the communicator inside.
  /// @throws InvalidArgument if the communicator inside cannot adopt memory
  template <SpanArgument A>
    requires std::same_as<space, Host>
  [[nodiscard]] auto adopt(A&& memory, std::source_location location = std::source_location::current()) {
    return detail::typed_adoption<A>(memory, [&](Span<std::byte> bytes) { return self_->adopt(bytes, location); });
  }
  /// Allocates memory that all ranks access in place; nothing if they do not share memory. Collective.
  [[nodiscard]] std::optional<detail::CommonMemory<Space>> allocate_common(
      std::size_t bytes, const std::vector<detail::ByteRange>& own,
      std::source_location location = std::source_location::current()) {
    return self_->allocate_common(bytes, own, location);
  }
  /// Allocates memory that the ranks of each host share; nothing if that is all ranks, or if hosts do not share memory.
  /// Collective.
  [[nodiscard]] std::optional<detail::CommonMemory<Space>> allocate_for_host(
      std::size_t bytes, std::source_location location = std::source_location::current()) {
    return self_->allocate_for_host(bytes, location);
  }
  /// Returns whether a reduce-scatter passes the operands of large blocks to its `consumer`, if it has one.
  [[nodiscard]] bool passes_operands() const { return self_->passes_operands(); }
  void revoke(const std::string& reason) { self_->revoke(reason); }
  /// Returns a function that revokes the communicator, and those that were split from it if it is one of distx's, as
  /// long as a handle on it exists.
  [[nodiscard]] std::function<void(const std::string&)> revoker() const {
    if (auto known = self_->revoker()) return known;
    return [weak = std::weak_ptr(self_)](const std::string& reason) {
      if (const auto self = weak.lock()) self->revoke(reason);
    };
  }

  /// @name Building blocks for libraries on top of communicators
  /// @{
  [[nodiscard]] Span<std::byte, Space> scratch(std::size_t bytes) { return self_->scratch(bytes); }
  [[nodiscard]] detail::GroupCache& group_cache() noexcept { return self_->groups; }
  [[nodiscard]] detail::HostCopies<Space>& host_copies() noexcept { return self_->host_copies; }
  /// @}

 private:
  explicit AnyCommunicator(std::shared_ptr<Interface> self) : self_(std::move(self)) {}

  std::shared_ptr<Interface> self_;
};

}  // namespace distx::inline DISTX_ABI
