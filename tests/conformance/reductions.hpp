// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <limits>

#include "conformance/elements.hpp"
#include "conformance/findings.hpp"

// all_reduce, reduce and reduce_scatter: every op, element type, size and overload.
namespace conformance {

template <class T>
std::string reduction_name(const char* operation, const Reference& reference, std::size_t size) {
  return std::string(operation) + " " + reference.name + " of " + std::string(name_of(distx::element_type<T>)) +
         ", size " + std::to_string(size);
}

/// Returns every root for small sizes, otherwise the first and the last.
inline std::vector<int> roots(int ranks, std::size_t size) {
  std::vector<int> all;
  for (int root = 0; root < ranks; ++root)
    if (size < largest || root == 0 || root == ranks - 1) all.push_back(root);
  return all;
}

/// Tests one op with one element type and size.
template <class T, class C, class Op>
void check_reductions(C& comm, Findings& findings, Op op, const Reference& reference, std::size_t size,
                      const std::vector<T>& mine, const std::vector<T>& result) {
  const auto send = repeated(mine, size);
  const auto expected = repeated(result, size);
  const auto kept = pattern<T>(size, 99);
  const auto what = [&](const char* operation) { return reduction_name<T>(operation, reference, size); };
  const auto ranks = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());

  auto receive = kept;
  auto buffer = send;
  distx::all_reduce(comm, buffer, receive, op);
  findings.same(receive, expected, what("all_reduce"));
  findings.same(buffer, send, what("operands of all_reduce"));
  distx::all_reduce(comm, buffer, op);
  findings.same(buffer, expected, what("all_reduce in place"));

  for (const int root : roots(comm.size(), size)) {
    const bool here = comm.rank() == root;
    receive = kept;
    buffer = send;
    distx::reduce(comm, buffer, receive, op, root);
    findings.same(receive, here ? expected : kept, what("reduce"));
    findings.same(buffer, send, what("operands of reduce"));
    distx::reduce(comm, buffer, op, root);
    findings.same(buffer, here ? expected : send, what("reduce in place"));
    // Ranks other than the root need no receive buffer.
    receive.resize(here ? size : 0);
    distx::reduce(comm, send, receive, op, root);
    if (here) findings.same(receive, expected, what("reduce to the root's buffer alone"));
  }

  const std::size_t block = size == largest ? size / ranks : size;
  buffer = repeated(mine, block * ranks);
  const auto expected_block = repeated(result, block, block * rank);
  receive.assign(block, T{});
  distx::reduce_scatter(comm, buffer, receive, op);
  findings.same(receive, expected_block, what("reduce_scatter"));
  findings.same(buffer, repeated(mine, block * ranks), what("operands of reduce_scatter"));
  const auto own = distx::Span<T>(buffer).subspan(block * rank, block);
  distx::reduce_scatter(comm, buffer, own, op);
  findings.same(std::vector<T>(own.begin(), own.end()), expected_block, what("reduce_scatter in place"));

  // Three calls in flight, waited for in another order.
  auto first = send;
  std::vector<T> second(size), third(block);
  const auto blocks = repeated(mine, block * ranks);
  const int root = comm.size() - 1;
  auto pending_first = distx::start_all_reduce(comm, first, op);
  auto pending_second = distx::start_reduce(comm, send, second, op, root);
  auto pending_third = distx::start_reduce_scatter(comm, blocks, third, op);
  pending_third.wait();
  findings.same(third, expected_block, what("started reduce_scatter"));
  pending_first.wait();
  findings.same(first, expected, what("started all_reduce"));
  pending_second.wait();
  if (comm.rank() == root) findings.same(second, expected, what("started reduce"));
}

/// 8-bit floats, whose results are rounded; ops treat all reduced-precision types alike.
struct Float8Reductions {
  template <class T, class C, class Op>
  static void check(C& comm, Findings& findings, Op op, const Reference& reference) {
    const auto mine = operands<T>(reference, comm.rank());
    const auto result = results<T>(reference, comm.size());
    for (const std::size_t size : {std::size_t{1}, std::size_t{1024}})
      check_reductions(comm, findings, op, reference, size, mine, result);
  }
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    check<distx::float8_e4m3>(comm, findings, distx::sum, reference_sum);
    check<distx::float8_e4m3>(comm, findings, distx::max, reference_max);
    check<distx::float8_e5m2>(comm, findings, distx::average, reference_average);
  }
};

/// Tests blocks of different sizes, some of them empty.
template <class T, class C, class Op>
void check_uneven_reduce_scatter(C& comm, Findings& findings, Op op, const Reference& reference) {
  const auto mine = operands<T>(reference, comm.rank());
  const auto result = results<T>(reference, comm.size());
  const auto counts = uneven_counts(comm.size());
  const std::size_t begin = distx::calls::block_offset(counts, 0, comm.rank());
  const std::size_t count = counts[static_cast<std::size_t>(comm.rank())];
  const std::size_t total = distx::calls::total_count(counts, 0, comm.size());
  const auto expected = repeated(result, count, begin);
  auto send = repeated(mine, total);
  std::vector<T> receive(count);
  distx::reduce_scatter(comm, send, receive, op, counts);
  findings.same(receive, expected, reduction_name<T>("uneven reduce_scatter", reference, total));
  receive.assign(count, T{});
  auto pending = distx::start_reduce_scatter(comm, send, receive, op, counts);
  pending.wait();
  findings.same(receive, expected, reduction_name<T>("started uneven reduce_scatter", reference, total));
  const auto own = distx::Span<T>(send).subspan(begin, count);
  distx::reduce_scatter(comm, send, own, op, counts);
  findings.same(std::vector<T>(own.begin(), own.end()), expected,
                reduction_name<T>("uneven reduce_scatter in place", reference, total));
}

struct EveryReduction {
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    for_each_element([&]<class T>() {
      for_each_op<T>([&](auto op, const Reference& reference) {
        const auto mine = operands<T>(reference, comm.rank());
        const auto result = results<T>(reference, comm.size());
        const bool large = &reference == &reference_sum || std::same_as<T, float>;
        for (const std::size_t size : sizes)
          if (size < largest || large) check_reductions(comm, findings, op, reference, size, mine, result);
      });
    });
  }
};

struct UnevenReductions {
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    check_uneven_reduce_scatter<float>(comm, findings, distx::sum, reference_sum);
    check_uneven_reduce_scatter<float>(comm, findings, distx::average, reference_average);
    check_uneven_reduce_scatter<float>(comm, findings, Compose{}, reference_compose);
    check_uneven_reduce_scatter<std::int32_t>(comm, findings, distx::sum, reference_sum);
    check_uneven_reduce_scatter<distx::bfloat16>(comm, findings, distx::sum, reference_sum);
    check_uneven_reduce_scatter<distx::float16>(comm, findings, Compose{}, reference_compose);
  }
};

/// bfloat16 has 8 bits of mantissa, float16 has 11, the 8-bit floats have 4 and 3: a sum that is rounded at each step
/// would keep the value of its first operand.
struct RoundedOnce {
  template <class T, class C>
  static void check(C& comm, Findings& findings, float large) {
    const auto ranks = static_cast<std::size_t>(comm.size());
    const T operand(comm.rank() == 0 ? large : 1.0f);
    const T total(large + static_cast<float>(comm.size() - 1));
    const T mean((large + static_cast<float>(comm.size() - 1)) / static_cast<float>(comm.size()));
    if (comm.size() > 2) findings.expect(total > T(large), "the case does not tell the two roundings apart");
    for (const std::size_t size : {std::size_t{1}, std::size_t{2000}}) {
      const std::vector<T> send(size, operand);
      std::vector<T> receive(size);
      distx::all_reduce(comm, send, receive, distx::sum);
      findings.same(receive, std::vector<T>(size, total), "all_reduce, rounded once");
      distx::all_reduce(comm, send, receive, distx::average);
      findings.same(receive, std::vector<T>(size, mean), "average, rounded once");
      auto pending = distx::start_all_reduce(comm, send, receive, distx::sum);
      pending.wait();
      findings.same(receive, std::vector<T>(size, total), "started all_reduce, rounded once");
      receive.assign(size, T{});
      distx::reduce(comm, send, receive, distx::sum, 0);
      if (comm.rank() == 0) findings.same(receive, std::vector<T>(size, total), "reduce, rounded once");
      const std::vector<T> blocks(size * ranks, operand);
      distx::reduce_scatter(comm, blocks, receive, distx::sum);
      findings.same(receive, std::vector<T>(size, total), "reduce_scatter, rounded once");
    }
  }
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    check<distx::bfloat16>(comm, findings, 256.0f);
    check<distx::float16>(comm, findings, 2048.0f);
    check<distx::float8_e4m3>(comm, findings, 16.0f);
    check<distx::float8_e5m2>(comm, findings, 8.0f);
  }
};

/// A custom op with 16 bytes of state and a `finish`.
struct ScaledSum {
  double scale;
  double offset;
  template <class T>
  constexpr T operator()(T a, T b) const {
    return static_cast<T>(a + b);
  }
  template <class T>
  constexpr T finish(T total, int ranks) const {
    return static_cast<T>(static_cast<double>(total) * scale + offset + ranks);
  }
};

struct UserOps {
  template <class T, class C>
  static void check(C& comm, Findings& findings) {
    const double total = comm.size() * (comm.size() + 1) / 2.0;
    std::vector<T> values(33, element<T>(comm.rank() + 1));
    distx::all_reduce(comm, values, ScaledSum{2, 3});
    findings.same(values, std::vector<T>(33, element<T>(2 * total + 3 + comm.size())), "an op with state");

    // The first operand belongs to rank 0, the last one to the last rank.
    std::vector<T> first(33, element<T>(comm.rank() + 1));
    distx::all_reduce(comm, first, [](auto a, auto) { return a; });
    findings.same(first, std::vector<T>(33, element<T>(1)), "an op that keeps its first operand");
    std::vector<T> last(33, element<T>(comm.rank() + 1));
    distx::all_reduce(comm, last, [](auto, auto b) { return b; });
    findings.same(last, std::vector<T>(33, element<T>(comm.size())), "an op that keeps its second operand");
  }
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    check<std::int32_t>(comm, findings);
    check<distx::bfloat16>(comm, findings);
    check<float>(comm, findings);
    check<double>(comm, findings);
  }
};

/// An integer sum that overflows wraps around.
struct Wrapping {
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    std::vector<std::int8_t> values(3, 100);
    distx::all_reduce(comm, values, distx::sum);
    const auto wrapped = static_cast<std::int8_t>(static_cast<std::uint8_t>(100 * comm.size()));
    findings.same(values, std::vector<std::int8_t>(3, wrapped), "a sum beyond int8");
    std::vector<std::int32_t> wide(3, 2000000000);
    distx::all_reduce(comm, wide, distx::sum);
    const auto wide_wrapped = static_cast<std::int32_t>(2000000000u * static_cast<unsigned>(comm.size()));
    findings.same(wide, std::vector<std::int32_t>(3, wide_wrapped), "a sum beyond int32");
  }
};

/// The bitwise ops, on integers of both signs.
struct BitwiseOps {
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    check(comm, findings, distx::bit_and, "bit_and");
    check(comm, findings, distx::bit_or, "bit_or");
    check(comm, findings, distx::bit_xor, "bit_xor");
  }

 private:
  template <class C, class Op>
  static void check(C& comm, Findings& findings, Op op, const char* what) {
    const auto of_rank = [](int rank) { return std::vector<std::int16_t>(5, static_cast<std::int16_t>(~rank << 3)); };
    auto values = of_rank(comm.rank()), expected = of_rank(0);
    for (int rank = 1; rank < comm.size(); ++rank)
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = op(expected[i], of_rank(rank)[i]);
    distx::all_reduce(comm, values, op);
    findings.same(values, expected, what);
  }
};

/// max and min of NaNs and of zeros with a sign, whichever rank holds them. A NaN becomes the quiet one, so the bits
/// are the same on every rank and every backend.
struct Extremes {
  template <class T>
  using Number = distx::accumulator_t<T>;

  /// Returns the operands of a rank of which rank `holder` differs: numbers, two kinds of zeros, two kinds of NaNs.
  template <class T>
  static std::vector<T> operands(int rank, int holder, std::size_t size) {
    const Number<T> one = 1, zero = 0, nan = std::numeric_limits<Number<T>>::quiet_NaN();
    const bool holds = rank == holder;
    const T kinds[] = {T(holds ? -one : one), T(holds ? zero : -zero), T(holds ? -zero : zero), T(holds ? -nan : one),
                       T(holds ? nan : -nan)};
    std::vector<T> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = kinds[i % 5];
    return values;
  }
  template <class T>
  static std::vector<T> results(bool is_max, std::size_t size, std::size_t first = 0) {
    const Number<T> one = 1, zero = 0, nan = std::numeric_limits<Number<T>>::quiet_NaN();
    const T kinds[] = {T(is_max ? one : -one), T(is_max ? zero : -zero), T(is_max ? zero : -zero), T(nan), T(nan)};
    std::vector<T> values(size);
    for (std::size_t i = 0; i < size; ++i) values[i] = kinds[(first + i) % 5];
    return values;
  }

  template <class T, class C, class Op>
  static void check(C& comm, Findings& findings, Op op, std::size_t size, int holder) {
    const bool is_max = op.kind == distx::OpKind::max;
    const auto what = [&](const char* operation) {
      return reduction_name<T>(operation, is_max ? reference_max : reference_min, size) + ", with NaNs of rank " +
             std::to_string(holder);
    };
    const auto send = operands<T>(comm.rank(), holder, size), expected = results<T>(is_max, size);
    std::vector<T> receive(size);
    distx::all_reduce(comm, send, receive, op);
    findings.same(receive, expected, what("all_reduce"));
    receive = send;
    auto pending = distx::start_all_reduce(comm, receive, op);
    pending.wait();
    findings.same(receive, expected, what("started all_reduce"));
    receive = send;
    const int root = comm.size() - 1 - holder;
    distx::reduce(comm, receive, op, root);
    findings.same(receive, comm.rank() == root ? expected : send, what("reduce"));
    const auto ranks = static_cast<std::size_t>(comm.size());
    const auto blocks = operands<T>(comm.rank(), holder, size * ranks);
    distx::reduce_scatter(comm, blocks, receive, op);
    findings.same(receive, results<T>(is_max, size, size * static_cast<std::size_t>(comm.rank())),
                  what("reduce_scatter"));
    std::vector<std::vector<T>> list{send, operands<T>(comm.rank(), holder, 3)};
    const std::vector<distx::Span<T>> spans{list[0], list[1]};
    distx::all_reduce(comm, spans, op);
    findings.same(list[0], expected, what("all_reduce of a list"));
    findings.same(list[1], results<T>(is_max, 3), what("all_reduce of a list"));
  }
  template <class T, class C>
  static void check(C& comm, Findings& findings, std::size_t size, int holder) {
    check<T>(comm, findings, distx::max, size, holder);
    check<T>(comm, findings, distx::min, size, holder);
  }
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    if (comm.size() == 1) return;  // the reduction of one operand is the operand
    for (int holder = 0; holder < comm.size(); ++holder) {
      for (const std::size_t size : {std::size_t{1}, std::size_t{5}, std::size_t{300}}) {
        check<distx::float8_e4m3>(comm, findings, size, holder);
        check<distx::float8_e5m2>(comm, findings, size, holder);
        check<distx::bfloat16>(comm, findings, size, holder);
        check<distx::float16>(comm, findings, size, holder);
        check<float>(comm, findings, size, holder);
        check<double>(comm, findings, size, holder);
      }
      check<float>(comm, findings, 100000, holder);
    }
  }
};

/// Rounded sums are the same on every rank and in a repeated run, and in rank order if the backend guarantees it.
struct SameBits {
  bool rank_order;

  static float operand(int rank, std::size_t i) {
    return 1.0f / static_cast<float>(3 + rank * 7 + static_cast<int>(i % 97)) * (rank % 2 == 0 ? 1e4f : 1.0f);
  }
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    for (const std::size_t size : sizes) {
      std::vector<float> send(size), ordered(size), first(size), again(size);
      for (std::size_t i = 0; i < size; ++i) {
        send[i] = operand(comm.rank(), i);
        for (int rank = 0; rank < comm.size(); ++rank)
          ordered[i] = rank == 0 ? operand(0, i) : ordered[i] + operand(rank, i);
      }
      distx::all_reduce(comm, send, first, distx::sum);
      distx::all_reduce(comm, send, again, distx::sum);
      findings.same(again, first, "all_reduce, repeated");
      if (rank_order) findings.same(first, ordered, "all_reduce in rank order");
      std::vector<float> elsewhere = first;
      distx::broadcast(comm, elsewhere, 0);
      findings.same(first, elsewhere, "all_reduce here and on rank 0");
    }
  }
};

}  // namespace conformance
