// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "timing/subject.hpp"

// Other libraries' collectives, among the processes that mpirun has started. Each is made on all ranks.
namespace peers {

/// To be called before MPI starts: lets one program have communicators of different tuning.
void allow_tuning();

/// MPI itself, on a separate communicator: `openmpi`, or the library's own name.
std::unique_ptr<timing::Subject> make_mpi(timing::Memory memory);
/// Open MPI's all-reduce by a ring in segments of 1 MiB; nothing, and why in `missing`, where it cannot be chosen.
std::unique_ptr<timing::Subject> make_openmpi_ring(timing::Memory memory, std::string& missing);
std::unique_ptr<timing::Subject> make_boost_mpi(timing::Memory memory);
/// Nothing, and why in `missing`, where the program was built without Gloo.
std::unique_ptr<timing::Subject> make_gloo(timing::Memory memory, std::string& missing);

}  // namespace peers
