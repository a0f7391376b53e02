// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/mpi/detail/movement.hpp"

// Messages between two ranks. Each is one MPI message if it is small, and two otherwise: see Job::send_message.
namespace distx::detail::mpi {

inline void issue(Job& job, const calls::Send<AnyElement>& c) { job.send_message(c, c.buffer, c.lengths, c.to); }

inline void issue(Job& job, const calls::Receive<AnyElement>& c) {
  job.receive_message(c, c.buffer, c.lengths, c.from);
}

inline void issue(Job& job, const calls::SendReceive<AnyElement>& c) {
  job.receive_message(c, c.receive, 0, c.from);
  job.send_message(c, c.send, 0, c.to);
}

}  // namespace distx::detail::mpi
