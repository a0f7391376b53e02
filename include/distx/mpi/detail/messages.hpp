// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/mpi/detail/movement.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Passes a call to MPI. A message between two ranks is one MPI message if it is small, and two otherwise: see
/// Job::send_message. Inlined, also in a debugger: a walk from the caller to MPI passes no frame for a choice.
[[gnu::always_inline]] inline void issue(Job& job, const Call<Host>& c) {
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      return issue_all_reduce(job, c);
    case CollectiveKind::reduce:
      return issue_reduce(job, c);
    case CollectiveKind::broadcast:
      return issue_broadcast(job, c);
    case CollectiveKind::all_gather:
      return issue_all_gather(job, c);
    case CollectiveKind::reduce_scatter:
      return issue_reduce_scatter(job, c);
    case CollectiveKind::all_to_all:
      return issue_all_to_all(job, c);
    case CollectiveKind::gather:
      return issue_gather(job, c);
    case CollectiveKind::scatter:
      return issue_scatter(job, c);
    case CollectiveKind::send:
      return job.send_message(c, c.send, c.lengths, c.to);
    case CollectiveKind::receive:
      return job.receive_message(c, c.receive, c.lengths, c.from);
    case CollectiveKind::send_receive:
      job.receive_message(c, c.receive, 0, c.from);
      return job.send_message(c, c.send, 0, c.to);
    case CollectiveKind::barrier:
      return issue_barrier(job, c);
  }
}

}  // namespace distx::inline DISTX_ABI::detail::mpi
