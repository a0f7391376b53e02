// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>

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

/// The same for a message between two ranks, whose last piece is shorter than `most`, if need be empty: a longer
/// message than expected is a mismatch in that piece. A message that lacks whole pieces ends at the deadline.
template <class F>
void in_message_pieces(std::size_t count, std::size_t most, F&& f) {
  in_pieces(count, most, f);
  if (count > 0 && count % most == 0) f(count, 0);
}

}  // namespace distx::inline DISTX_ABI::detail::mpi
