// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <nccl.h>

#include "distx/comm/calls/validate.hpp"
#include "distx/comm/runtime/basic_communicator.hpp"
#include "distx/connect/connector.hpp"
#include "distx/cuda/buffer.hpp"
#include "distx/nccl/options.hpp"

namespace distx::inline DISTX_ABI {

namespace nccl::detail {

class NcclBackend;
struct Comms;

}  // namespace nccl::detail

template <>
struct detail::BackendTraits<nccl::detail::NcclBackend> {
  using space = Cuda;
};

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
/// - Collectives of a new shape are compared, as are length and element type of messages, and throw MismatchError on
///   every rank. Of asynchronous calls and messages the host does not wait for the comparison: if only a stream waits
///   for the call, a later call throws. See NcclOptions::check.
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
  explicit NcclCommunicator(C& connector, const NcclOptions& options = {}) : Base(connected(connector, options)) {}

  /// Makes a communicator over the ranks of `comm`, by ncclCommSplit. Collective.
  ///
  /// `comm` remains the caller's; nothing is in flight on it during this call. It must not have been made with
  /// ncclConfig_t::splitShare, which would let one failure end the caller's communicator, too. If it is a blocking one,
  /// the deadline does not apply to this call. The ranks have no failure channel: each finds a failure through NCCL or
  /// by its deadline.
  /// @throws ConnectError, TimeoutError
  [[nodiscard]] static NcclCommunicator from_native_handle(ncclComm_t comm, NcclOptions options = {});
  /// Returns the NCCL communicator that blocking calls use, borrowed; null after a failure.
  [[nodiscard]] ncclComm_t native_handle() const noexcept;

  /// Returns the CUDA ordinal of this rank's GPU.
  [[nodiscard]] int device() const noexcept;
  /// Returns the stream that asynchronous collectives run on. A call that is started after this stream needs no event.
  [[nodiscard]] CudaStreamRef stream() const noexcept;

  /// Connects every pair of ranks for messages. Collective; blocks. Needed before the first message only if
  /// NcclOptions::connect_messages is false.
  void connect_messages(std::source_location location = std::source_location::current());

  /// Makes one communicator per color, which may be negative, with ranks ordered by key, then rank. Collective; blocks.
  [[nodiscard]] NcclCommunicator split(int color, int key,
                                       std::source_location location = std::source_location::current());

  /// Makes a communicator without the ranks named; this one must not be used afterwards. Collective over the ranks that
  /// remain; blocks until the calls that this rank has started are done. After a failure it needs
  /// NcclOptions::shrinkable.
  /// @throws InvalidArgument if a named rank does not exist or is this one; InvalidState, BackendError
  [[nodiscard]] NcclCommunicator shrink(std::vector<int> without,
                                        std::source_location location = std::source_location::current());

  /// Allocates zeros, by ncclMemAlloc and registered as windows if NCCL has them (2.27). Collective; blocks.
  /// @throws MismatchError if the ranks ask for different sizes; MemoryError
  template <class T>
  [[nodiscard]] CommunicatorMemory<T, Cuda> allocate(std::size_t size,
                                                     std::source_location location = std::source_location::current()) {
    static_assert(std::is_trivially_copyable_v<T>, "distx: allocate: elements are moved as bytes");
    return CommunicatorMemory<T, Cuda>::from_bytes(allocate_zeros(size, sizeof(T), location), size);
  }

 private:
  using Base::Base;

  static std::shared_ptr<State> connected(detail::ConnectorRef connector, const NcclOptions& options);
  [[nodiscard]] CommunicatorMemory<std::byte, Cuda> allocate_zeros(std::size_t size, std::size_t element_bytes,
                                                                   const std::source_location& location);
  [[nodiscard]] ErrorContext context(std::string_view operation, const std::source_location& location) const noexcept;
  template <class Make>
  NcclCommunicator made(const calls::RankOf& self, std::uint64_t identity, const ErrorContext& where, Make&& make);
  std::shared_ptr<State> child(const calls::RankOf& self, std::uint64_t identity, const ErrorContext& where,
                               nccl::detail::Comms comms) const;
  template <class Comm>
  NcclCommunicator shrunk(Comm, const calls::RankOf& self, std::uint64_t identity, const ErrorContext& where,
                          std::vector<int>& without);
};

}  // namespace distx::inline DISTX_ABI
