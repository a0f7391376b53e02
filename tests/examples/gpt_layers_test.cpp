// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <array>
#include <cmath>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include "models/token_embedding.hpp"
#include "models/transformer_block.hpp"
#include "numeric_gradient.hpp"
#include "sealed_training.hpp"

using namespace examples;

namespace gpt_layers_test {

namespace {

using Training = SealedTraining<double>;

/// A loss whose gradient with respect to the output is `slope`.
double dot(const Matrix<double>& slope, const Matrix<double>& output) { return slope.cwiseProduct(output).sum(); }

/// The parameters of a layer, opened.
template <class Layer>
auto opened(Training& training, const Layer& layer) {
  return std::apply([&](const auto*... all) { return training.unshard(*all...); }, layer.parameters());
}

template <class Parameters, class Loss>
void check_parameter_gradients(Training& training, const Parameters& parameters, Loss&& loss) {
  std::apply([&](const auto*... all) { (check_gradient(training.values(*all), training.gradient(*all), loss), ...); },
             parameters);
}

}  // namespace

TEST_CASE("a linear layer: output and gradients, which are added") {
  Generator generator(1);
  InitialWeights initial(1);
  const Linear<double> layer("layer", 5, 3, 1, initial);
  Training training(layer.parameters());
  training.randomize(generator);
  Matrix<double> input = random_matrix(5, 4, generator);
  Matrix<double> output, input_gradient;
  const auto forward = [&] {
    const auto weights = opened(training, layer);
    layer.forward(input, output);
  };
  forward();
  const auto [weight, bias] = layer.parameters();
  for (Eigen::Index token = 0; token < 4; ++token) {
    for (std::size_t out = 0; out < 3; ++out) {
      double expected = training.values(*bias)[out];
      for (std::size_t in = 0; in < 5; ++in) {
        expected += training.values(*weight)[5 * out + in] * input(static_cast<Eigen::Index>(in), token);
      }
      CHECK(std::abs(output(static_cast<Eigen::Index>(out), token) - expected) < 1e-12);
    }
  }
  const Matrix<double> slope = random_matrix(3, 4, generator);
  weight->gradient()[7] = 100;
  bias->gradient()[1] = 100;
  {
    const auto weights = opened(training, layer);
    layer.backward(input, slope, input_gradient, training);
  }
  const_cast<double&>(training.gradient(*weight)[7]) -= 100;
  const_cast<double&>(training.gradient(*bias)[1]) -= 100;
  const auto loss = [&] {
    forward();
    return dot(slope, output);
  };
  check_parameter_gradients(training, layer.parameters(), loss);
  check_gradient(input, input_gradient, loss);
  training.finish();
}

TEST_CASE("a layer norm: mean, variance and gradients") {
  Generator generator(2);
  InitialWeights initial(1);
  LayerNorm<double> layer("norm", 8, 1e-5, initial);
  Training training(layer.parameters());
  Matrix<double> input = 10 * random_matrix(8, 3, generator);
  Matrix<double> output;
  const auto forward = [&] {
    const auto weights = opened(training, layer);
    layer.forward(input, output);
  };
  forward();
  for (Eigen::Index token = 0; token < 3; ++token) {
    CHECK(std::abs(output.col(token).mean()) < 1e-12);
    CHECK(std::abs(output.col(token).squaredNorm() / 8 - 1) < 1e-5);
  }
  training.randomize(generator);
  input = random_matrix(8, 3, generator);
  forward();
  const Matrix<double> slope = random_matrix(8, 3, generator);
  const Matrix<double> before = random_matrix(8, 3, generator);
  Matrix<double> input_gradient = before;
  {
    const auto weights = opened(training, layer);
    layer.backward(slope, input_gradient, training);
  }
  const auto loss = [&] {
    forward();
    return dot(slope, output);
  };
  check_parameter_gradients(training, layer.parameters(), loss);
  check_gradient(input, Matrix<double>(input_gradient - before), loss);
  training.finish();
}

TEST_CASE("GELU: values and gradient") {
  Matrix<double> input(1, 5), output;
  input << -10, -1, 0, 1, 10;
  Gelu<double> gelu;
  gelu.forward(input, output);
  const std::array<double, 5> exact{0, -0.15865525393145707, 0, 0.8413447460685429, 10};  // x Φ(x)
  for (Eigen::Index i = 0; i < 5; ++i) {
    CHECK(std::abs(output(0, i) - exact[static_cast<std::size_t>(i)]) < 5e-4);
  }
  CHECK(output(0, 2) == 0);
  Generator generator(3);
  input = 3 * random_matrix(4, 5, generator);
  gelu.forward(input, output);
  const Matrix<double> slope = random_matrix(4, 5, generator);
  Matrix<double> gradient = slope;
  gelu.backward(input, gradient);
  check_gradient(input, gradient, [&] {
    Gelu<double>().forward(input, output);
    return dot(slope, output);
  });
}

TEST_CASE("attention matches its definition and does not depend on later tokens") {
  constexpr Eigen::Index width = 6, heads = 2, length = 4, sequences = 3, size = width / heads;
  Generator generator(4);
  const Matrix<double> input = 2 * random_matrix(3 * width, sequences * length, generator);
  CausalAttention<double> attention(width, heads);
  Matrix<double> output;
  attention.forward(input, length, output);
  REQUIRE(output.rows() == width);
  REQUIRE(output.cols() == sequences * length);
  for (Eigen::Index column = 0; column < output.cols(); ++column) {
    for (Eigen::Index head = 0; head < heads; ++head) {
      Vector<double> sum = Vector<double>::Zero(size);
      double total = 0;
      for (Eigen::Index seen = column / length * length; seen <= column; ++seen) {
        const double score =
            input.col(column).segment(head * size, size).dot(input.col(seen).segment(width + head * size, size));
        const double share = std::exp(score / std::sqrt(3.0));
        total += share;
        sum += share * input.col(seen).segment(2 * width + head * size, size);
      }
      CHECK((output.col(column).segment(head * size, size) - sum / total).cwiseAbs().maxCoeff() < 1e-12);
    }
  }
}

TEST_CASE("attention's gradient is the slope of its output, regardless of the length before") {
  CausalAttention<double> attention(4, 2);
  Generator generator(5);
  for (const Eigen::Index length : {3, 5, 1}) {
    CAPTURE(length);
    Matrix<double> input = 2 * random_matrix(12, 2 * length, generator);
    Matrix<double> output, gradient;
    attention.forward(input, length, output);
    const Matrix<double> slope = random_matrix(4, 2 * length, generator);
    attention.backward(input, slope, gradient);
    check_gradient(input, gradient, [&] {
      attention.forward(input, length, output);
      return dot(slope, output);
    });
  }
}

TEST_CASE("a transformer block's gradients are the slopes of its output") {
  Generator generator(6);
  InitialWeights initial(1);
  TransformerBlock<double> block("block", 4, 2, 1, 1e-5, initial);
  Training training(block.parameters());
  training.randomize(generator);
  Matrix<double> input = random_matrix(4, 6, generator);
  const Matrix<double> slope = random_matrix(4, 6, generator);
  const auto loss = [&] {
    Matrix<double> stream = input;
    block.forward(stream, 3, training);
    return dot(slope, stream);
  };
  loss();
  Matrix<double> gradient = slope;
  block.backward(gradient, training);
  check_parameter_gradients(training, block.parameters(), loss);
  check_gradient(input, gradient, loss);
  training.finish();
}

TEST_CASE("an embedding: the stream, and the gradients of both uses") {
  Generator generator(7);
  InitialWeights initial(1);
  const TokenEmbedding<double> embedding("embedding", 5, 4, 3, initial);
  Training training(embedding.parameters());
  training.randomize(generator);
  const std::vector<Token> tokens{4, 0, 0, 1, 4, 2};  // two sequences of three; token 3 is absent
  Matrix<double> stream;
  embedding.forward(tokens, 3, stream, training);
  const auto [vectors, places] = embedding.parameters();
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t feature = 0; feature < 3; ++feature) {
      CHECK(stream(static_cast<Eigen::Index>(feature), static_cast<Eigen::Index>(i)) ==
            training.values(*vectors)[3 * tokens[i] + feature] + training.values(*places)[3 * (i % 3) + feature]);
    }
  }
  Matrix<double> recognised = random_matrix(3, 6, generator);
  Matrix<double> logits, recognised_gradient;
  const Matrix<double> slope = random_matrix(3, 6, generator);
  const Matrix<double> logits_slope = random_matrix(5, 6, generator);
  const auto loss = [&] {
    embedding.forward(tokens, 3, stream, training);
    const auto weights = training.unshard(embedding.tokens());
    embedding.logits(recognised, logits);
    return dot(slope, stream) + dot(logits_slope, logits);
  };
  {
    const auto weights = training.unshard(embedding.tokens());
    embedding.logits_backward(recognised, logits_slope, recognised_gradient, training);
  }
  embedding.backward(tokens, 3, slope, training);
  check_parameter_gradients(training, embedding.parameters(), loss);
  check_gradient(recognised, recognised_gradient, loss);
  training.finish();
}

TEST_CASE("a parameter in fewer bits is computed in float and rounded once when it is written") {
  using distx::bfloat16;
  InitialWeights initial(1);
  const Linear<bfloat16> layer("layer", 3, 2, 1, initial);
  SealedTraining<bfloat16> training(layer.parameters());
  const auto [weight, bias] = layer.parameters();
  training.values(*weight) = {bfloat16(1), bfloat16(2), bfloat16(3), bfloat16(-1), bfloat16(0.5F), bfloat16(0)};
  training.values(*bias) = {bfloat16(0.25F), bfloat16(-8)};
  Matrix<float> input(3, 1), output, input_gradient;
  input << 1.001F, 1, 1;  // 1.001 would be 1 as a bfloat16
  Matrix<float> slope(2, 1);
  slope << 1, 2;
  weight->gradient()[1] = bfloat16(256);
  const auto weights = training.unshard(*weight, *bias);
  layer.forward(input, output);
  CHECK(output(0, 0) == doctest::Approx(6.251F));
  CHECK(output(1, 0) == doctest::Approx(-8.501F));
  layer.backward(input, slope, input_gradient, training);
  CHECK(input_gradient == (Matrix<float>(3, 1) << -1, 3, 3).finished());
  const std::vector<float> expected{1, 256, 1, 2, 2, 2};  // 256 + 1 takes nine bits
  for (std::size_t i = 0; i < 6; ++i) CHECK(static_cast<float>(training.gradient(*weight)[i]) == expected[i]);
  training.finish();
}

}  // namespace gpt_layers_test
