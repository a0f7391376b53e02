// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <numeric>

#include "distx/nccl/detail/allocation.hpp"
#include "distx/nccl/detail/make.hpp"

namespace distx {

/// A communicator over NCCL, for ranks that have one GPU each.
///
/// - Making one, by connector, `split` or `shrink`, is collective and blocks. It connects the ranks, so that no later
///   call waits for another rank's first one; a size for which NCCL uses another algorithm connects at its first call.
/// - A blocking call runs after the work on CUDA's legacy default stream (or `NcclOptions::stream`) and returns when
///   its result is complete. An asynchronous call runs after the work on the stream that it is given. Without
///   `NcclOptions::stream`, blocking calls of different threads do not wait for each other's messages or collectives.
/// - NCCL reduces sums, products, minima, maxima and averages. 16-bit integers and custom ops are reduced on the host,
///   in rank order; so are 8-bit floats if a rank's GPU is below compute capability 9.0, and their averages and
///   pre-multiplied sums at one rank.
/// - Blocking collectives of a new shape are compared, and throw MismatchError on every rank. Messages and asynchronous
///   collectives are not: ranks that disagree about their sizes or types time out, or read wrong elements.
/// - NCCL has no tags. Asynchronous messages begin together, when one of them is waited for or tested, or a send is
///   among them and another call is made. Once begun, a message holds up later messages until its peer enters, so
///   start messages that pass each other before waiting for either, or use send_receive or an NcclGroup.
/// - Messages, asynchronous collectives and blocking calls use separate NCCL communicators and may pass each other,
///   except where CUDA runs one kernel at a time: with CUDA_LAUNCH_BLOCKING=1, or NCCL_LAUNCH_ORDER_IMPLICIT=1 on CUDA
///   before 12.3. Streams share CUDA_DEVICE_MAX_CONNECTIONS hardware queues (8 by default), in which a stream that
///   waits holds up others: set it to 32 if a program has many streams.
/// - Asynchronous collectives that NCCL has may be captured into a CUDA graph: on every rank, waited for by a stream of
///   the capture. They have no deadline. The graph must be destroyed before the communicator, which NCCL does not end
///   before, not even after a failure.
/// - If calls of several communicators are in flight on one GPU, start them in the same order on every rank: NCCL does
///   not order them, and their kernels may not all fit on the GPU at once.
/// - A failure on one rank revokes the communicator on all ranks, through the connector's failure channel; without
///   one, each rank finds out by its deadline.
/// - The destructor waits for up to two seconds for the other processes of the host to destroy theirs: ranks that
///   destroy it together wait for no one.
class NcclCommunicator : public detail::BasicCommunicator<NcclCommunicator, nccl::detail::NcclBackend> {
  using Base = detail::BasicCommunicator<NcclCommunicator, nccl::detail::NcclBackend>;
  friend Base;

 public:
  /// Makes a communicator over the ranks of any connector. Collective.
  /// @throws ConnectError on every rank if a rank has no GPU or another rank's, or NCCL fails; TimeoutError
  template <class C>
    requires(!std::same_as<std::remove_cv_t<C>, NcclCommunicator>) && Connector<C>
  explicit NcclCommunicator(C& connector, const NcclOptions& options = {})
      : Base(nccl::detail::connect(connector, options)) {}

  /// Makes a communicator over the ranks of `comm`, by ncclCommSplit. Collective.
  ///
  /// `comm` remains the caller's; nothing is in flight on it during this call. It must not have been made with
  /// ncclConfig_t::splitShare, which would let one failure end the caller's communicator, too. If it is a blocking one,
  /// the deadline does not apply to this call. The ranks have no failure channel: each finds a failure through NCCL or
  /// by its deadline.
  /// @throws ConnectError, TimeoutError
  [[nodiscard]] static NcclCommunicator from_native_handle(ncclComm_t comm, NcclOptions options = {}) {
    calls::RankOf self{0, 1, "nccl"};
    const ErrorContext context{.operation = "NcclCommunicator", .backend = "nccl"};
    nccl::detail::reject_making_in_group(context);
    if (comm == nullptr) throw InvalidArgument("the communicator is null", context);
    nccl::detail::check_version();
    int device = 0;
    nccl::detail::check(ncclCommUserRank(comm, &self.rank), "ncclCommUserRank", context);
    nccl::detail::check(ncclCommCount(comm, &self.size), "ncclCommCount", context);
    nccl::detail::check(ncclCommCuDevice(comm, &device), "ncclCommCuDevice", context);
    options.device = device;
    cuda::detail::Pools::all().share(device);
    const cuda::DeviceGuard guard(device);
    auto comms = nccl::detail::split_all(comm, 0, self.rank, options, context, [] { return false; });
    auto state = State::make(self, device, options, std::move(comms), nullptr, std::uint64_t{0});
    state->guarded([&] {
      nccl::detail::connect_all(state->backend, context);
      state->backend.set_capability(std::ranges::min(state->backend.gathered(
          cuda::compute_capability(device), context.operation, std::source_location::current())));
    });
    return NcclCommunicator(std::move(state));
  }
  /// Returns the NCCL communicator that blocking calls use, borrowed; null after a failure.
  [[nodiscard]] ncclComm_t native_handle() const noexcept { return backend_of().comms.blocking.comm(); }

  /// Returns the CUDA ordinal of this rank's GPU.
  [[nodiscard]] int device() const noexcept { return backend_of().device; }
  /// Returns the stream that asynchronous collectives run on. A call that is started after this stream needs no event.
  [[nodiscard]] CudaStreamRef stream() const noexcept { return backend_of().comms.started.stream; }

  /// Connects every pair of ranks for messages. Collective; blocks. Needed before the first message only if
  /// NcclOptions::connect_messages is false.
  void connect_messages(std::source_location location = std::source_location::current()) {
    state()->guarded([&] { nccl::detail::connect_messages(backend_of(), context("connect_messages", location)); });
  }

  /// Makes one communicator per color, which may be negative, with ranks ordered by key, then rank. Collective; blocks.
  [[nodiscard]] NcclCommunicator split(int color, int key,
                                       std::source_location location = std::source_location::current()) {
    using detail::SplitRequest;
    const auto all =
        state()->guarded([&] { return backend_of().gathered(SplitRequest{color, key, rank()}, "split", location); });
    const auto group = detail::group_of(all, color);
    // NCCL does not take negative colors: a group has the number of its lowest rank.
    const int first = std::ranges::min(group, {}, &SplitRequest::rank).rank;
    const auto here =
        std::find_if(group.begin(), group.end(), [&](const SplitRequest& request) { return request.rank == rank(); });
    const calls::RankOf self{static_cast<int>(here - group.begin()), static_cast<int>(group.size()), backend()};
    const auto identity = nccl::detail::identity_of(backend_of().revocation.identity(), backend_of().children++, first);
    const auto where = context("split", location);
    auto part = made(self, identity, where, [&](ncclComm_t parent, auto&& stop) {
      return nccl::detail::split_all(parent, first, self.rank, backend_of().options, where, stop);
    });
    part.state()->flight.split_from(state()->flight, color);
    return part;
  }

  /// Makes a communicator without the ranks named; this one must not be used afterwards. Collective over the ranks that
  /// remain; blocks until the calls that this rank has started are done. After a failure it needs
  /// NcclOptions::shrinkable.
  /// @throws InvalidArgument if a named rank does not exist or is this one; InvalidState, BackendError
  [[nodiscard]] NcclCommunicator shrink(std::vector<int> without,
                                        std::source_location location = std::source_location::current()) {
    const auto where = context("shrink", location);
    std::sort(without.begin(), without.end());
    without.erase(std::unique(without.begin(), without.end()), without.end());
    for (const int gone : without) {
      if (gone < 0 || gone >= size())
        throw InvalidArgument(
            "invalid rank " + std::to_string(gone) + ": must be in [0, " + std::to_string(size()) + ")", where);
      if (gone == rank())
        throw InvalidArgument("rank " + std::to_string(gone) + " is this rank: call shrink on ranks that remain only",
                              where);
    }
    if (without.empty()) return split(0, rank(), location);  // which ncclCommShrink refuses
    const auto below = std::lower_bound(without.begin(), without.end(), rank()) - without.begin();
    const calls::RankOf self{rank() - static_cast<int>(below), size() - static_cast<int>(without.size()), backend()};
    std::uint64_t gone = 0;
    for (const int rank : without) gone = nccl::detail::identity_of(gone, rank);
    const auto identity = nccl::detail::identity_of(backend_of().revocation.identity(), gone, self.size);
    return shrunk(native_handle(), self, identity, where, without);
  }

  /// Allocates zeros, by ncclMemAlloc and registered as windows if NCCL has them (2.27). Collective; blocks.
  /// @throws MismatchError if the ranks ask for different sizes; MemoryError
  template <class T>
  [[nodiscard]] CommunicatorMemory<T, Cuda> allocate(std::size_t size,
                                                     std::source_location location = std::source_location::current()) {
    return nccl::detail::allocate<T>(state(), size, location);
  }

 private:
  using Base::Base;

  [[nodiscard]] ErrorContext context(std::string_view operation, const std::source_location& location) const noexcept {
    return {.operation = operation, .backend = backend(), .rank = rank(), .size = size(), .location = location};
  }

  /// Makes a communicator of what `make(parent, stop)` returns, over the same failure channel.
  template <class Make>
  NcclCommunicator made(const calls::RankOf& self, std::uint64_t identity, const ErrorContext& where, Make&& make) {
    const cuda::DeviceGuard guard(backend_of().device);
    return state()->guarded([&] {
      auto comms = [&] {
        try {
          return backend_of().comms.with_parent(where, [&](ncclComm_t parent) {
            return make(parent, [this] { return backend_of().revocation.poll(), backend_of().revocation.revoked(); });
          });
        } catch (const RevokedError&) {
          backend_of().check_usable(where);  // throws with the other rank's reason
          throw;
        }
      }();
      auto part = child(self, identity, where, std::move(comms));
      state()->add_part(part);
      return NcclCommunicator(std::move(part));
    });
  }
  std::shared_ptr<State> child(const calls::RankOf& self, std::uint64_t identity, const ErrorContext& where,
                               nccl::detail::Comms comms) const {
    auto state = State::make(self, backend_of().device, backend_of().options, std::move(comms),
                             backend_of().revocation.failure_channel(), identity);
    state->backend.set_capability(backend_of().capability());
    state->guarded([&] { nccl::detail::connect_all(state->backend, where); });
    return state;
  }

  template <class Comm>
  NcclCommunicator shrunk(Comm, const calls::RankOf& self, std::uint64_t identity, const ErrorContext& where,
                          std::vector<int>& without) {
    if constexpr (nccl::detail::HasShrink<Comm>) {
      nccl::detail::reject_making_in_group(where);
      const bool failed = backend_of().revocation.revoked();
      if (!failed)
        state()->guarded(
            [&] { backend_of().settle(where); });  // NCCL may hang if the parent's operations are in flight
      const cuda::DeviceGuard guard(backend_of().device);
      auto comms = backend_of().comms.with_parent(where, [&](Comm parent) {
        if (parent == nullptr)
          throw InvalidState(
              "NCCL has aborted this communicator; set NcclOptions::shrinkable to shrink after a failure", where);
        return nccl::detail::shrink_all(parent, without, self.rank, failed, backend_of().options, where,
                                        [] { return false; });
      });
      return NcclCommunicator(child(self, identity, where, std::move(comms)));
    } else {
      throw BackendError("NCCL " + nccl::detail::version_words() + " has no ncclCommShrink; NCCL 2.27 is needed",
                         where);
    }
  }
};

static_assert(Communicator<NcclCommunicator>);

}  // namespace distx
