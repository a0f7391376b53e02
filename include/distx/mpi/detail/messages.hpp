// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/mpi/detail/movement.hpp"

// Messages between two ranks. Each is one message of MPI, however large, so that its size can be compared.
namespace distx::mpi {

/// @throws MismatchError for a tag that MPI does not have; its last one is kept for the messages of collectives
template <Collective Call>
void check_tag(const Job& job, const Call& c) {
  if (c.tag >= job.tag())
    throw MismatchError(
        "tag " + std::to_string(c.tag) + " is too large: this MPI has tags up to " + std::to_string(job.tag() - 1),
        job.self.context(c));
}

inline void issue(Job& job, const Send<AnyElement>& c) {
  check_tag(job, c);
  const Unit unit = unit_of(c.buffer);
  const auto units = c.buffer.size() * unit.per_element;
  // MPI would keep a small message to oneself somewhere and call it sent.
  if (c.to == job.self.rank)
    job.send_synchronously(c, unit, c.buffer.data(), units, c.to, c.tag);
  else
    job.send(c, unit, c.buffer.data(), units, c.to, c.tag);
}

inline void issue(Job& job, const Receive<AnyElement>& c) {
  check_tag(job, c);
  const Unit unit = unit_of(c.buffer);
  job.receive(c, unit, c.buffer.data(), c.buffer.size() * unit.per_element, c.from, c.tag);
}

inline void issue(Job& job, const SendReceive<AnyElement>& c) {
  check_tag(job, c);
  const Unit in = unit_of(c.receive);
  const Unit out = unit_of(c.send);
  job.receive(c, in, c.receive.data(), c.receive.size() * in.per_element, c.from, c.tag);
  job.send(c, out, c.send.data(), c.send.size() * out.per_element, c.to, c.tag);
}

}  // namespace distx::mpi
