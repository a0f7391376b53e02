// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>
#include <memory>
#include <utility>
#include <variant>

#include "distx/comm/communicator.hpp"
#include "distx/core/error.hpp"

namespace distx {

/// Any erased collective of one space.
template <MemorySpace Space>
using AnyCall =
    std::variant<AllReduce<AnyElement, AnyOp, Space>, Reduce<AnyElement, AnyOp, Space>, Broadcast<AnyElement, Space>,
                 AllGather<AnyElement, Space>, ReduceScatter<AnyElement, AnyOp, Space>, AllToAll<AnyElement, Space>,
                 Gather<AnyElement, Space>, Scatter<AnyElement, Space>, Send<AnyElement, Space>,
                 Receive<AnyElement, Space>, SendReceive<AnyElement, Space>, Barrier<Space>>;

/// Any backend's Pending.
template <MemorySpace Space>
class AnyPending {
 public:
  AnyPending() noexcept = default;
  template <class P>
    requires(!std::same_as<P, AnyPending>) && PendingCollective<P, Space>
  explicit AnyPending(P pending) : self_(std::make_unique<Model<P>>(std::move(pending))) {}

  void wait() {
    if (self_ != nullptr) std::exchange(self_, nullptr)->wait();
  }
  void wait(typename Space::stream stream) {
    if (self_ != nullptr) std::exchange(self_, nullptr)->wait(stream);
  }
  [[nodiscard]] bool test() { return self_ == nullptr || self_->test(); }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual void wait() = 0;
    virtual void wait(typename Space::stream) = 0;
    virtual bool test() = 0;
  };
  template <class P>
  struct Model final : Interface {
    explicit Model(P p) : pending(std::move(p)) {}
    void wait() override { pending.wait(); }
    void wait(typename Space::stream stream) override { pending.wait(stream); }
    bool test() override { return pending.test(); }
    P pending;
  };
  std::unique_ptr<Interface> self_;
};

/// Holds any communicator of one space behind one type; costs a virtual call.
///
/// A call that the communicator inside cannot make throws MismatchError.
template <MemorySpace Space = Host>
class AnyCommunicator {
 public:
  using space = Space;

  template <class C>
    requires(!std::same_as<C, AnyCommunicator>) && Communicator<C> && std::same_as<typename C::space, Space>
  explicit AnyCommunicator(C comm) : self_(std::make_shared<Model<C>>(std::move(comm))) {}
  AnyCommunicator(AnyCommunicator&&) noexcept = default;
  AnyCommunicator& operator=(AnyCommunicator&&) noexcept = default;

  [[nodiscard]] int rank() const { return self_->rank(); }
  [[nodiscard]] int size() const { return self_->size(); }
  [[nodiscard]] std::string_view backend() const { return self_->backend(); }
  [[nodiscard]] AnyCommunicator share() const { return AnyCommunicator(self_); }
  friend bool operator==(const AnyCommunicator& a, const AnyCommunicator& b) noexcept { return a.self_ == b.self_; }

  template <ErasableCall Call>
    requires std::same_as<typename Call::space, Space>
  void execute(const Call& call) {
    self_->execute(AnyCall<Space>(erase(call)));
  }
  template <ErasableCall Call>
    requires std::same_as<typename Call::space, Space>
  [[nodiscard]] AnyPending<Space> start(const Call& call, typename Space::stream after = {}) {
    return self_->start(AnyCall<Space>(erase(call)), after);
  }

  [[nodiscard]] AnyCommunicator split(int color, int key) { return AnyCommunicator(self_->split(color, key)); }
  template <class T>
  [[nodiscard]] CommunicatorMemory<T, Space> allocate(std::size_t size) {
    if (size > std::numeric_limits<std::size_t>::max() / sizeof(T))
      throw MemoryError(
          "no memory for " + std::to_string(size) + " elements of " + std::to_string(sizeof(T)) + " bytes",
          {.operation = "allocate", .backend = backend(), .rank = rank(), .size = this->size()});
    auto bytes = std::make_shared<CommunicatorMemory<std::byte, Space>>(self_->allocate(size * sizeof(T)));
    return {Span<T, Space>(reinterpret_cast<T*>(bytes->data()), size), bytes};
  }
  [[nodiscard]] Span<std::byte, Space> scratch(std::size_t bytes) { return self_->scratch(bytes); }
  [[nodiscard]] GroupCache& group_cache() noexcept { return self_->groups; }
  void revoke(const std::string& reason) { self_->revoke(reason); }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual std::string_view backend() const = 0;
    virtual void execute(const AnyCall<Space>&) = 0;
    virtual AnyPending<Space> start(const AnyCall<Space>&, typename Space::stream) = 0;
    virtual std::shared_ptr<Interface> split(int, int) = 0;
    virtual CommunicatorMemory<std::byte, Space> allocate(std::size_t) = 0;
    virtual Span<std::byte, Space> scratch(std::size_t) = 0;
    virtual void revoke(const std::string&) = 0;
    GroupCache groups;
  };
  template <class C>
  struct Model final : Interface {
    explicit Model(C c) : comm(std::move(c)) {}
    int rank() const override { return comm.rank(); }
    int size() const override { return comm.size(); }
    std::string_view backend() const override { return comm.backend(); }
    void execute(const AnyCall<Space>& any) override {
      std::visit(
          [this]<class Call>(const Call& call) {
            if constexpr (Executes<C, Call>)
              comm.execute(call);
            else
              refuse(call);
          },
          any);
    }
    AnyPending<Space> start(const AnyCall<Space>& any, typename Space::stream after) override {
      return std::visit([&]<class Call>(const Call& call) { return begin(comm, call, after); }, any);
    }
    std::shared_ptr<Interface> split(int color, int key) override {
      return std::make_shared<Model>(comm.split(color, key));
    }
    CommunicatorMemory<std::byte, Space> allocate(std::size_t bytes) override {
      return comm.template allocate<std::byte>(bytes);
    }
    Span<std::byte, Space> scratch(std::size_t bytes) override { return comm.scratch(bytes); }
    void revoke(const std::string& reason) override { comm.revoke(reason); }
    // With the communicator as an argument: where it has no `start` at all, its name may not even be looked up.
    template <class Inner, class Call>
    AnyPending<Space> begin(Inner& inner, const Call& call, typename Space::stream after) {
      if constexpr (Starts<Inner, Call>)
        return AnyPending<Space>(inner.start(call, after));
      else
        return refuse(call), AnyPending<Space>();
    }
    template <class Call>
    void refuse(const Call& call) const {
      throw MismatchError("this communicator has no such call for elements whose type is known at run time only",
                          {.operation = Call::name,
                           .backend = comm.backend(),
                           .rank = comm.rank(),
                           .size = comm.size(),
                           .location = call.location});
    }
    C comm;
  };

  explicit AnyCommunicator(std::shared_ptr<Interface> self) : self_(std::move(self)) {}

  std::shared_ptr<Interface> self_;
};

}  // namespace distx
