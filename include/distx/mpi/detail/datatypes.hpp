// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <exception>

#include "distx/comm/calls/any_op.hpp"
#include "distx/comm/ops.hpp"
#include "distx/core/span.hpp"
#include "distx/mpi/detail/handles.hpp"

namespace distx::inline DISTX_ABI::detail::mpi {

/// The unit in which MPI counts: an element is `per_element` units, more than one if it is transferred as bytes.
struct Unit {
  MPI_Datatype type;
  std::size_t bytes;
  std::size_t per_element;
};

/// Returns the MPI datatype of an element type; MPI lacks the reduced-precision types, which are transferred as
/// integers.
[[nodiscard]] inline MPI_Datatype datatype_of(ElementType type) noexcept {
  static const MPI_Datatype types[element_type_count] = {
      MPI_INT8_T,  MPI_UINT8_T, MPI_INT16_T,  MPI_UINT16_T, MPI_INT32_T, MPI_UINT32_T, MPI_INT64_T, MPI_UINT64_T,
      MPI_UINT8_T, MPI_UINT8_T, MPI_UINT16_T, MPI_UINT16_T, MPI_FLOAT,   MPI_DOUBLE,   MPI_BYTE};
  return types[static_cast<std::size_t>(type)];
}

template <class Any>
[[nodiscard]] Unit unit_of(const Span<Any>& span) noexcept {
  if (span.type() == ElementType::bytes) return {MPI_BYTE, 1, span.element_bytes()};
  return {datatype_of(span.type()), span.element_bytes(), 1};
}

/// Returns whether MPI's own op gives what distx's does. In MPI's minimum and maximum, the result for a NaN of one
/// rank depends on the order of operands.
[[nodiscard]] constexpr bool is_native(OpKind kind, ElementType type) noexcept {
  const bool fractional = is_narrow_float(type) || type == ElementType::f32 || type == ElementType::f64;
  return kind != OpKind::user && !(fractional && (kind == OpKind::min || kind == OpKind::max));
}
/// Returns the MPI op of a built-in op; an average is a sum, and the division is computed here.
/// @pre is_native(kind, type of the elements)
[[nodiscard]] inline MPI_Op op_of(OpKind kind) noexcept {
  static const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_SUM, MPI_OP_NULL, MPI_BAND, MPI_BOR, MPI_BXOR};
  return ops[static_cast<std::size_t>(kind)];
}

/// Calls `f(offset, count)` for pieces of at most `most`, in order; not at all for 0 elements.
template <class F>
void in_pieces(std::size_t count, std::size_t most, F&& f) {
  for (std::size_t offset = 0; offset < count; offset += most)
    f(offset, static_cast<int>(std::min(most, count - offset)));
}

// MPI passes no user data to reduction functions, so an op that MPI lacks is an attribute of the datatype.

/// The op of a reduction in flight, and the exception that it threw, because exceptions must not propagate through MPI.
struct UserOp {
  calls::AnyOp op;
  std::exception_ptr error;
};

inline constexpr ErrorContext user_op_context{.operation = "a user's op", .backend = "mpi"};

/// Returns the attribute key, made once per process; MPI frees it at finalization.
inline int user_op_key() {
  static const int key = [] {
    int made = MPI_KEYVAL_INVALID;
    check(MPI_Type_create_keyval(MPI_TYPE_NULL_COPY_FN, MPI_TYPE_NULL_DELETE_FN, &made, nullptr),
          "MPI_Type_create_keyval", user_op_context);
    return made;
  }();
  return key;
}

/// Returns a copy of `type` with `user` as its attribute; `user` must outlive it.
[[nodiscard]] inline unique_datatype carrying(MPI_Datatype type, UserOp& user) {
  MPI_Datatype copy = MPI_DATATYPE_NULL;
  check(MPI_Type_dup(type, &copy), "MPI_Type_dup", user_op_context);
  auto owner = unique_datatype::from_native_handle(copy);
  check(MPI_Type_set_attr(copy, user_op_key(), &user), "MPI_Type_set_attr", user_op_context);
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

/// Returns MPI's op of all users' ops. Made once per process and not freed: MPI may be finalized before a static is
/// destroyed.
[[nodiscard]] inline MPI_Op user_op(bool commutative) {
  static const auto ops = [] {
    std::array<MPI_Op, 2> made{};
    for (const int commutes : {0, 1})
      check(MPI_Op_create(&apply_user_op, commutes, &made[static_cast<std::size_t>(commutes)]), "MPI_Op_create",
            user_op_context);
    return made;
  }();
  return ops[commutative ? 1 : 0];
}

}  // namespace distx::inline DISTX_ABI::detail::mpi
