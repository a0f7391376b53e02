// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <mpi.h>

#include "distx/core/unique_handle.hpp"

namespace distx::detail::mpi {

/// Returns whether MPI is initialized and not finalized; handles can be freed only then.
[[nodiscard]] inline bool is_up() noexcept {
  int begun = 0;
  int ended = 0;
  MPI_Initialized(&begun);
  MPI_Finalized(&ended);
  return begun != 0 && ended == 0;
}

/// Frees the local side only: in Open MPI and MPICH, MPI_Comm_free does not communicate.
struct mpi_comm_traits {
  using handle_type = MPI_Comm;
  static handle_type null() noexcept { return MPI_COMM_NULL; }
  static void close(handle_type comm) noexcept {
    if (is_up()) MPI_Comm_free(&comm);
  }
};

struct op_traits {
  using handle_type = MPI_Op;
  static handle_type null() noexcept { return MPI_OP_NULL; }
  static void close(handle_type op) noexcept {
    if (is_up()) MPI_Op_free(&op);
  }
};

struct datatype_traits {
  using handle_type = MPI_Datatype;
  static handle_type null() noexcept { return MPI_DATATYPE_NULL; }
  static void close(handle_type type) noexcept {
    if (is_up()) MPI_Type_free(&type);
  }
};

struct group_traits {
  using handle_type = MPI_Group;
  static handle_type null() noexcept { return MPI_GROUP_NULL; }
  static void close(handle_type group) noexcept {
    if (is_up()) MPI_Group_free(&group);
  }
};

using mpi_unique_comm = unique_handle<mpi_comm_traits>;
using unique_op = unique_handle<op_traits>;
using unique_datatype = unique_handle<datatype_traits>;
using unique_group = unique_handle<group_traits>;

}  // namespace distx::detail::mpi
