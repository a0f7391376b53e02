// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <bit>
#include <memory>

#include "distx/comm/point_to_point.hpp"
#include "distx/core/detail/revoke_on_exception.hpp"
#include "distx/tensor/ops/causal_attention.hpp"
#include "distx/tensor/ops/zigzag.hpp"

namespace distx::inline DISTX_ABI {

namespace ops {

/// The result of `ring_attention`.
template <class Output, class LogSums>
struct RingAttentionResult {
  Output output;     ///< (batch, length, heads, size)
  LogSums log_sums;  ///< doubles (batch, length, heads): the logs of the sums of exponentials, for the backward pass
};

}  // namespace ops

namespace detail {

/// The placements of CausalAttention, and shards of the length.
struct RingAttentionRule : rules::CausalAttention {
  static constexpr std::string_view name = "ring_attention";
  static constexpr rules::AxisPlacement on(rules::AxisPlacement x) {
    return x.is_shard(1) ? rules::shard(1) : rules::CausalAttention::on(x);
  }
};
struct RingLogSumsRule : RingAttentionRule {
  template <class>
  using value_type = double;
  static Extents<3> extents(const Extents<5>& x) { return {x[0], x[1], x[3]}; }
};
/// The gradient of queries, keys and values from them, the result, its log sums and its gradient.
struct RingAttentionBackwardRule {
  static constexpr std::string_view name = "ring_attention_backward";
  static constexpr rules::AxisPlacement on(rules::AxisPlacement x, rules::AxisPlacement output,
                                           rules::AxisPlacement log_sums, rules::AxisPlacement gradient) {
    const auto of_result = RingAttentionRule::on(x);
    const auto fits = [&](const auto& each) { return each.kind == of_result.kind && each.dim == of_result.dim; };
    return fits(output) && fits(log_sums) && fits(gradient) ? x : rules::unsupported;
  }
  static Extents<5> extents(const Extents<5>& x, const Extents<4>& output, const Extents<3>& log_sums,
                            const Extents<4>& gradient) {
    if (RingAttentionRule::extents(x) != output || RingLogSumsRule::extents(x) != log_sums || output != gradient)
      rules::extents_mismatch("they must be those of x, its result and the result's gradient", x, output, log_sums,
                              gradient);
    return x;
  }
};

/// The axes that shard dimension 1 in layout L.
template <class L, class... Axes>
constexpr AxisSet axes_of_length(const Mesh<Axes...>*) {
  AxisSet axes = 0, axis = 1;
  ((axes |= axis_placement<placement_on<L, Axes>>(5).is_shard(1) ? axis : 0, axis <<= 1U), ...);
  return axes;
}
template <class X>
inline constexpr AxisSet ring_axis = axes_of_length<layout_of<X>>(static_cast<mesh_of<X>*>(nullptr));

/// The scores that a rank computes when it has another rank's keys: of its tokens from `first_query` to `last_query`,
/// which is not one of them, with the first `keys` tokens. Of two ranks' chunks in zigzag order, the earlier rank's
/// first one precedes both of the later rank, whose chunks are between it and the earlier rank's second one. So all
/// blocks of other ranks have half of the scores.
struct RingBlock {
  std::size_t first_query, last_query, keys;
  bool triangular;

  /// @param length  tokens of each rank
  static RingBlock of(int rank, int source, std::size_t length) {
    if (rank == source) return {0, length, length, true};
    return source < rank ? RingBlock{0, length, length / 2, false} : RingBlock{length / 2, length, length, false};
  }
  [[nodiscard]] std::size_t keys_of(std::size_t query) const { return triangular ? query + 1 : keys; }
};

/// The extents of a rank's part of one batch item; a row has the numbers of all heads of a token.
struct RingShape {
  std::size_t length, heads, size;

  [[nodiscard]] std::size_t row() const { return heads * size; }
};
/// The offsets of one head of a batch item: in the result; in keys and values; in queries, keys and values; and in
/// numbers for each token and head.
struct RingHeadAt {
  std::size_t result, kv, x, number;
};

DISTX_KERNELS_BEGIN
/// Adds a block to one head's results: `sums` of values with weights relative to exp(`largest`), and their `totals`.
struct RingHead {
  template <std::size_t Bytes, class T>
  static void run(const T* q, const T* kv, RingBlock block, RingShape shape, double* weights, double* sums,
                  double* largest, double* totals) {
    const std::size_t size = shape.size, row = shape.row();
    for (std::size_t t = block.first_query; t < block.last_query; ++t) {
      const std::size_t n = block.keys_of(t), number = t * shape.heads;
      const double before = largest[number];
      const double most = std::max(before, scores<Bytes>(q + t * 3 * row, kv, 2 * row, n, size, weights));
      const OneLane keep = exponential<T>(OneLane(before - most));
      largest[number] = most;
      const OneLane added(add_up<Bytes>(n, [=]<class V>(std::size_t s, V) {
        const V each = exponential<T>(wide<V>(weights + s) - V(most));
        narrow_to(weights + s, each);
        return each;
      }));
      totals[number] = (keep * OneLane(totals[number]) + added).value();
      double* const sum = sums + t * row;
      for (std::size_t i = 0; i < size; ++i) sum[i] *= keep.value();
      for (std::size_t s = 0; s < n; ++s) add_multiple<Bytes>(sum, weights[s], kv + (2 * s + 1) * row, size);
    }
  }
};
/// Adds a block's gradients: of queries to `dq`, of keys and values to `dkv`.
struct RingHeadBackward {
  template <std::size_t Bytes, class T>
  static void run(const T* q, const T* kv, const T* output, const T* gradient, const double* log_sums, RingBlock block,
                  RingShape shape, double* weights, double* dq, double* dkv) {
    const std::size_t size = shape.size, row = shape.row();
    const double root = 1 / std::sqrt(static_cast<double>(size));
    for (std::size_t t = block.first_query; t < block.last_query; ++t) {
      const std::size_t n = block.keys_of(t);
      const T *const query = q + t * 3 * row, *const g = gradient + t * row;
      const double log_sum = log_sums[t * shape.heads], mean = dot<Bytes>(g, output + t * row, size);
      scores<Bytes>(query, kv, 2 * row, n, size, weights);
      for_each_wide<Bytes>(n, [=]<class V>(std::size_t s, V) {
        narrow_to(weights + s, exponential<T>(wide<V>(weights + s) - V(log_sum)));
      });
      for (std::size_t s = 0; s < n; ++s) {
        const T* const key = kv + s * 2 * row;
        double* const of_key = dkv + s * 2 * row;
        const double score = root * weights[s] * (dot<Bytes>(g, key + row, size) - mean);
        add_multiple<Bytes>(dq + t * row, score, key, size);
        add_multiple<Bytes>(of_key, score, query, size);
        add_multiple<Bytes>(of_key + row, weights[s], g, size);
      }
    }
  }
};
DISTX_KERNELS_END

/// A block of memory of each rank, which moves to the next rank along a ring while it may be read.
///
/// The memory outlives a call that an error of another rank leaves unfinished.
template <class T>
class TravelingBlock {
 public:
  /// @param comm  the ranks of the ring; null if there is one rank, which then does not call `start`
  TravelingBlock(AnyCommunicator<>* comm, std::size_t elements, int tag, const std::source_location& location)
      : comm_(comm),
        memory_(std::make_shared<std::array<Buffer<T>, 2>>(
            std::array{Buffer<T>(elements, uninitialized), Buffer<T>(comm ? elements : 0, uninitialized)})),
        tag_(tag),
        location_(location) {}

  /// The block that is here.
  [[nodiscard]] T* data() { return (*memory_)[here_].data(); }
  /// Starts to send it to the next rank, and to receive that of the rank before.
  void start() {
    const int n = comm_->size(), rank = comm_->rank();
    const auto out = (*memory_)[here_].span(), in = (*memory_)[1 - here_].span();
    pending_ = start_send_receive(*comm_, out, (rank + 1) % n, in, (rank + n - 1) % n, tag_, {}, location_);
    pending_.keep(memory_);
  }
  /// Lets both progress, as messages of MPI do within its calls.
  void progress() { static_cast<void>(pending_.test()); }
  /// Blocks until both are done; the received block is here then.
  void finish() {
    pending_.wait();
    here_ = 1 - here_;
  }

 private:
  AnyCommunicator<>* comm_;
  std::shared_ptr<std::array<Buffer<T>, 2>> memory_;
  Pending<> pending_{};
  std::size_t here_ = 0;
  int tag_;
  std::source_location location_;
};

/// The exchange of keys and values along the ring, for one call of `ring_attention` or its gradient.
template <class T>
class AttentionRing {
 public:
  /// @throws InvalidArgument if the length is not divisible
  template <class X>
  AttentionRing(const Caller& caller, const X& x)
      : x_(local_view(x)), shape_{x_.extent(1), x_.extent(3), x_.extent(4)}, location_(caller.location) {
    static_assert(std::popcount(ring_axis<X>) <= 1,
                  "distx: ring_attention: several axes shard the length; redistribute it over one of them");
    if constexpr (ring_axis<X> != 0) {
      auto& comm = in_space<Host>(state_of(x.mesh())).over(ring_axis<X>);
      size_ = comm.size(), rank_ = comm.rank();
      static_cast<void>(ops::Zigzag(x.extent(1), size_, context_of(x.mesh(), caller.operation, caller.location)));
      if (size_ > 1) comm_ = &comm;
    }
  }

  [[nodiscard]] const RingShape& shape() const { return shape_; }
  /// Returns memory for keys and values, or their gradients: for each token a row of each.
  [[nodiscard]] TravelingBlock<T> block(int tag) const { return {comm_, 2 * tokens() * shape_.row(), tag, location_}; }

  /// For the keys and values of each rank, this rank's first, calls of_head(step, block, keys and values, offsets) for
  /// runs of queries of each head of each batch item, and then at_end(step), while the next ones arrive.
  template <class F, class G>
  void for_each_block(F&& of_head, G&& at_end) const {
    auto kv = block(0);
    const std::size_t row = shape_.row();
    for (std::size_t t = 0; t < tokens(); ++t)
      std::copy_n(x_.data() + (3 * t + 1) * row, 2 * row, kv.data() + 2 * t * row);
    for (int step = 0; step < size_; ++step) {
      const bool more = step + 1 < size_;
      const auto scores = RingBlock::of(rank_, (rank_ + size_ - step) % size_, shape_.length);
      if (more) kv.start();
      for (std::size_t token = 0; token < tokens(); token += shape_.length)
        for (std::size_t head = 0; head < shape_.heads; ++head) {
          const std::size_t first = token * row, column = head * shape_.size;
          const RingHeadAt at{first + column, 2 * first + column, 3 * first + column, token * shape_.heads + head};
          RingBlock run = scores;
          for (run.last_query = run.first_query; run.last_query < scores.last_query; run.first_query = run.last_query) {
            run.last_query = std::min(run.last_query + queries_at_once, scores.last_query);
            of_head(step, run, static_cast<const T*>(kv.data()), at);
            kv.progress();
          }
        }
      at_end(step);
      if (more) kv.finish();
    }
  }

 private:
  static constexpr std::size_t queries_at_once = 64;  // between two looks at messages

  [[nodiscard]] std::size_t tokens() const { return x_.extent(0) * shape_.length; }

  TensorRef<const T, 5> x_;
  RingShape shape_;
  std::source_location location_;
  AnyCommunicator<>* comm_ = nullptr;
  int size_ = 1, rank_ = 0;
};

template <class T>
void attend_around_ring(const AttentionRing<T>& ring, const T* x, Span<T> out, Span<double> log_sums) {
  std::vector<double> weights(ring.shape().length), sums(out.size()), totals(log_sums.size());
  std::vector<double> largest(totals.size(), -std::numeric_limits<double>::infinity());
  ring.for_each_block(
      [&](int, const RingBlock& block, const T* kv, const RingHeadAt& at) {
        run_on_lanes<RingHead>(lane_bytes(), x + at.x, kv + at.kv, block, ring.shape(), weights.data(),
                               sums.data() + at.result, largest.data() + at.number, totals.data() + at.number);
      },
      [](int) {});
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<T>(sums[i] / totals[i / ring.shape().size]);
  for (std::size_t i = 0; i < totals.size(); ++i) log_sums[i] = largest[i] + std::log(totals[i]);
}

/// The gradient of a rank's keys and values starts at the next rank, which is the first other one that has a block for
/// them, and arrives from the last one; this rank's own terms stay here.
template <class T>
void attend_around_ring_backward(const AttentionRing<T>& ring, const T* x, Span<const T> output, const double* log_sums,
                                 const T* gradient, T* out) {
  std::vector<double> weights(ring.shape().length), dq(output.size()), own(2 * dq.size()), others(own.size());
  auto travels = ring.block(1);
  int last = 0;
  const auto add_arrived = [&](std::vector<double>& sums) {
    travels.finish();
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(travels.data()[i]);
  };
  ring.for_each_block(
      [&](int step, const RingBlock& block, const T* kv, const RingHeadAt& at) {
        run_on_lanes<RingHeadBackward>(lane_bytes(), x + at.x, kv + at.kv, output.data() + at.result,
                                       gradient + at.result, log_sums + at.number, block, ring.shape(), weights.data(),
                                       dq.data() + at.result, (step == 0 ? own : others).data() + at.kv);
        travels.progress();
      },
      [&](int step) {
        if (step == 0) return;
        if (step > 1) add_arrived(others);
        std::ranges::transform(others, travels.data(), [](double each) { return static_cast<T>(each); });
        std::ranges::fill(others, 0);
        travels.start();
        last = step;
      });
  if (last > 0) add_arrived(own);
  const std::size_t row = ring.shape().row();
  for (std::size_t i = 0; i < dq.size(); ++i) out[i + i / row * 2 * row] = static_cast<T>(dq[i]);
  for (std::size_t i = 0; i < own.size(); ++i) out[i + (i / (2 * row) + 1) * row] = static_cast<T>(own[i]);
}

/// Calls f; if it throws, ranks that wait for this one are notified.
template <class X, class F>
void guard_ring(const X& x, F&& f) {
  revoke_on_exception(std::forward<F>(f),
                      [&](const auto& reason) { in_space<Host>(state_of(x.mesh())).revoke(reason.published()); });
}

template <class Rule, class... Xs>
constexpr bool takes_ring_attention() {
  static_assert((std::same_as<typename std::remove_cvref_t<Xs>::space, Host> && ...),
                "distx: ring_attention: ring attention supports host memory only; use causal_attention");
  static_assert(
      Applicable<Rule, Xs...>,
      "distx: ring_attention: on each axis x is replicated, or sharded in its batch, its length or its heads, "
      "and the result and its gradient alike; redistribute the operand");
  return Applicable<Rule, Xs...>;
}

}  // namespace detail

namespace ops {

/// Returns `causal_attention` of sequences that are sharded in their length, in the order of a Zigzag: queries stay,
/// blocks of keys and values move around the ring of ranks (Liu et al., 2023, arXiv 2310.01889). Every rank computes
/// equally many scores with each block.
///
/// `x` holds queries, keys and values, (batch, length, 3, heads, size). One axis shards the length; on the others `x`
/// is replicated or sharded in the batch (dimension 0) or the heads (3). Collective over that axis: of n elements of a
/// rank's keys, each rank sends 2n to the next one for each other rank, while it computes with the block before.
/// Softmax is accumulated in double, block by block. For float and double, in host memory. Messages have tags 0 and 1:
/// of the program, none with these may be in flight among these ranks.
///
///     auto [output, log_sums] = distx::ops::ring_attention(projected);
///     auto gradient = distx::ops::ring_attention_backward(projected, output, log_sums, gradient_of_output);
/// @throws InvalidArgument on every rank if the length is not a multiple of twice the number of ranks
/// @throws MismatchError, TimeoutError, RevokedError, RankFailure as `start_send_receive` does; an error during the
/// exchange
///   on one rank revokes the mesh's communicators
template <DistributedTensor X>
[[nodiscard]] auto ring_attention(const X& x, std::source_location location = std::source_location::current()) {
  using Rule = detail::RingAttentionRule;
  if constexpr (detail::takes_ring_attention<Rule, X>()) {
    const detail::Caller caller{"ring_attention", location};
    auto output = detail::result_for<Rule>(caller, x);
    auto log_sums = detail::result_for<detail::RingLogSumsRule>(caller, x);
    const detail::AttentionRing<detail::value_of<X>> ring(caller, x);
    detail::guard_ring(x,
                       [&] { detail::attend_around_ring(ring, x.local().data(), output.local(), log_sums.local()); });
    return RingAttentionResult<decltype(output), decltype(log_sums)>{std::move(output), std::move(log_sums)};
  } else {
    return detail::never<RingAttentionResult<detail::PlaceholderResult<Rule, X>,
                                             detail::PlaceholderResult<detail::RingLogSumsRule, X>>>();
  }
}

/// Returns the gradient of queries, keys and values (batch, length, 3, heads, size) from them, both results of
/// `ring_attention`, and the gradient of `output`. Collective as `ring_attention`: keys and values move around the ring
/// again, and so do their gradients, of which each rank sends 2n elements for each other rank.
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
/// @throws MismatchError, TimeoutError, RevokedError, RankFailure as `ring_attention`
template <DistributedTensor X, DistributedTensor Out, DistributedTensor LogSums, DistributedTensor G>
[[nodiscard]] auto ring_attention_backward(const X& x, const Out& output, const LogSums& log_sums, const G& gradient,
                                           std::source_location location = std::source_location::current()) {
  using Rule = detail::RingAttentionBackwardRule;
  using T = detail::value_of<X>;
  if constexpr (detail::takes_ring_attention<Rule, X, Out, LogSums, G>()) {
    const detail::Caller caller{"ring_attention_backward", location};
    auto result = detail::result_for<Rule>(caller, x, output, log_sums, gradient);
    const detail::AttentionRing<T> ring(caller, x);
    detail::guard_ring(x, [&] {
      detail::attend_around_ring_backward<T>(ring, x.local().data(), output.local(), log_sums.local().data(),
                                             gradient.local().data(), result.local().data());
    });
    return result;
  } else {
    return detail::placeholder<Rule, X, Out, LogSums, G>();
  }
}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
