// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The kernels of tensors' operations in GPU memory against the host's, in every layout of the meshes.
#include <doctest/doctest.h>

#include <distx/cuda_blas.hpp>
#include <distx/tensor.hpp>
#include <distx/tensor/ops.hpp>

#include <cmath>
#include <limits>

#include "cuda/placed.hpp"
#include "tensor_meshes.hpp"

namespace {

using distx::Cuda;
using distx::Host;
using distx::Partial;
using distx::Shard;
using gpu_meshes::Data;
using gpu_meshes::Mesh;
using gpu_meshes::Model;
using gpu_meshes::on_mesh;
using gpu_meshes::Rank;
namespace ops = distx::ops;

/// Checks that the results differ by at most that number of roundings of numbers of their size, at least 1.
template <class X, class Y>
void near(const char* what, const X& on_gpu, const Y& on_host, double roundings) {
  INFO(std::string(what));
  static_assert(std::same_as<distx::detail::layout_of<X>, distx::detail::layout_of<Y>>);
  const auto there = distx::to_space<Host>(on_gpu);
  REQUIRE(there.extents() == on_host.extents());
  const auto values = [](const auto& x) { return std::vector(x.local().begin(), x.local().end()); };
  CHECK(roundings_between(values(there), values(on_host)) <= roundings);
}

/// For sums of a few hundred terms: in double, each addition may round.
template <class T>
inline constexpr double of_sums = std::is_same_v<T, double> ? 128 : 2;

/// Calls f(mesh, space…) for both meshes, and compares the tensors of the tuples that it returns.
template <class F>
void compare(Rank& rank, const char* what, double roundings, F&& f) {
  const auto gpu = f(rank.gpus, Cuda{});
  const auto host = f(rank.host);
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    (near(what, std::get<I>(gpu), std::get<I>(host), roundings), ...);
  }(std::make_index_sequence<std::tuple_size_v<std::remove_cvref_t<decltype(gpu)>>>());
}

/// Calls f(rank) on one rank, and where all tensors are sharded over both axes.
template <class F>
void whole_and_split(F&& f) {
  on_mesh({1, 1}, f);
  on_mesh({2, 2}, f);
}

/// Ids below `vocabulary`, some of which are equal.
template <class Id, class... Ps>
auto ids(const Mesh& mesh, const distx::Extents<2>& extents, std::size_t vocabulary) {
  return distx::generate<Id, Ps...>(mesh, extents,
                                    [=](const auto& at) { return (5 * at[0] + at[1] * at[1]) % vocabulary; });
}

}  // namespace

TEST_CASE_TEMPLATE("rows: biases, sums, layer norm and softmax equal the host's", T, float, double) {
  // Columns of one warp and of several, rows of one slice and of several.
  for (const auto& [rows, columns] : {std::pair<std::size_t, std::size_t>{3, 5}, {4, 70}, {331, 33}, {0, 4}})
    whole_and_split([&](Rank& rank) {
      const distx::Extents<3> extents{2, rows, columns};
      compare(rank, "add_bias", 0, [&]<class... Space>(const Mesh& mesh, Space...) {
        const auto x = distx::random<T, Space..., Shard<1, Data>, Shard<2, Model>>(mesh, extents, 1, -1);
        const auto b = distx::random<T, Space..., Shard<0, Model>>(mesh, {columns}, 2, -1);
        const auto more = distx::random<T, Space..., Shard<1, Model>>(mesh, {rows, columns}, 2, -1);
        const auto y = distx::random<T, Space..., Shard<0, Data>, Shard<2, Model>>(mesh, extents, 3, -1);
        return std::tuple(ops::add_bias(x, b), ops::add_trailing(y, more));
      });
      compare(rank, "sums", of_sums<T>, [&]<class... Space>(const Mesh& mesh, Space...) {
        const auto x = distx::random<T, Space..., Shard<1, Data>, Shard<2, Model>>(mesh, extents, 1, -1);
        return std::tuple(ops::sum_rows(x), ops::sum_leading<2>(distx::redistribute<Shard<0, Data>>(x)));
      });
      compare(rank, "layer_norm", 4 * of_sums<T>, [&]<class... Space>(const Mesh& mesh, Space...) {
        const auto x = distx::random<T, Space..., Shard<1, Data>>(mesh, extents, 1, -1, 3);
        const auto g = distx::random<T, Space..., Shard<1, Data>>(mesh, extents, 2, -1);
        const auto w = distx::random<T, Space...>(mesh, {columns}, 3),
                   b = distx::random<T, Space...>(mesh, {columns}, 4);
        auto [input, weight, bias] = ops::layer_norm_backward(x, w, g);
        return std::tuple(ops::layer_norm(x, w, b), std::move(input), std::move(weight), std::move(bias));
      });
      compare(rank, "softmax", 8, [&]<class... Space>(const Mesh& mesh, Space...) {
        const auto x = distx::random<T, Space..., Shard<1, Data>>(mesh, extents, 1, -9, 9);
        const auto g = distx::random<T, Space..., Shard<1, Data>>(mesh, extents, 2, -1);
        auto y = ops::softmax(x);
        auto slope = ops::softmax_backward(y, g);
        return std::tuple(std::move(y), std::move(slope));
      });
    });
}

TEST_CASE_TEMPLATE("embedding, its gradient and transpose have the host's bits", T, float, double) {
  // With a vocabulary of 1, one rank of a split has no rows. The last ones have rows of several warps, ids of three
  // digits of 5 bits, and more ids than one warp sorts at once.
  for (const auto& [length, width, vocabulary] : {std::array<std::size_t, 3>{3, 4, 11},
                                                  {3, 37, 11},
                                                  {41, 4, 11},
                                                  {41, 37, 11},
                                                  {41, 4, 1},
                                                  {41, 300, 1100},
                                                  {700, 4, 1100},
                                                  {4200, 1, 1100}})
    whole_and_split([&](Rank& rank) {
      compare(rank, "embedding", 0, [&]<class... Space>(const Mesh& mesh, Space...) {
        const distx::Extents<2> extents{2, length};
        auto selected = ids<std::uint16_t, Shard<0, Data>>(mesh, extents, vocabulary);
        const auto table = distx::random<T, Space..., Shard<0, Model>>(mesh, {vocabulary, width}, 1, -1);
        const auto g = distx::random<T, Space..., Shard<0, Data>>(mesh, {2, length, width}, 2, -1);
        const auto of = [&](const auto& indices) {
          auto rows = ops::embedding(indices, table);
          auto turned = ops::transpose<2, 0, 1>(rows);
          return std::tuple(std::move(rows), std::move(turned), ops::embedding_backward(table, indices, g));
        };
        if constexpr (sizeof...(Space) == 0)
          return of(selected);
        else
          return of(distx::to_space<Space...>(selected));
      });
    });
}

TEST_CASE("embedding takes tables of bytes and ids of 8 bytes") {
  for (const std::size_t width : {5U, 16U})
    whole_and_split([&](Rank& rank) {
      compare(rank, "embedding", 0, [&]<class... Space>(const Mesh& mesh, Space...) {
        const auto selected = ids<std::uint64_t, Shard<0, Data>>(mesh, {2, 7}, 11);
        const auto table = distx::generate<std::int8_t, Space..., Shard<0, Model>>(
            mesh, distx::Extents<2>{11, width},
            [](const auto& at) { return static_cast<int>(8 * at[0] + at[1]) - 50; });
        if constexpr (sizeof...(Space) == 0)
          return std::tuple(ops::embedding(selected, table));
        else
          return std::tuple(ops::embedding(distx::to_space<Space...>(selected), table));
      });
    });
}

TEST_CASE_TEMPLATE("cross entropy equals the host's, with the vocabulary sharded or not", T, float, double) {
  for (const std::size_t vocabulary : {1U, 11U, 150U})
    whole_and_split([&](Rank& rank) {
      compare(rank, "cross_entropy", 8, [&]<class... Space>(const Mesh& mesh, Space...) {
        const auto logits =
            distx::random<T, Space..., Shard<0, Data>, Shard<2, Model>>(mesh, {2, 5, vocabulary}, 1, -6, 6);
        const auto slopes = distx::random<T, Space..., Shard<0, Data>>(mesh, {2, 5}, 2, -1);
        auto selected = ids<std::uint16_t, Shard<0, Data>>(mesh, {2, 5}, vocabulary);
        const auto of = [&](const auto& targets) {
          auto [losses, log_sums] = ops::cross_entropy(logits, targets);
          auto gradient = ops::cross_entropy_backward(logits, targets, log_sums, slopes);
          return std::tuple(std::move(losses), std::move(gradient));
        };
        if constexpr (sizeof...(Space) == 0)
          return of(selected);
        else
          return of(distx::to_space<Space...>(selected));
      });
    });
}

TEST_CASE_TEMPLATE("causal attention and its gradient equal the host's", T, float, double) {
  // With one head, one rank of a split has none.
  for (const auto& [length, heads] : {std::pair<std::size_t, std::size_t>{1, 3}, {6, 3}, {6, 1}, {35, 3}})
    whole_and_split([&](Rank& rank) {
      compare(rank, "causal_attention", 32, [&]<class... Space>(const Mesh& mesh, Space...) {
        const auto x =
            distx::random<T, Space..., Shard<0, Data>, Shard<3, Model>>(mesh, {2, length, 3, heads, 5}, 1, -2, 2);
        const auto g = distx::random<T, Space..., Shard<0, Data>, Shard<2, Model>>(mesh, {2, length, heads, 5}, 2, -1);
        return std::tuple(ops::causal_attention(x), ops::causal_attention_backward(x, g));
      });
    });
}

TEST_CASE_TEMPLATE("causal attention of several tiles and strips equals the host's", T, float, double) {
  for (const auto& [length, size] :
       {std::pair<std::size_t, std::size_t>{1, 64}, {7, 72}, {64, 16}, {65, 8}, {65, 130}, {300, 24}})
    on_mesh({1, 1}, [&](Rank& rank) {
      CAPTURE(length);
      CAPTURE(size);
      compare(rank, "causal_attention", 32, [&]<class... Space>(const Mesh& mesh, Space...) {
        const auto x = distx::random<T, Space...>(mesh, {1, length, 3, 2, size}, 1, -2, 2);
        const auto g = distx::random<T, Space...>(mesh, {1, length, 2, size}, 2, -1);
        return std::tuple(ops::causal_attention(x), ops::causal_attention_backward(x, g));
      });
    });
}

TEST_CASE("the gradient of causal attention is that of differences") {
  constexpr std::size_t length = 70, size = 3;
  const distx::Extents<5> extents{1, length, 3, 1, size};
  on_mesh({1, 1}, [&](Rank& rank) {
    const auto operand = distx::random<double>(rank.host, extents, 1, -2, 2);
    const auto slope = distx::random<double>(rank.host, {1, length, 1, size}, 2, -1);
    const auto on_gpu = [&](const auto& x) { return distx::to_space<Cuda>(x); };
    const auto result = distx::to_space<Host>(ops::causal_attention_backward(on_gpu(operand), on_gpu(slope)));
    const auto along = [&](std::size_t index, double by) {
      auto moved = operand.clone();
      moved.local()[index] += by;
      const auto y = distx::to_space<Host>(ops::causal_attention(on_gpu(moved)));
      double sum = 0;
      for (std::size_t i = 0; i < y.local().size(); ++i) sum += y.local()[i] * slope.local()[i];
      return sum;
    };
    for (std::size_t i = 0; i < operand.local().size(); i += 13) {
      CAPTURE(i);
      CHECK(std::abs((along(i, 1e-5) - along(i, -1e-5)) / 2e-5 - result.local()[i]) < 1e-8);
    }
  });
}

TEST_CASE("causal attention and its gradient have the same bits in each run") {
  on_mesh({1, 1}, [](Rank& rank) {
    const auto x = distx::random<float, Cuda>(rank.gpus, {2, 130, 3, 1, 8}, 1, -2, 2);
    const auto g = distx::random<float, Cuda>(rank.gpus, {2, 130, 1, 8}, 2, -1);
    const auto y = distx::to_space<Host>(ops::causal_attention(x));
    const auto slope = distx::to_space<Host>(ops::causal_attention_backward(x, g));
    for (int run = 0; run < 3; ++run) {
      CHECK(gpu_meshes::same(ops::causal_attention(x), y));
      CHECK(gpu_meshes::same(ops::causal_attention_backward(x, g), slope));
    }
  });
}

TEST_CASE("causal attention of a token does not depend on later ones, even if these are not finite") {
  constexpr std::size_t length = 70, size = 2, bad = 35;
  on_mesh({1, 1}, [](Rank& rank) {
    auto x = distx::random<float>(rank.host, distx::Extents<5>{1, length, 3, 1, size}, 1, -2, 2);
    auto g = distx::random<float>(rank.host, distx::Extents<4>{1, length, 1, size}, 2, -1);
    for (std::size_t i = 0; i < 3 * size; ++i) x.local()[bad * 3 * size + i] = std::numeric_limits<float>::quiet_NaN();
    const auto y = distx::to_space<Host>(ops::causal_attention(distx::to_space<Cuda>(x)));
    for (std::size_t i = 0; i < length * size; ++i) CHECK(std::isnan(y.local()[i]) == (i / size >= bad));
    // Gradients of queries depend on earlier tokens, those of keys and values on later ones.
    for (std::size_t i = 0; i < 3 * size; ++i) x.local()[bad * 3 * size + i] = 1;
    g.local()[bad * size] = std::numeric_limits<float>::quiet_NaN();
    const auto slope =
        distx::to_space<Host>(ops::causal_attention_backward(distx::to_space<Cuda>(x), distx::to_space<Cuda>(g)));
    for (std::size_t i = 0; i < length * 3 * size; ++i) {
      const std::size_t token = i / (3 * size), which = i / size % 3, column = i % size;
      CAPTURE(i);
      const bool reached = which == 0 ? token == bad : token <= bad && (which == 1 || column == 0);
      CHECK(std::isnan(slope.local()[i]) == reached);
    }
  });
}

TEST_CASE("an id that is not in the vocabulary gives NaNs, and no other row") {
  on_mesh({1, 1}, [](Rank& rank) {
    const auto selected = distx::to_space<Cuda>(
        distx::generate<int>(rank.gpus, distx::Extents<1>{3}, [](const auto& at) { return at[0] == 1 ? -1 : 2; }));
    const auto table = distx::random<float, Cuda>(rank.gpus, {3, 2}, 1);
    const auto rows = distx::to_space<Host>(ops::embedding(selected, table));
    for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(rows.local()[i]) == (i / 2 == 1));
    const auto logits = distx::random<float, Cuda>(rank.gpus, {3, 2}, 1);
    const auto past = distx::to_space<Cuda>(
        distx::generate<int>(rank.gpus, distx::Extents<1>{3}, [](const auto& at) { return at[0] == 1 ? 2 : 1; }));
    const auto [losses, log_sums] = ops::cross_entropy(logits, past);
    const auto slopes = distx::full<float, Cuda>(rank.gpus, {3}, 1);
    const auto gradient = distx::to_space<Host>(ops::cross_entropy_backward(logits, past, log_sums, slopes));
    const auto there = distx::to_space<Host>(losses);
    for (std::size_t i = 0; i < 3; ++i) CHECK(std::isnan(there.local()[i]) == (i == 1));
    for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(gradient.local()[i]) == (i / 2 == 1));
  });
}

TEST_CASE("a kernel for more rows than one launch can have is an error") {
  on_mesh({1, 1}, [](Rank& rank) {
    const auto& kernels = distx::cuda::detail::tensor_kernels<float>;
    const std::size_t rows = std::size_t{8} << 31;  // 8 in each block
    CHECK_THROWS_AS(kernels.cross_entropy(rank.stream, rows, nullptr, nullptr, nullptr, nullptr, nullptr),
                    distx::InvalidArgument);
  });
}
