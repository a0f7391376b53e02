// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <mpi.h>

#include "distx/core/unique_handle.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// Returns whether MPI is initialized and not finalized; handles can be freed only then.
[[nodiscard]] inline bool is_up() noexcept {
  int begun = 0;
  int ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  return begun != 0 && ended == 0;
}

/// The traits of a handle that `Free` frees while MPI is up. `Null` returns the null handle, which is not a constant.
template <auto Null, auto Free>
struct mpi_handle_traits {
  using handle_type = decltype(Null());
  static handle_type null() noexcept { return Null(); }
  static void close(handle_type handle) noexcept {
    if (is_up()) Free(&handle);
  }
};

inline MPI_Comm no_comm() noexcept { return MPI_COMM_NULL; }
inline MPI_Op no_op() noexcept { return MPI_OP_NULL; }
inline MPI_Datatype no_datatype() noexcept { return MPI_DATATYPE_NULL; }

/// Frees the local side only: in Open MPI and MPICH, MPI_Comm_free does not communicate.
using mpi_unique_comm = unique_handle<mpi_handle_traits<no_comm, MPI_Comm_free>>;
using unique_op = unique_handle<mpi_handle_traits<no_op, MPI_Op_free>>;
using unique_datatype = unique_handle<mpi_handle_traits<no_datatype, MPI_Type_free>>;

}  // namespace distx::inline DISTX_ABI::detail::mpi
