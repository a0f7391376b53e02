// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/nccl/detail/backend.hpp"

// NCCL connects ranks at their first calls, and holds such a call until the other ranks make theirs. Connections that
// are made with the communicator cannot hold up, or confuse, the user's calls.
namespace distx::nccl::detail {

/// Issues first calls on a stream of the communicator's own, since the blocking calls' may be busy with the user's
/// work, and waits until they are done.
template <class F>
void connecting(NcclBackend& state, CommStream& comm, const ErrorContext& context, F&& f) {
  const CudaStreamRef stream = state.comms.own_stream();
  {
    const auto use = state.comms.use(comm, context);
    f(stream.native_handle());
  }
  state.wait([&] { return state.comms.enqueued(comm) && stream.done(); }, context);
}

/// Connects every pair of ranks for messages, in both directions: NCCL takes for granted that two ranks connect the
/// same in the same call, which messages of users do not. Collective.
inline void connect_messages(NcclBackend& state, const ErrorContext& context) {
  state.guarded([&] {
    refuse_blocking_in_group(context);
    const DeviceGuard guard(state.device);
    const Barrier<Cuda> call{.location = context.location};
    CommStream& comm = state.comms.messages;
    const int size = state.self.size;
    if (size == 1) return;
    connecting(state, comm, context, [&](cudaStream_t stream) {
      std::byte* const sent = comm.workspace(2 * static_cast<std::size_t>(size));
      std::byte* const received = sent + size;
      comm.grouped(call, [&] {
        for (int peer = 0; peer < size; ++peer) {
          if (peer == state.self.rank) continue;
          comm.check(ncclSend(sent + peer, 1, ncclUint8, peer, comm.comm(), stream), "ncclSend", call);
          comm.check(ncclRecv(received + peer, 1, ncclUint8, peer, comm.comm(), stream), "ncclRecv", call);
        }
      });
    });
  });
  state.messages_connected = true;
}

/// Connects the collectives, by a reduction (a tree or a ring) and a broadcast (always a ring), and the messages unless
/// `connect_messages` is to do that later. Collective.
inline void connect_all(NcclBackend& state, const ErrorContext& context) {
  state.guarded([&] {
    const DeviceGuard guard(state.device);
    const Barrier<Cuda> call{.location = context.location};
    if (state.self.size == 1) return;
    for (CommStream* const comm : {&state.comms.blocking, &state.comms.started})
      connecting(state, *comm, context, [&](cudaStream_t stream) {
        std::byte* const number = comm->workspace(sizeof(int));
        comm->check(ncclAllReduce(number, number, 1, ncclInt32, ncclMax, comm->comm(), stream), "ncclAllReduce", call);
        comm->settle_before("ncclBroadcast", call);
        comm->check(ncclBroadcast(number, number, 1, ncclInt32, 0, comm->comm(), stream), "ncclBroadcast", call);
      });
  });
  if (state.options.connect_messages || state.self.size == 1) connect_messages(state, context);
}

}  // namespace distx::nccl::detail
