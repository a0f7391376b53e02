// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Updates of several arrays in one launch, with master weights and with a factor, against the operations one by one.
#include <distx/cuda.hpp>
#include <distx/optim/adamw.hpp>
#include <distx/optim/sgd.hpp>

#include <deque>

#include "cuda/lion.hpp"
#include "cuda/placed.hpp"

namespace {

using distx::AdamW;
using distx::bfloat16;
using distx::Cuda;
using distx::CudaStream;
using distx::FixedPointSum;
using distx::float16;
using distx::SGD;
using distx::Span;
using distx::Step;
using distx::cuda::detail::ClipFactor;
using distx::cuda::detail::CudaPiece;
using distx::cuda::detail::GradientFactor;

/// One piece's arrays, which begin at these offsets. If Low is not T, `weight` has the masters of `low`.
template <class Optimizer, class T, class Low, class Gradient = Low>
struct Arrays {
  static constexpr std::size_t states = Optimizer::states;
  using A = distx::accumulator_t<T>;
  Placed<T> weight;
  Placed<Gradient> gradient;
  Placed<Low> low;
  std::vector<Placed<A>> state;

  Arrays(std::size_t size, std::size_t offset, std::size_t state_offset)
      : Arrays(size, offset, offset, offset, state_offset) {}
  Arrays(std::size_t size, std::size_t offset, std::size_t gradient_offset, std::size_t low_offset,
         std::size_t state_offset)
      : weight(wave<T>(size), offset),
        gradient(wave<Gradient>(size, 2), gradient_offset),
        low(std::vector<Low>(size), low_offset) {
    for (std::size_t s = 0; s < states; ++s) state.emplace_back(std::vector<A>(size), state_offset);
  }
  [[nodiscard]] std::array<Span<A, Cuda>, states> state_spans() const {
    std::array<Span<A, Cuda>, states> spans;
    for (std::size_t s = 0; s < spans.size(); ++s) spans[s] = state[s].span();
    return spans;
  }
  [[nodiscard]] CudaPiece<Optimizer, T, Low, Gradient> piece(const Optimizer& optimizer, const Step& step) const {
    CudaPiece<Optimizer, T, Low, Gradient> piece{optimizer.template coefficients<A>(step), weight.span(), gradient.in(),
                                                 state_spans()};
    if constexpr (!std::same_as<T, Low>) piece.low = low.span();
    return piece;
  }
  /// The same update by one operation after the other.
  void one_by_one(const CudaStream& stream, const Optimizer& optimizer, const Step& step, double factor) const {
    if constexpr (std::same_as<T, Low>) {
      scale(stream, gradient.span(), factor);
      fused_update(stream, optimizer, step, weight.span(), gradient.in(), state_spans());
    } else {
      const Placed<T> wide(std::vector<T>(weight.span().size()));
      cast(stream, wide.span(), gradient.in());
      scale(stream, wide.span(), factor);
      fused_update(stream, optimizer, step, weight.span(), wide.in(), state_spans());
      cast(stream, low.span(), weight.in());
      stream.synchronize();
    }
  }
  [[nodiscard]] bool same_as(const Arrays& other) const {
    bool same = same_bits(weight.values(), other.weight.values()) && same_bits(low.values(), other.low.values());
    for (std::size_t s = 0; s < states; ++s) same = same && same_bits(state[s].values(), other.state[s].values());
    return same;
  }
};

template <class Optimizer, class T, class Low, class Gradient>
std::vector<Arrays<Optimizer, T, Low, Gradient>> many() {
  std::vector<Arrays<Optimizer, T, Low, Gradient>> all;
  for (std::size_t i = 0; i < 100; ++i) all.emplace_back(i * i % 37, i % 5, i % 7 == 0 ? 3 : i % 5);
  all.emplace_back(10007, 1, 1);
  all.emplace_back(4096, 0, 0);
  all.emplace_back(10007, 0, 1, 3, 0);  // many whole blocks of arrays that are not cut alike
  all.emplace_back(10007, 1, 1, 2, 0);
  all.emplace_back(4096, 3, 0, 1, 2);
  return all;
}
Step step_of(std::size_t piece) {
  return {.learning_rate = 0.01 * (1 + static_cast<double>(piece % 3)), .number = 1 + piece % 2, .weight_decay = 0.1};
}

template <class T, class Low, class Gradient = Low, class Optimizer>
void check_pieces(const Optimizer& optimizer, double factor) {
  const CudaStream stream;
  const auto together = many<Optimizer, T, Low, Gradient>(), apart = many<Optimizer, T, Low, Gradient>();
  using Piece = CudaPiece<Optimizer, T, Low, Gradient>;
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < together.size(); ++i) pieces.push_back(together[i].piece(optimizer, step_of(i)));
  fused_update(stream, std::span<const Piece>(pieces), GradientFactor{factor});
  for (std::size_t i = 0; i < apart.size(); ++i) apart[i].one_by_one(stream, optimizer, step_of(i), factor);
  stream.synchronize();
  for (std::size_t i = 0; i < apart.size(); ++i) CHECK_MESSAGE(together[i].same_as(apart[i]), i);
}

TEST_CASE_TEMPLATE("pieces updated in one launch have the bits of updates one by one", T, float, double, bfloat16,
                   float16) {
  for (const double factor : {1.0, 0.3}) check_pieces<T, T>(AdamW{}, factor);
  check_pieces<T, T>(Lion{}, 0.3);
  check_pieces<T, T>(PlainDescent{}, 0.3);
}
TEST_CASE_TEMPLATE("master weights, scaled gradients and rounded weights have the bits of cast, scale, update and cast",
                   Low, bfloat16, float16) {
  for (const double factor : {1.0, 0.3}) check_pieces<float, Low>(AdamW{}, factor);
  check_pieces<float, Low>(SGD{.momentum = 0.9}, 0.3);
  check_pieces<float, Low>(PlainDescent{}, 1.0);
  check_pieces<float, Low, float>(AdamW{}, 0.3);
  check_pieces<float, Low, bfloat16>(AdamW{}, 0.3);
  check_pieces<float, Low, float16>(SGD{}, 1.0);
}

TEST_CASE("a factor in the GPU's memory is used, and NaN skips the update") {
  const CudaStream stream;
  const distx::Buffer<double, Cuda> factor(1);
  const Arrays<AdamW, float, bfloat16> there(5000, 1, 1), here(5000, 1, 1), untouched(5000, 1, 1);
  const Step step{.learning_rate = 0.01};
  const auto update = [&](const auto& arrays, const GradientFactor& by) {
    const auto piece = arrays.piece(AdamW{}, step);
    fused_update(stream, std::span(&piece, 1), by);
  };
  const double values[] = {0.25, std::nan("")};
  copy(stream, factor.span(), Span<const double>(values, 1));
  update(there, {.there = factor.data()});
  update(here, {.value = 0.25});
  stream.synchronize();
  CHECK(there.same_as(here));
  CHECK(!there.same_as(untouched));
  copy(stream, factor.span(), Span<const double>(values + 1, 1));
  update(there, {.there = factor.data()});
  stream.synchronize();
  CHECK(there.same_as(here));
}

TEST_CASE("pieces whose arrays differ in length are rejected") {
  const CudaStream stream;
  const Arrays<SGD, float, bfloat16> three(3, 0, 0), four(4, 0, 0);
  for (const int wrong : {0, 1, 2}) {
    auto piece = three.piece(SGD{}, {});
    if (wrong == 0) piece.gradient = four.gradient.in();
    if (wrong == 1) piece.low = four.low.span();
    if (wrong == 2) piece.state = four.state_spans();
    CHECK_THROWS_AS(fused_update(stream, std::span<const CudaPiece<SGD, float, bfloat16>>(&piece, 1)),
                    distx::InvalidArgument);
  }
}

TEST_CASE("the norm and the clipping factor computed on the GPU have the host's bits") {
  const CudaStream stream;
  const distx::Buffer<ClipFactor, Cuda> result(1);
  for (const double magnitude : {1.0, 1e-3, 1e30, 0.0}) {
    auto values = wave<float>(100003);
    for (float& value : values) value *= static_cast<float>(magnitude);
    const Placed<float> gradients(values, 1);
    const distx::Buffer<double, Cuda> largest(1, stream);
    const distx::Buffer<std::uint64_t, Cuda> parts(2, stream);
    largest_magnitude(stream, gradients.span(), largest.span());
    fixed_point_squares(stream, gradients.span(), Span<const double, Cuda>(largest), parts.span());
    for (const double clip_norm : {0.5, 1e9}) {
      for (const double unscale : {1.0, 1.0 / 1024}) {
        const double norm = fixed_point_norm(distx::HostStream(), Span<float>(values)) * unscale;
        double factor = unscale;
        if (norm > clip_norm) factor *= clip_norm / norm;
        clip_factor(stream, largest, parts, clip_norm, unscale, result.span());
        const auto found = distx::cuda::detail::read<ClipFactor>(stream, result);
        CHECK(found.norm == norm);
        CHECK(found.factor == factor);
      }
    }
  }
  const distx::Buffer<double, Cuda> infinite(1);
  const distx::Buffer<std::uint64_t, Cuda> none(2, stream);
  fill(stream, infinite.span(), std::numeric_limits<double>::infinity());
  clip_factor(stream, infinite, none, 1, 1, result.span());
  CHECK(std::isnan(distx::cuda::detail::read<ClipFactor>(stream, result).factor));
}

TEST_CASE("copies made at once copy all bytes, wherever the pieces begin and however many there are") {
  const CudaStream stream;
  std::vector<std::uint8_t> bytes(50000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
  std::deque<std::pair<Placed<std::uint8_t>, Placed<std::uint8_t>>> arrays;
  distx::detail::PieceCopies<Cuda> pieces(stream);
  for (int round = 0; round < 3; ++round)
    for (const std::size_t size : {0u, 1u, 15u, 16u, 17u, 16384u, 16385u, 50000u})
      for (const std::size_t offset : {0u, 1u, 2u, 4u, 8u, 12u})
        for (const std::size_t other : {offset, std::size_t{3}}) {
          const std::vector<std::uint8_t> values(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
          const auto& [to, from] =
              arrays.emplace_back(Placed(std::vector<std::uint8_t>(size), offset), Placed(values, other));
          pieces.add({reinterpret_cast<std::byte*>(to.span().data()),
                      reinterpret_cast<const std::byte*>(from.span().data()), size});
        }
  pieces.finish();
  for (const auto& [to, from] : arrays) CHECK(same_bits(to.values(stream), from.values(stream)));
}

}  // namespace
