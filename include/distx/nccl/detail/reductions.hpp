// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/nccl/detail/by_host.hpp"
#include "distx/nccl/detail/datatypes.hpp"

// The collectives that reduce: by NCCL's own calls where it has type and op, else on the host.
namespace distx::inline DISTX_ABI::nccl::detail {

/// Makes the op of a pre-multiplied sum, whose factor is of the type of the elements.
[[nodiscard]] inline ncclResult_t make_pre_multiplied_sum(CommStream& ch, const NativeReduction& native,
                                                          unique_reduction& made) {
  const double factor = *native.factor;
  double as_double = factor;
  float as_float = static_cast<float>(factor);
  bfloat16 as_bfloat16(as_float);
  float16 as_float16(as_float);
  float8_e4m3 as_e4m3(as_float);
  float8_e5m2 as_e5m2(as_float);
  void* scalar = &as_double;
  if (native.type == ncclFloat32) scalar = &as_float;
  if (native.type == ncclBfloat16) scalar = &as_bfloat16;
  if (native.type == ncclFloat16) scalar = &as_float16;
  if (native.type == datatype_of(ElementType::f8e4m3)) scalar = &as_e4m3;
  if (native.type == datatype_of(ElementType::f8e5m2)) scalar = &as_e5m2;
  ncclRedOp_t op = ncclNumOps;
  const ncclResult_t code = ncclRedOpCreatePreMulSum(&op, scalar, native.type, ncclScalarHostImmediate, ch.comm());
  if (code == ncclSuccess) made = unique_reduction::from_native_handle({op, ch.comm()});
  return code;
}

/// Calls `f(type, op)` with NCCL's own; returns false if it has none.
template <class F>
bool natively(CommStream& ch, const calls::Call<Cuda>& c, const ErrorContext& where, F&& f) {
  const auto native = native_reduction(c.op, ch.options.rounding, ch.capability, ch.self.size);
  if (!native) return false;
  if (!native->factor) [[likely]] {
    f(native->type, native->op);
    return true;
  }
  unique_reduction made;
  ch.check(make_pre_multiplied_sum(ch, *native, made), "ncclRedOpCreatePreMulSum", where);
  f(native->type, made.native_handle().op);
  ch.settle_before("ncclRedOpDestroy", where);
  return true;
}

inline void issue_all_reduce(CommStream& ch, const calls::Call<Cuda>& c, const ErrorContext& where) {
  if (c.send.empty()) return;
  if (natively(ch, c, where, [&](ncclDataType_t type, ncclRedOp_t op) {
        ch.check(ncclAllReduce(c.send.data(), c.receive.data(), c.send.size(), type, op, ch.comm(),
                               ch.stream.native_handle()),
                 "ncclAllReduce", where);
      }))
    return;
  const EvenByteBlocks blocks{c.send.size(), ch.self.size, c.send.element_bytes()};
  std::byte* const own = c.receive.bytes() + blocks.offset(ch.self.rank);
  reduce_own_block(ch, c, where, blocks, own);
  gather_blocks(ch, where, own, c.receive.bytes(), blocks);
}

inline void issue_reduce(CommStream& ch, const calls::Call<Cuda>& c, const ErrorContext& where) {
  if (c.send.empty()) return;
  if (natively(ch, c, where, [&](ncclDataType_t type, ncclRedOp_t op) {
        ch.check(ncclReduce(c.send.data(), c.receive.data(), c.send.size(), type, op, c.root, ch.comm(),
                            ch.stream.native_handle()),
                 "ncclReduce", where);
      }))
    return;
  const EvenByteBlocks blocks{c.send.size(), ch.self.size, c.send.element_bytes()};
  const int me = ch.self.rank;
  if (me != c.root) {
    std::byte* const own = ch.workspace(blocks.bytes(me) * static_cast<std::size_t>(ch.self.size));
    reduce_own_block(ch, c, where, blocks, own);
    ch.grouped(where, [&] { send_bytes(ch, own, blocks.bytes(me), c.root, where); });
    return;
  }
  reduce_own_block(ch, c, where, blocks, c.receive.bytes() + blocks.offset(me));
  ch.grouped(where, [&] {
    for (int rank = 0; rank < ch.self.size; ++rank)
      if (rank != me) receive_bytes(ch, c.receive.bytes() + blocks.offset(rank), blocks.bytes(rank), rank, where);
  });
}

inline void issue_reduce_scatter(CommStream& ch, const calls::Call<Cuda>& c, const ErrorContext& where) {
  if (c.send.empty()) return;
  const ByteBlocks blocks{c.counts, c.receive.size(), c.send.element_bytes()};
  if (natively(ch, c, where, [&](ncclDataType_t type, ncclRedOp_t op) {
        if (!uneven(c.counts)) {
          ch.check(ncclReduceScatter(c.send.data(), c.receive.data(), c.receive.size(), type, op, ch.comm(),
                                     ch.stream.native_handle()),
                   "ncclReduceScatter", where);
          return;
        }
        ch.grouped(where, [&] {
          for (int rank = 0; rank < ch.self.size; ++rank)
            if (const std::size_t count = calls::block_count(c.counts, 0, rank); count != 0)
              ch.check(ncclReduce(c.send.bytes() + blocks.offset(rank), c.receive.data(), count, type, op, rank,
                                  ch.comm(), ch.stream.native_handle()),
                       "ncclReduce", where);
        });
      }))
    return;
  reduce_own_block(ch, c, where, blocks, c.receive.bytes());
}

/// A reduction of one number: no rank has the result before all have entered.
inline void issue_barrier(CommStream& ch, const ErrorContext& where) {
  if (ch.self.size == 1) return;
  std::byte* const number = ch.workspace(sizeof(int));
  ch.check(ncclAllReduce(number, number, 1, ncclInt32, ncclMax, ch.comm(), ch.stream.native_handle()), "ncclAllReduce",
           where);
}

/// Passes a collective to NCCL. @pre not a message
inline void issue(CommStream& ch, const calls::Call<Cuda>& c) {
  using enum calls::CollectiveKind;
  const ErrorContext where = ch.self.context(c);
  switch (c.kind) {
    case all_reduce:
      return issue_all_reduce(ch, c, where);
    case reduce:
      return issue_reduce(ch, c, where);
    case broadcast:
      return issue_broadcast(ch, c, where);
    case all_gather:
      return issue_all_gather(ch, c, where);
    case reduce_scatter:
      return issue_reduce_scatter(ch, c, where);
    case all_to_all:
      return issue_all_to_all(ch, c, where);
    case gather:
      return issue_gather(ch, c, where);
    case scatter:
      return issue_scatter(ch, c, where);
    case barrier:
      return issue_barrier(ch, where);
    default:
      throw InvalidArgument("NCCL communicators do not make this call", where);
  }
}

}  // namespace distx::inline DISTX_ABI::nccl::detail
