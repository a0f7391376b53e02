// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/comm/any_op.hpp"
#include "distx/nccl/options.hpp"
#include "distx/nccl/premultiplied_sum.hpp"

namespace distx::nccl {

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
      return std::nullopt;
  }
}

[[nodiscard]] constexpr bool is_half(ElementType type) noexcept {
  return type == ElementType::bf16 || type == ElementType::f16;
}

/// How NCCL itself does a reduction.
struct NativeReduction {
  ncclDataType_t type;
  ncclRedOp_t op;
  std::optional<double> factor;  ///< of a pre-multiplied sum, whose op is still to be made
};

/// None for what goes by way of the host: types and ops that NCCL does not know, and what it would round otherwise than
/// `rounding` asks for.
[[nodiscard]] inline std::optional<NativeReduction> native_reduction(const AnyOp& op, NcclRounding rounding) noexcept {
  const auto type = datatype_of(op.type());
  if (!type) return std::nullopt;
  const bool once = rounding == NcclRounding::once;
  switch (op.kind()) {
    case OpKind::min:
      return NativeReduction{*type, ncclMin, {}};
    case OpKind::max:
      return NativeReduction{*type, ncclMax, {}};
    case OpKind::sum:
    case OpKind::product:
      if (once && is_half(op.type())) return std::nullopt;
      return NativeReduction{*type, op.kind() == OpKind::sum ? ncclSum : ncclProd, {}};
    case OpKind::average:
      if (once) return std::nullopt;
      return NativeReduction{*type, ncclAvg, {}};
    case OpKind::user:
      break;
  }
  if (once) return std::nullopt;
  if (const auto sum = op.target<PreMultipliedSum>()) return NativeReduction{*type, ncclNumOps, sum->factor};
  return std::nullopt;
}

}  // namespace distx::nccl
