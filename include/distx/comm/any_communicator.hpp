// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>
#include <memory>
#include <utility>

#include "distx/comm/communicator.hpp"
#include "distx/comm/runtime/pending.hpp"
#include "distx/core/error.hpp"
#include "distx/memory/detail/host_copies.hpp"

namespace distx {

namespace detail {

/// Declares the virtual functions of AnyCommunicator: `execute` and `start` for each erased call.
template <MemorySpace Space, class List>
class VirtualCalls;
template <MemorySpace Space>
class VirtualCalls<Space, CallList<>> {
 public:
  virtual ~VirtualCalls() = default;
  void execute() = delete;
  void start() = delete;
};
template <MemorySpace Space, class Call, class... Rest>
class VirtualCalls<Space, CallList<Call, Rest...>> : public VirtualCalls<Space, CallList<Rest...>> {
 public:
  using VirtualCalls<Space, CallList<Rest...>>::execute;
  using VirtualCalls<Space, CallList<Rest...>>::start;
  virtual void execute(const Call&) = 0;
  virtual Pending<Space> start(const Call&, typename Space::stream) = 0;
};

/// The interface that AnyCommunicator calls.
template <MemorySpace Space>
class VirtualCommunicator : public VirtualCalls<Space, ErasedCalls<Space>> {
 public:
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual std::string_view backend() const = 0;
  [[nodiscard]] virtual std::shared_ptr<VirtualCommunicator> split(int color, int key, const std::source_location&) = 0;
  [[nodiscard]] virtual CommunicatorMemory<std::byte, Space> allocate(std::size_t count, std::size_t element_bytes,
                                                                      const std::source_location&) = 0;
  [[nodiscard]] virtual Span<std::byte, Space> scratch(std::size_t bytes) = 0;
  virtual void revoke(const std::string& reason) = 0;

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

/// Implements the virtual functions for a communicator of type C, call by call.
template <class C, class Base, class List>
class ImplementedCalls;
template <class C, class Base>
class ImplementedCalls<C, Base, CallList<>> : public Base {
 public:
  explicit ImplementedCalls(C c) : comm(std::move(c)) {}
  C comm;

 protected:
  template <class Call>
  [[noreturn]] void throw_unsupported(const Call& call) const {
    throw InvalidArgument("this communicator does not support this operation for elements of a type known at run time",
                          {.operation = Call::name,
                           .backend = comm.backend(),
                           .rank = comm.rank(),
                           .size = comm.size(),
                           .location = call.location});
  }
};
template <class C, class Base, class Call, class... Rest>
class ImplementedCalls<C, Base, CallList<Call, Rest...>> : public ImplementedCalls<C, Base, CallList<Rest...>> {
  using Next = ImplementedCalls<C, Base, CallList<Rest...>>;
  using Space = typename C::space;

 public:
  using Next::execute;
  using Next::Next;
  using Next::start;
  void execute(const Call& call) override {
    if constexpr (Executes<C, Call>)
      this->comm.execute(call);
    else
      this->throw_unsupported(call);
  }
  Pending<Space> start(const Call& call, typename Space::stream after) override {
    return begin(this->comm, call, after);
  }

 private:
  // The communicator is an argument because its `start` may not be named if it does not exist.
  template <class Inner>
  Pending<Space> begin(Inner& inner, const Call& call, typename Space::stream after) {
    if constexpr (!Starts<Inner, Call>) {
      this->throw_unsupported(call);
    } else {
      using P = decltype(inner.start(call, after));
      if constexpr (std::same_as<P, Pending<Space>>)
        return inner.start(call, after);
      else
        return Pending<Space>(std::make_shared<PendingOperation<P, Space>>(inner.start(call, after)));
    }
  }
};

template <class C>
class CommunicatorModel final
    : public ImplementedCalls<C, VirtualCommunicator<typename C::space>, ErasedCalls<typename C::space>> {
  using Space = typename C::space;

 public:
  using ImplementedCalls<C, VirtualCommunicator<Space>, ErasedCalls<Space>>::ImplementedCalls;
  int rank() const override { return this->comm.rank(); }
  int size() const override { return this->comm.size(); }
  std::string_view backend() const override { return this->comm.backend(); }
  std::shared_ptr<VirtualCommunicator<Space>> split(int color, int key, const std::source_location& where) override {
    if constexpr (requires(C& c) { c.split(color, key, where); })
      return std::make_shared<CommunicatorModel>(this->comm.split(color, key, where));
    else
      return std::make_shared<CommunicatorModel>(this->comm.split(color, key));
  }
  CommunicatorMemory<std::byte, Space> allocate(std::size_t count, std::size_t element_bytes,
                                                const std::source_location& where) override {
    if (count > std::numeric_limits<std::size_t>::max() / element_bytes)
      throw MemoryError(
          "cannot allocate " + std::to_string(count) + " elements of " + std::to_string(element_bytes) + " bytes",
          {.operation = "allocate", .backend = backend(), .rank = rank(), .size = size(), .location = where});
    if constexpr (requires(C& c) { c.template allocate<std::byte>(count, where); })
      return this->comm.template allocate<std::byte>(count * element_bytes, where);
    else
      return this->comm.template allocate<std::byte>(count * element_bytes);
  }
  Span<std::byte, Space> scratch(std::size_t bytes) override {
    if constexpr (requires(C& c) { c.scratch(bytes); }) {
      return this->comm.scratch(bytes);
    } else {
      if (scratch_.size() < bytes) scratch_ = Buffer<std::byte, Space>(bytes);
      return {scratch_.data(), bytes};
    }
  }
  void revoke(const std::string& reason) override { this->comm.revoke(reason); }

 private:
  Buffer<std::byte, Space> scratch_;
};

}  // namespace detail

/// Holds a communicator of any backend in one memory space.
///
/// A call costs one virtual call and does not allocate. Collectives have the contract of the communicator inside.
/// @throws InvalidArgument from calls that the communicator inside does not support
template <MemorySpace Space = Host>
class AnyCommunicator {
  using Interface = detail::VirtualCommunicator<Space>;

 public:
  using space = Space;

  template <class C>
    requires(!std::same_as<C, AnyCommunicator>) && Communicator<C> && std::same_as<typename C::space, Space>
  explicit AnyCommunicator(C comm) : self_(std::make_shared<detail::CommunicatorModel<C>>(std::move(comm))) {}
  AnyCommunicator(AnyCommunicator&&) noexcept = default;
  AnyCommunicator& operator=(AnyCommunicator&&) noexcept = default;

  [[nodiscard]] int rank() const { return self_->rank(); }
  [[nodiscard]] int size() const { return self_->size(); }
  [[nodiscard]] std::string_view backend() const { return self_->backend(); }
  /// Returns another handle on this communicator.
  [[nodiscard]] AnyCommunicator share() const { return AnyCommunicator(self_); }
  friend bool operator==(const AnyCommunicator& a, const AnyCommunicator& b) noexcept { return a.self_ == b.self_; }

  template <calls::ErasableCall Call>
    requires std::same_as<typename Call::space, Space>
  void execute(const Call& call) {
    self_->execute(erase(call));
  }
  template <calls::ErasableCall Call>
    requires std::same_as<typename Call::space, Space>
  [[nodiscard]] Pending<Space> start(const Call& call, typename Space::stream after = {}) {
    return self_->start(erase(call), after);
  }

  [[nodiscard]] AnyCommunicator split(int color, int key,
                                      std::source_location location = std::source_location::current()) {
    return AnyCommunicator(self_->split(color, key, location));
  }
  template <class T>
  [[nodiscard]] CommunicatorMemory<T, Space> allocate(std::size_t size,
                                                      std::source_location location = std::source_location::current()) {
    return CommunicatorMemory<T, Space>::from_bytes(self_->allocate(size, sizeof(T), location), size);
  }
  void revoke(const std::string& reason) { self_->revoke(reason); }

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

}  // namespace distx
