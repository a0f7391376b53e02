// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <source_location>
#include <span>

#include "distx/comm/ops.hpp"
#include "distx/core/detail/fnv1a.hpp"
#include "distx/memory/lane_width.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// Satisfied if an op has a last step.
template <class Op, class Accumulator>
concept HasFinish = requires(const Op& op, Accumulator a) {
  { op.finish(a, 1) } -> std::convertible_to<Accumulator>;
};

/// Reduces `n` elements from `begin` on. A known number lets every compiler vectorize.
template <class T, std::size_t n, class Op>
void reduce_block(const Op& op, T* const* targets, std::size_t target_count, const T* const* sources,
                  std::size_t source_count, std::size_t begin, int ranks) {
  using Accumulator = accumulator_t<T>;
  alignas(64) Accumulator sums[n];
  const T* const first = sources[0] + begin;
  if (source_count == 1) {
    for (std::size_t i = 0; i < n; ++i) sums[i] = static_cast<Accumulator>(first[i]);
  } else {
    const T* const second = sources[1] + begin;
    for (std::size_t i = 0; i < n; ++i)
      sums[i] = static_cast<Accumulator>(op(static_cast<Accumulator>(first[i]), static_cast<Accumulator>(second[i])));
  }
  for (std::size_t source = 2; source < source_count; ++source) {
    const T* const from = sources[source] + begin;
    for (std::size_t i = 0; i < n; ++i)
      sums[i] = static_cast<Accumulator>(op(sums[i], static_cast<Accumulator>(from[i])));
  }
  if constexpr (HasFinish<Op, Accumulator>) {
    if (ranks > 0)
      for (std::size_t i = 0; i < n; ++i) sums[i] = static_cast<Accumulator>(op.finish(sums[i], ranks));
  }
  for (std::size_t target = 0; target < target_count; ++target) {
    T* const to = targets[target] + begin;
    for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<T>(sums[i]);
  }
}

/// Reduces less than a block of elements, one by one. No sum passes through memory: processors store in order, so a
/// load that has to wait for a store would wait for all cache lines that earlier stores need from other processors.
template <class T, class Op>
void reduce_rest(const Op& op, T* const* targets, std::size_t target_count, const T* const* sources,
                 std::size_t source_count, std::size_t begin, std::size_t end, int ranks) {
  using Accumulator = accumulator_t<T>;
  for (std::size_t i = begin; i < end; ++i) {
    auto sum = static_cast<Accumulator>(sources[0][i]);
    for (std::size_t source = 1; source < source_count; ++source)
      sum = static_cast<Accumulator>(op(sum, static_cast<Accumulator>(sources[source][i])));
    if constexpr (HasFinish<Op, Accumulator>)
      if (ranks > 0) sum = static_cast<Accumulator>(op.finish(sum, ranks));
    for (std::size_t target = 0; target < target_count; ++target) targets[target][i] = static_cast<T>(sum);
  }
}

/// Reduces blocks of that many bytes of accumulators while there are any; returns the first element that is left.
template <class T, std::size_t bytes, class Op>
std::size_t reduce_blocks(const Op& op, T* const* targets, std::size_t target_count, const T* const* sources,
                          std::size_t source_count, std::size_t begin, std::size_t end, int ranks) {
  constexpr std::size_t n = std::max<std::size_t>(bytes / sizeof(accumulator_t<T>), 1);
  for (; begin + n <= end; begin += n)
    reduce_block<T, n>(op, targets, target_count, sources, source_count, begin, ranks);
  return begin;
}

/// Reduces all elements: in large blocks, then in blocks of a cache line and of a quarter of it, of which a small
/// operand consists, each vectorized for the width of the processor that this is compiled for; then one by one.
template <class T, class Op>
struct ReduceBlocks {
  template <std::size_t>
  static void run(const Op& op, T* const* targets, std::size_t target_count, const T* const* sources,
                  std::size_t source_count, std::size_t count, int ranks) {
    std::size_t begin = 0;
    begin = reduce_blocks<T, 4096>(op, targets, target_count, sources, source_count, begin, count, ranks);
    begin = reduce_blocks<T, 64>(op, targets, target_count, sources, source_count, begin, count, ranks);
    begin = reduce_blocks<T, 16>(op, targets, target_count, sources, source_count, begin, count, ranks);
    reduce_rest(op, targets, target_count, sources, source_count, begin, count, ranks);
  }
};

/// Returns the width of the registers for operands of that size. Where the caches of a core do not hold them, 64 bytes
/// were slower than 32.
[[nodiscard]] inline std::size_t reduction_lane_bytes(std::size_t operand_bytes) noexcept {
  return operand_bytes <= (std::size_t{1} << 20) ? lane_bytes() : std::min<std::size_t>(lane_bytes(), 32);
}

/// Writes the reduction of element i of all sources, in their order, to element i of every target, for i in [0, count).
///
/// A target may be one of the sources. Sums of reduced-precision types are rounded once, at the end. If `ranks` is 0,
/// `finish` is not called, for a caller that reduces in several steps. Custom ops are compiled for every processor
/// only, because a compiler could fuse their products and sums where the processor can.
template <class T, class Op>
void reduce_elements(const Op& op, T* const* targets, std::size_t target_count, const T* const* sources,
                     std::size_t source_count, std::size_t count, int ranks) {
  using Blocks = ReduceBlocks<T, Op>;
  if constexpr (kind_of<Op>() == OpKind::user)
    Blocks::template run<common_lane_bytes>(op, targets, target_count, sources, source_count, count, ranks);
  else
    run_on_lanes<Blocks>(reduction_lane_bytes(count * sizeof(T)), op, targets, target_count, sources, source_count,
                         count, ranks);
}

/// Returns a hash of the type's name, the same in every process of one program.
template <class Type>
consteval std::uint64_t type_fingerprint() {
  return fnv1a(std::string_view(std::source_location::current().function_name()));
}

/// Satisfied if the compiler can zero the padding of a `T`: g++ can, clang++ 16 cannot.
template <class T>
concept ClearsPadding = std::is_trivially_copyable_v<T> && requires(T* value) { __builtin_clear_padding(value); };

/// Whether equal states of an op have equal bytes once their padding is cleared, where that is possible.
template <class Op>
inline constexpr bool state_is_compared =
    ClearsPadding<Op> || std::has_unique_object_representations_v<Op> || sizeof(Op) == alignof(Op);

}  // namespace detail

namespace calls {

/// A reduction op and its element type, both known only at run time; owns a copy of the op.
class AnyOp {
 public:
  AnyOp() = default;

  template <class T, ReductionOp<T> Op>
  [[nodiscard]] static AnyOp make(const Op& op) noexcept {
    AnyOp any;
    any.kind_ = detail::kind_of<Op>();
    any.commutative_ = detail::is_commutative<Op>();
    any.finishes_ = detail::HasFinish<Op, accumulator_t<T>>;
    any.type_ = element_type<T>;
    any.reduce_ = &reduce_as<T, Op>;
    any.widen_ = &widen_as<T, Op>;
    any.fingerprint_ = any.type_fingerprint_ = detail::type_fingerprint<Op>();
    if constexpr (!std::is_empty_v<Op>) {
      std::memcpy(any.state_, std::addressof(op), sizeof(Op));
      // Padding bytes differ between ranks, so they are cleared, or the state is not compared.
      if constexpr (detail::ClearsPadding<Op>) __builtin_clear_padding(std::launder(reinterpret_cast<Op*>(any.state_)));
      if constexpr (detail::state_is_compared<Op>)
        any.fingerprint_ ^= detail::fnv1a(std::span<const std::byte>(any.state_));
    }
    return any;
  }

  [[nodiscard]] OpKind kind() const noexcept { return kind_; }
  [[nodiscard]] bool commutative() const noexcept { return commutative_; }
  /// Returns whether the op has a `finish`, which `reduce` calls last.
  [[nodiscard]] bool finishes() const noexcept { return finishes_; }
  /// Returns the element type that `reduce` works on.
  [[nodiscard]] ElementType type() const noexcept { return type_; }
  /// Returns a hash of the op's type and state, the same on all ranks; without the state if it is not compared (see
  /// ReductionOp).
  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return fingerprint_; }
  /// Returns the same op on accumulators: float for reduced-precision types, otherwise the element type.
  [[nodiscard]] AnyOp widened() const noexcept { return widen_(*this); }

  /// Returns the same op without `finish`, for all but the last step of a reduction.
  [[nodiscard]] AnyOp unfinished() const noexcept {
    AnyOp op = *this;
    if (op.kind_ == OpKind::average) op.kind_ = OpKind::sum;
    op.finishes_ = false;
    return op;
  }

  /// Returns the op if its type is `Op`, for a backend that supports more ops than OpKind names.
  template <class Op>
  [[nodiscard]] std::optional<Op> target() const noexcept {
    if (reduce_ == nullptr || type_fingerprint_ != detail::type_fingerprint<Op>()) return std::nullopt;
    return stored<void, Op>(*this);
  }

  /// Calls `detail::reduce_elements`; throws what a custom op throws.
  void reduce(void* const* targets, std::size_t target_count, const void* const* sources, std::size_t source_count,
              std::size_t count, int ranks) const {
    reduce_(*this, targets, target_count, sources, source_count, count, finishes_ ? ranks : 0);
  }

 private:
  template <class T, class Op>
  static Op stored(const AnyOp& any) noexcept {
    if constexpr (std::is_empty_v<Op> && std::is_default_constructible_v<Op>) {
      return Op{};
    } else {
      alignas(Op) std::byte copy[sizeof(Op)];
      std::memcpy(copy, any.state_, sizeof(Op));
      return *std::launder(reinterpret_cast<const Op*>(copy));
    }
  }
  template <class T, class Op>
  static void reduce_as(const AnyOp& any, void* const* targets, std::size_t target_count, const void* const* sources,
                        std::size_t source_count, std::size_t count, int ranks) {
    detail::reduce_elements<T, Op>(stored<T, Op>(any), reinterpret_cast<T* const*>(targets), target_count,
                                   reinterpret_cast<const T* const*>(sources), source_count, count, ranks);
  }
  template <class T, class Op>
  static AnyOp widen_as(const AnyOp& any) noexcept {
    return make<accumulator_t<T>, Op>(stored<T, Op>(any));
  }

  void (*reduce_)(const AnyOp&, void* const*, std::size_t, const void* const*, std::size_t, std::size_t, int) = nullptr;
  AnyOp (*widen_)(const AnyOp&) noexcept = nullptr;
  std::uint64_t type_fingerprint_ = 0;
  std::uint64_t fingerprint_ = 0;
  alignas(8) std::byte state_[16]{};
  OpKind kind_ = OpKind::sum;
  bool commutative_ = true;
  bool finishes_ = false;
  ElementType type_ = ElementType::bytes;
};

}  // namespace calls

}  // namespace distx::inline DISTX_ABI
