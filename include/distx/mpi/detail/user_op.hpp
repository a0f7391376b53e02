// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>

#include "distx/comm/calls/any_op.hpp"
#include "distx/mpi/detail/check.hpp"
#include "distx/mpi/detail/handles.hpp"

// MPI passes no user data to reduction functions, so an op that MPI lacks is an attribute of the datatype.
namespace distx::inline DISTX_ABI::detail::mpi {

/// The op of a reduction in flight, and the exception that it threw, because exceptions must not propagate through MPI.
struct UserOp {
  calls::AnyOp op;
  std::exception_ptr error;
};

/// Returns the attribute key, made once per process; MPI frees it at finalization.
inline int user_op_key() {
  static const int key = [] {
    int made = MPI_KEYVAL_INVALID;
    check(MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, MPI_TYPE_NULL_DELETE_FN, &made, nullptr),
          "MPI_Type_create_keyval", {.operation = "a user's op", .backend = "mpi"});
    return made;
  }();
  return key;
}

/// Returns a copy of `type` with `user` as its attribute; `user` must outlive it.
[[nodiscard]] inline unique_datatype carrying(MPI_Datatype type, UserOp& user) {
  const ErrorContext context{.operation = "a user's op", .backend = "mpi"};
  MPI_Datatype copy = MPI_DATATYPE_NULL;
  check(MPI_Type_dup(type, &copy), "MPI_Type_dup", context);
  auto owner = unique_datatype::from_native_handle(copy);
  check(MPI_Type_set_attr(copy, user_op_key(), &user), "MPI_Type_set_attr", context);
  return owner;
}

/// MPI's reduction function: computes `right = left op right`, where `left` belongs to the lower ranks.
inline void apply_user_op(void* left, void* right, int* count, MPI_Datatype* type) noexcept {
  void* attribute = nullptr;
  int found = 0;
  MPI_Type_get_attr(*type, user_op_key(), static_cast<void*>(&attribute), &found);
  if (found == 0) std::terminate();  // this function is used only with datatypes that carry an op
  auto& user = *static_cast<UserOp*>(attribute);
  if (user.error != nullptr) return;
  try {
    const void* const sources[] = {left, right};
    user.op.reduce(&right, 1, sources, 2, static_cast<std::size_t>(*count), 0);
  } catch (...) {
    user.error = std::current_exception();
  }
}

[[nodiscard]] inline unique_op make_user_op(bool commutative) {
  MPI_Op op = MPI_OP_NULL;
  check(MPI_Op_create(&apply_user_op, commutative ? 1 : 0, &op), "MPI_Op_create",
        {.operation = "a user's op", .backend = "mpi"});
  return unique_op::from_native_handle(op);
}

}  // namespace distx::inline DISTX_ABI::detail::mpi
