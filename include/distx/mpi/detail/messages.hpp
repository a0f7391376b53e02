// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/mpi/detail/movement.hpp"

// Messages between two ranks. Each is one MPI message of any size, so that the sizes can be compared.
namespace distx::detail::mpi {

inline void issue(Job& job, const calls::Send<AnyElement>& c) {
  const Unit unit = unit_of(c.buffer);
  const auto units = c.buffer.size() * unit.per_element;
  // MPI would buffer a small self-send and report it as complete.
  if (c.to == job.self.rank)
    job.send_synchronously(c, unit, c.buffer.data(), units, c.to, job.tag() + c.tag);
  else
    job.send(c, unit, c.buffer.data(), units, c.to, job.tag() + c.tag);
}

inline void issue(Job& job, const calls::Receive<AnyElement>& c) {
  const Unit unit = unit_of(c.buffer);
  job.receive(c, unit, c.buffer.data(), c.buffer.size() * unit.per_element, c.from, job.tag() + c.tag);
}

inline void issue(Job& job, const calls::SendReceive<AnyElement>& c) {
  const Unit in = unit_of(c.receive);
  const Unit out = unit_of(c.send);
  job.receive(c, in, c.receive.data(), c.receive.size() * in.per_element, c.from, job.tag() + c.tag);
  job.send(c, out, c.send.data(), c.send.size() * out.per_element, c.to, job.tag() + c.tag);
}

}  // namespace distx::detail::mpi
