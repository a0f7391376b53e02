// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/cuda/detail/kernels.hpp"
#include "distx/nccl/detail/backend.hpp"

// NCCL connects ranks at their first calls, and holds such a call until the other ranks make theirs. Connections that
// are made with the communicator cannot hold up, or confuse, the user's calls.
namespace distx::inline DISTX_ABI::nccl::detail {

/// Issues first calls on a stream of the communicator's own, since the blocking calls' may be busy with the user's
/// work, and waits until they are done.
template <class F>
void connecting(NcclBackend& backend, CommStream& comm, const ErrorContext& context, F&& f) {
  const CudaStreamRef stream = backend.comms.own_stream();
  {
    const auto use = backend.comms.use(comm, context);
    f(stream.native_handle());
  }
  backend.wait([&] { return backend.comms.enqueued(comm) && stream.done(); }, context);
}

/// Connects every pair of ranks for messages, in both directions: NCCL takes for granted that two ranks connect the
/// same in the same call, which messages of users do not. Collective.
inline void connect_messages(NcclBackend& backend, const ErrorContext& context) {
  reject_blocking_in_group(context);
  const cuda::DeviceGuard guard(backend.device);
  CommStream& comm = backend.comms.messages;
  const int size = backend.self().size;
  if (size > 1)
    connecting(backend, comm, context, [&](cudaStream_t stream) {
      std::byte* const sent = comm.workspace(2 * static_cast<std::size_t>(size));
      std::byte* const received = sent + size;
      comm.grouped(context, [&] {
        for (int peer = 0; peer < size; ++peer) {
          if (peer == backend.self().rank) continue;
          comm.check(ncclSend(sent + peer, 1, ncclUint8, peer, comm.comm(), stream), "ncclSend", context);
          comm.check(ncclRecv(received + peer, 1, ncclUint8, peer, comm.comm(), stream), "ncclRecv", context);
        }
      });
    });
  backend.messages_connected = true;
}

/// Loads distx's kernels, and connects the collectives, by a reduction (a tree or a ring), a broadcast (always a ring)
/// and an all-gather of what comparisons gather, and the messages unless `connect_messages` is to do that later.
/// Collective.
inline void connect_all(NcclBackend& backend, const ErrorContext& context) {
  const cuda::DeviceGuard guard(backend.device);
  backend.prepare_comparisons();
  cuda::detail::load_kernels();  // which waits for what is in progress: not possible once calls wait for other ranks
  for (CommStream* const comm : {&backend.comms.blocking, &backend.comms.started}) {
    if (backend.self().size == 1) break;
    connecting(backend, *comm, context, [&](cudaStream_t stream) {
      std::byte* const number = comm->workspace(sizeof(int));
      comm->check(ncclAllReduce(number, number, 1, ncclInt32, ncclMax, comm->comm(), stream), "ncclAllReduce", context);
      comm->settle_before("ncclBroadcast", context);
      comm->check(ncclBroadcast(number, number, 1, ncclInt32, 0, comm->comm(), stream), "ncclBroadcast", context);
      comm->settle_before("ncclAllGather", context);
      const auto rank = static_cast<std::size_t>(comm->self.rank), size = static_cast<std::size_t>(comm->self.size);
      std::byte* const records = comm->workspace(sizeof(CallRecord) * size);
      comm->check(ncclAllGather(records + sizeof(CallRecord) * rank, records, sizeof(CallRecord), ncclUint8,
                                comm->comm(), stream),
                  "ncclAllGather", context);
    });
  }
  if (backend.options.connect_messages || backend.self().size == 1) connect_messages(backend, context);
}

}  // namespace distx::inline DISTX_ABI::nccl::detail
