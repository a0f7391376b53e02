// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Operations that take a maximum turn a NaN or an infinity of an operand into NaN, not into a wrong number.
#include <doctest/doctest.h>

#include <distx/tensor/ops/causal_attention.hpp>
#include <distx/tensor/ops/cross_entropy.hpp>
#include <distx/tensor/ops/reduce.hpp>
#include <distx/tensor/ops/softmax.hpp>

#include <cmath>
#include <limits>

#include "meshes.hpp"

namespace {

using meshes::Comm;
using meshes::Data;
using meshes::Mesh;
using meshes::Model;
using meshes::Partial;
using meshes::Shard;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// A tensor of negative numbers, with one element in place of another.
template <class T, std::size_t Rank>
distx::Tensor<T, Rank> numbers(const distx::Extents<Rank>& extents, std::size_t at, double other) {
  distx::Tensor<T, Rank> made(extents);
  for (std::size_t i = 0; i < made.values().size(); ++i)
    made.values()[i] = T(static_cast<distx::accumulator_t<T>>(-1.0 - static_cast<double>(i * 7 % 5)));
  made.values()[at] = T(static_cast<distx::accumulator_t<T>>(other));
  return made;
}
template <class T>
bool is_nan(T value) {
  return std::isnan(static_cast<double>(value));
}

}  // namespace

TEST_CASE_TEMPLATE(
    "max_over of a slice with a NaN is NaN wherever it is, also over ranks, and so its gradient goes there", T, double,
    float, distx::bfloat16) {
  for (const auto& shape : meshes::shapes)
    meshes::on_mesh(shape, [](const Mesh& mesh, Comm&) {
      for (std::size_t at = 0; at < 6; ++at) {
        const distx::Extents<2> extents{2, 6};
        const auto whole = numbers<T, 2>(extents, at, not_a_number);
        const auto x = distx::distribute<Shard<1, Model>>(mesh, whole);
        const auto maxima = distx::redistribute<>(distx::ops::max_over<1>(x));  // of Partial<Model, Max>
        CHECK(is_nan(maxima.local()[0]));
        CHECK(static_cast<float>(maxima.local()[1]) == -1.0F);
        const auto all = distx::distribute<>(mesh, whole);
        distx::Tensor<T, 1> slopes({2});
        slopes.values()[0] = slopes.values()[1] = T(3.0F);
        const auto gradient = distx::ops::max_over_backward<1>(all, maxima, distx::distribute<>(mesh, slopes));
        for (std::size_t i = 0; i < 6; ++i) CHECK(static_cast<float>(gradient.local()[i]) == (i == at ? 3.0F : 0.0F));
      }
    });
}

TEST_CASE("a Partial with Max is reduced to NaN if any rank's term is") {
  for (const auto& shape : meshes::shapes)
    meshes::on_mesh(shape, [](const Mesh& mesh, Comm&) {
      for (int holder = 0; holder < mesh.size<Model>(); ++holder) {
        std::vector<float> term{1, 2, 3, 4, 5};
        if (mesh.coordinate<Model>() == holder) term[3] = std::numeric_limits<float>::quiet_NaN();
        const auto x = distx::from_local<Partial<Model, distx::Max>>(mesh, {5}, term);
        const auto whole = distx::redistribute<>(x);
        for (std::size_t i = 0; i < 5; ++i) CHECK(std::isnan(whole.local()[i]) == (i == 3));
      }
    });
}

TEST_CASE("a row of softmax with a NaN or a positive infinity is NaN, and no other row") {
  meshes::on_mesh({1, 1}, [](const Mesh& mesh, Comm&) {
    for (const double bad : {not_a_number, infinity})
      for (std::size_t at = 0; at < 4; ++at) {
        const auto y = distx::ops::softmax(distx::distribute<>(mesh, numbers<double, 2>({2, 4}, at, bad)));
        for (std::size_t i = 0; i < 8; ++i) CHECK(std::isnan(y.local()[i]) == (i < 4));
      }
  });
}

TEST_CASE("the loss of a row of logits with a NaN or a positive infinity is NaN, on whichever rank the element is") {
  for (const auto& shape : meshes::shapes)
    meshes::on_mesh(shape, [](const Mesh& mesh, Comm&) {
      for (const double bad : {not_a_number, infinity})
        for (std::size_t at = 0; at < 5; ++at) {
          const auto logits = distx::distribute<Shard<1, Model>>(mesh, numbers<double, 2>({2, 5}, at, bad));
          distx::Tensor<int, 1> ids({2});
          ids.values()[0] = ids.values()[1] = 2;
          const auto found = distx::ops::cross_entropy(logits, distx::distribute<>(mesh, ids));
          CHECK(std::isnan(found.losses.local()[0]));
          CHECK_FALSE(std::isnan(found.losses.local()[1]));
        }
    });
}

TEST_CASE("attention gives NaN to the tokens that see a key with a NaN or an infinite score, and to no earlier one") {
  meshes::on_mesh({1, 1}, [](const Mesh& mesh, Comm&) {
    constexpr std::size_t length = 4, size = 2;
    for (const double bad : {not_a_number, infinity})
      for (std::size_t token = 0; token < length; ++token) {
        const std::size_t key = (token * 3 + 1) * size;  // of (batch, length, 3, heads, size)
        auto x = numbers<double, 5>({1, length, 3, 1, size}, key, bad);
        for (std::size_t t = 0; t < length; ++t) x.values()[t * 3 * size] = 2;  // positive scores with that key
        const auto y = distx::ops::causal_attention(distx::distribute<>(mesh, x));
        for (std::size_t t = 0; t < length; ++t)
          for (std::size_t i = 0; i < size; ++i) CHECK(std::isnan(y.local()[t * size + i]) == (t >= token));
      }
  });
}
