// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/comm/calls/any_op.hpp"
#include "distx/nccl/options.hpp"
#include "distx/nccl/premultiplied_sum.hpp"

namespace distx::inline DISTX_ABI::nccl::detail {

[[nodiscard]] constexpr bool is_float8(ElementType type) noexcept {
  return type == ElementType::f8e4m3 || type == ElementType::f8e5m2;
}

/// NCCL's name for an 8-bit float; none for others, and none where this NCCL does not know them.
template <class DataType>
[[nodiscard]] constexpr std::optional<DataType> float8_of(ElementType type) noexcept {
  if constexpr (HasFloat8<DataType>) {
    if (type == ElementType::f8e4m3) return DataType::ncclFloat8e4m3;
    if (type == ElementType::f8e5m2) return DataType::ncclFloat8e5m2;
  }
  return std::nullopt;
}

/// The GPUs whose NCCL reduces 8-bit floats: all of the ranks' must be of this compute capability at least.
inline constexpr int float8_capability = 90;

/// NCCL's name for an element type that it reduces; none for 16-bit integers and for what is only moved.
[[nodiscard]] inline std::optional<ncclDataType_t> datatype_of(ElementType type) noexcept {
  switch (type) {
    case ElementType::i8:
      return ncclInt8;
    case ElementType::u8:
      return ncclUint8;
    case ElementType::i32:
      return ncclInt32;
    case ElementType::u32:
      return ncclUint32;
    case ElementType::i64:
      return ncclInt64;
    case ElementType::u64:
      return ncclUint64;
    case ElementType::bf16:
      return ncclBfloat16;
    case ElementType::f16:
      return ncclFloat16;
    case ElementType::f32:
      return ncclFloat32;
    case ElementType::f64:
      return ncclFloat64;
    default:
      return float8_of<ncclDataType_t>(type);
  }
}

/// How NCCL itself does a reduction.
struct NativeReduction {
  ncclDataType_t type;
  ncclRedOp_t op;
  std::optional<double> factor;  ///< of a pre-multiplied sum, whose op is still to be made
};

/// Returns none for reductions on the host: types and ops that NCCL does not know, or not on GPUs of that compute
/// capability, and those that it rounds otherwise than `rounding` asks for. `ranks` is their number.
[[nodiscard]] inline std::optional<NativeReduction> native_reduction(const calls::AnyOp& op, NcclRounding rounding,
                                                                     int capability, int ranks) noexcept {
  const auto type = datatype_of(op.type());
  if (!type || (is_float8(op.type()) && capability < float8_capability)) return std::nullopt;
  // NCCL's kernel that multiplies one rank's operand leaves out up to 31 elements at its end before 2.29.7, and has no
  // 8-bit floats: without a factor the result is the operand, which a sum copies, and with one it is computed on the
  // host.
  if (ranks == 1 && op.kind() != OpKind::user) return NativeReduction{*type, ncclSum, {}};
  const bool once = rounding == NcclRounding::once;
  switch (op.kind()) {
    case OpKind::min:
      return NativeReduction{*type, ncclMin, {}};
    case OpKind::max:
      return NativeReduction{*type, ncclMax, {}};
    case OpKind::sum:
    case OpKind::product:
      if (once && is_narrow_float(op.type())) return std::nullopt;
      return NativeReduction{*type, op.kind() == OpKind::sum ? ncclSum : ncclProd, {}};
    case OpKind::average:
      if (once) return std::nullopt;
      return NativeReduction{*type, ncclAvg, {}};
    case OpKind::bit_and:
    case OpKind::bit_or:
    case OpKind::bit_xor:
    case OpKind::user:
      break;
  }
  if (once || ranks == 1) return std::nullopt;
  if (const auto sum = op.target<PreMultipliedSum>()) return NativeReduction{*type, ncclNumOps, sum->factor};
  return std::nullopt;
}

}  // namespace distx::inline DISTX_ABI::nccl::detail
