// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "distx/connect/failure_channel.hpp"
#include "distx/core/deadline.hpp"
#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI {

/// The bootstrap interface: identifies this rank, and exchanges small control messages before a communicator exists.
///
/// - `rank()`, `size()`: this rank, in [0, size()), and the number of ranks; `local_rank()`, `local_size()`: the same
///   among the ranks of this host.
/// - `root_rank()`: the rank that acts for all where one must, such as printing.
/// - `barrier()`, `broadcast(bytes, root)`, `all_gather(send, receive)`: collective and blocking. Every rank calls them
///   in the same order, from one thread at a time. `all_gather` receives `size()` blocks of the bytes sent, in rank
///   order.
template <class C>
concept Connector = std::movable<C> && requires(C& connector, const C& fixed, std::span<std::byte> out,
                                                std::span<const std::byte> in, int root) {
  { fixed.rank() } -> std::same_as<int>;
  { fixed.size() } -> std::same_as<int>;
  { fixed.local_rank() } -> std::same_as<int>;
  { fixed.local_size() } -> std::same_as<int>;
  { fixed.root_rank() } -> std::same_as<int>;
  connector.barrier();
  connector.broadcast(out, root);
  connector.all_gather(in, out);
};

/// Returns `root`'s value on every rank. Collective; blocks.
/// @throws the errors of the connector's broadcast
template <Connector C, class T>
  requires std::is_trivially_copyable_v<T>
[[nodiscard]] T broadcast_value(C& connector, T value, int root) {
  connector.broadcast(std::as_writable_bytes(std::span<T>(&value, 1)), root);
  return value;
}

/// Returns every rank's value, in rank order. Collective; blocks.
/// @throws the errors of the connector's all_gather
template <Connector C, class T>
  requires std::is_trivially_copyable_v<T>
[[nodiscard]] std::vector<T> all_gather_values(C& connector, const T& value) {
  std::vector<T> values(static_cast<std::size_t>(connector.size()));
  connector.all_gather(std::as_bytes(std::span<const T>(&value, 1)), std::as_writable_bytes(std::span<T>(values)));
  return values;
}

namespace detail {

/// This rank's numbers, as its connector says them.
class RankNumbers {
 public:
  RankNumbers(int rank, int size, int local_rank = 0, int local_size = 1, int root_rank = 0) noexcept
      : rank_(rank), size_(size), local_rank_(local_rank), local_size_(local_size), root_rank_(root_rank) {}
  template <class C>
  explicit RankNumbers(const C& c) : RankNumbers(c.rank(), c.size(), c.local_rank(), c.local_size(), c.root_rank()) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Returns the rank among those of this host: under one kernel, seeing each other's process ids.
  [[nodiscard]] int local_rank() const noexcept { return local_rank_; }
  [[nodiscard]] int local_size() const noexcept { return local_size_; }
  [[nodiscard]] int root_rank() const noexcept { return root_rank_; }

 protected:
  int rank_, size_, local_rank_, local_size_, root_rank_;
};

/// A connector of any type.
class VirtualConnector : public RankNumbers {
 public:
  virtual ~VirtualConnector() = default;
  virtual void barrier() = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) = 0;
  virtual std::shared_ptr<VirtualConnector> shrink(Timeout deadline) = 0;
  virtual std::shared_ptr<VirtualConnector> grow() = 0;
  virtual std::shared_ptr<FailureChannel> failure_channel() = 0;

 protected:
  explicit VirtualConnector(const RankNumbers& numbers) noexcept : RankNumbers(numbers) {}
};

/// The calls of AnyConnector, ThreadConnector, FileConnector, TcpConnector and MpiConnector.
class ErasedConnector : public RankNumbers {
 public:
  /// Blocks until every rank has entered the call. Collective.
  /// @throws MismatchError on every rank if the ranks make different calls; TimeoutError naming the missing ranks;
  ///         RankFailure or RevokedError if another rank has ended; ConnectError if the ranks' folder is gone. The same
  ///         holds for the other calls. After a MismatchError the ranks can make further calls
  void barrier() { self_->barrier(); }
  /// Copies `bytes` of `root` to `bytes` on every rank. Collective.
  /// @throws InvalidArgument unless root is a rank; MismatchError on every rank if the ranks pass different roots or
  ///         numbers of bytes
  void broadcast(std::span<std::byte> bytes, int root) { self_->broadcast(bytes, root); }
  /// Writes the ranks' `send` to `receive`, in rank order. Collective.
  /// @throws InvalidArgument unless `receive` has `size()` times the bytes of `send`; MismatchError on every rank if
  ///         the ranks pass different numbers of bytes
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) { self_->all_gather(send, receive); }

  /// Returns the ranks' failure channel, which also reports a rank that has failed; null only if an AnyConnector's
  /// connector has none, or MPI lacks MPI_THREAD_MULTIPLE. While it is kept, this rank does not leave.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const { return self_->failure_channel(); }

 protected:
  explicit ErasedConnector(std::shared_ptr<VirtualConnector> self) noexcept
      : RankNumbers(*self), self_(std::move(self)) {}

  std::shared_ptr<VirtualConnector> self_;
};

/// @param connector  moved; or borrowed, if `C` is a reference
template <class C>
[[nodiscard]] std::shared_ptr<VirtualConnector> erased(C&& connector);

}  // namespace detail

/// Owns a connector of any type, and forwards to it; `connect()` returns one. Move-only.
class AnyConnector : public detail::ErasedConnector {
 public:
  template <class C>
    requires(!std::same_as<C, AnyConnector>) && Connector<C>
  AnyConnector(C connector)  // NOLINT
      : ErasedConnector(detail::erased(std::move(connector))) {}
  AnyConnector(AnyConnector&&) noexcept = default;
  AnyConnector& operator=(AnyConnector&&) noexcept = default;

  /// Returns a connector of the surviving ranks after others have ended. Collective over these; blocks.
  ///
  /// The surviving ranks keep their order. A rank is left if it enters this call before the deadline; ranks that
  /// have ended are not waited for. All ranks that it returns on have the same result; it may be called again on that
  /// if further ranks end. This connector, and communicators made from it, must not be used afterwards.
  /// @throws ConnectError if the others have continued without this rank; or on every rank if the connector inside
  ///   cannot shrink: ThreadConnector, FileConnector, MpiConnector, SelfConnector and, while rank 0 is left,
  ///   TcpConnector can
  [[nodiscard]] AnyConnector shrink(Timeout deadline = default_deadline) {
    return AnyConnector(self_->shrink(deadline));
  }

  /// Returns a connector of these ranks and of the processes that wait to join them, if there are any; otherwise an
  /// equal one. Collective; waits for no process that has not been started.
  ///
  /// These ranks keep their numbers, and the processes that join follow. Such a process is started with the variable
  /// DISTX_JOIN=1 and with those that name the folder or the address of the job; its `connect` returns once the ranks
  /// of the job have called `grow`. If the size differs, this connector, and communicators made from it, must not be
  /// used afterwards.
  /// @throws RankFailure, RevokedError or TimeoutError if a rank is lost: `shrink` continues with the others
  /// @throws ConnectError on every rank if the connector inside cannot grow: FileConnector and TcpConnector can;
  ///   ThreadConnector, MpiConnector and SelfConnector return an equal one
  [[nodiscard]] AnyConnector grow() { return AnyConnector(self_->grow()); }

  /// Returns the connector inside, owned by this object; null if it is not a `C`.
  template <Connector C>
  [[nodiscard]] C* target() noexcept;

 private:
  explicit AnyConnector(std::shared_ptr<detail::VirtualConnector> self) noexcept : ErasedConnector(std::move(self)) {}
};

namespace detail {

/// @tparam C  a connector, or a reference to one
template <class C>
struct ConnectorModel final : VirtualConnector {
  explicit ConnectorModel(C c) : VirtualConnector(RankNumbers(c)), connector(std::forward<C>(c)) {}
  void barrier() override { connector.barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) override { connector.broadcast(bytes, root); }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) override {
    connector.all_gather(send, receive);
  }
  std::shared_ptr<VirtualConnector> shrink([[maybe_unused]] Timeout deadline) override {
    if constexpr (requires { connector.shrink(deadline); })
      return erased(connector.shrink(deadline));
    else
      throw ConnectError(
          "the ranks of this launcher cannot continue without others: resume from a checkpoint, or start the ranks "
          "with distx-run --no-kill",
          {.operation = "shrink", .rank = connector.rank(), .size = connector.size()});
  }
  std::shared_ptr<VirtualConnector> grow() override {
    if constexpr (requires { connector.grow(); })
      return erased(connector.grow());
    else
      throw ConnectError("no process can join the ranks of this launcher: start them with distx-run or in a folder",
                         {.operation = "grow", .rank = connector.rank(), .size = connector.size()});
  }
  std::shared_ptr<FailureChannel> failure_channel() override { return failure_channel_of(connector); }
  C connector;
};

template <class C>
std::shared_ptr<VirtualConnector> erased(C&& connector) {
  return std::make_shared<ConnectorModel<C>>(std::forward<C>(connector));
}

/// Borrows a connector of any type, so that a function that takes one is compiled once.
class ConnectorRef : public ErasedConnector {
 public:
  template <class C>
    requires(!std::same_as<C, ConnectorRef>) && Connector<C>
  ConnectorRef(C& connector)  // NOLINT
      : ErasedConnector(erased(connector)) {}
};

}  // namespace detail

template <Connector C>
C* AnyConnector::target() noexcept {
  auto* model = dynamic_cast<detail::ConnectorModel<C>*>(self_.get());
  return model == nullptr ? nullptr : &model->connector;
}

}  // namespace distx::inline DISTX_ABI
