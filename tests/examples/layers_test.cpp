// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "models/activation.hpp"
#include "models/average_pooling.hpp"
#include "models/convolution.hpp"
#include "models/dense.hpp"
#include "models/softmax_cross_entropy.hpp"
#include "numeric_gradient.hpp"

using namespace examples;

namespace layers_test {

namespace {

/// A layer whose four arrays hold what they should not after a gradient is written.
Layer<double> random_layer(Eigen::Index inputs, Eigen::Index outputs, Generator& generator) {
  Layer<double> layer("layer", inputs, outputs, generator);
  layer.bias = random_matrix(outputs, 1, generator);
  layer.weight_gradient.setConstant(7);
  layer.bias_gradient.setConstant(7);
  return layer;
}

/// A loss whose gradient with respect to the output is `slope`.
double dot(const Matrix<double>& slope, const Matrix<double>& output) { return slope.cwiseProduct(output).sum(); }

}  // namespace

TEST_CASE("a convolution is what its definition says") {
  struct Case {
    ImageShape input;
    Eigen::Index outputs, kernel, padding;
  };
  for (const Case& c : {Case{{1, 5, 5}, 2, 5, 0}, Case{{3, 6, 4}, 2, 3, 1}, Case{{2, 4, 7}, 3, 5, 2}}) {
    Generator generator(1);
    Convolution<double> convolution(c.input, c.outputs, c.kernel, c.padding);
    const Layer<double> layer = random_layer(convolution.patch_size(), c.outputs, generator);
    const ImageShape shape = convolution.output();
    CHECK(shape == ImageShape{c.outputs, c.input.height + 2 * c.padding - c.kernel + 1,
                              c.input.width + 2 * c.padding - c.kernel + 1});
    Matrix<double> output;
    for (const Eigen::Index samples : {3, 1, 2}) {  // no state of an earlier batch size remains
      const Matrix<double> input = random_matrix(c.input.channels, samples * c.input.pixels(), generator);
      convolution.forward(layer, input, output);
      REQUIRE(output.rows() == c.outputs);
      REQUIRE(output.cols() == samples * shape.pixels());
      for (Eigen::Index column = 0; column < output.cols(); ++column) {
        const Eigen::Index sample = column / shape.pixels();
        const Eigen::Index y = column % shape.pixels() / shape.width;
        const Eigen::Index x = column % shape.width;
        for (Eigen::Index out = 0; out < c.outputs; ++out) {
          double expected = layer.bias(out);
          for (Eigen::Index i = 0; i < layer.weight.cols(); ++i) {
            const Eigen::Index in_y = y - c.padding + i / c.input.channels / c.kernel;
            const Eigen::Index in_x = x - c.padding + i / c.input.channels % c.kernel;
            if (in_y < 0 || in_x < 0 || in_y >= c.input.height || in_x >= c.input.width) continue;
            const Eigen::Index pixel = sample * c.input.pixels() + in_y * c.input.width + in_x;
            expected += layer.weight(out, i) * input(i % c.input.channels, pixel);
          }
          CHECK(std::abs(output(out, column) - expected) < 1e-12);
        }
      }
    }
  }
}

TEST_CASE("a convolution's gradients are the slopes of its output") {
  for (const Eigen::Index padding : {0, 1, 2}) {
    Generator generator(2);
    const ImageShape shape{2, 5, 6};
    Convolution<double> convolution(shape, 3, 4, padding);
    Layer<double> layer = random_layer(convolution.patch_size(), 3, generator);
    Matrix<double> input = random_matrix(2, 2 * shape.pixels(), generator);
    Matrix<double> output, input_gradient;
    convolution.forward(layer, input, output);
    const Matrix<double> slope = random_matrix(output.rows(), output.cols(), generator);
    convolution.backward(layer, slope);
    convolution.input_gradient(layer, slope, input_gradient);
    const auto loss = [&] {
      convolution.forward(layer, input, output);
      return dot(slope, output);
    };
    check_gradient(layer.weight, layer.weight_gradient, loss);
    check_gradient(layer.bias, layer.bias_gradient, loss);
    check_gradient(input, input_gradient, loss);
  }
}

TEST_CASE("average pooling takes the mean of four and leaves an odd edge out") {
  AveragePooling<double> pooling({2, 3, 5});
  CHECK(pooling.output() == ImageShape{2, 1, 2});
  Matrix<double> input = Matrix<double>::Constant(2, 15, 99), output;
  for (const Eigen::Index pixel : {0, 1, 5, 6}) input.col(pixel) << static_cast<double>(pixel), 1;
  for (const Eigen::Index pixel : {2, 3, 7, 8}) input.col(pixel) << static_cast<double>(pixel), -1;
  pooling.forward(input, output);
  REQUIRE(output.rows() == 2);
  REQUIRE(output.cols() == 2);
  CHECK(output(0, 0) == 3);
  CHECK(output(0, 1) == 5);
  CHECK(output(1, 0) == 1);
  CHECK(output(1, 1) == -1);
}

TEST_CASE("average pooling's gradient is the slope of its output") {
  for (const ImageShape& shape : {ImageShape{3, 4, 6}, ImageShape{2, 5, 3}}) {
    Generator generator(3);
    const AveragePooling<double> pooling(shape);
    Matrix<double> input = random_matrix(shape.channels, 2 * shape.pixels(), generator);
    Matrix<double> output;
    Matrix<double> input_gradient = Matrix<double>::Constant(input.rows(), input.cols(), 7);
    pooling.forward(input, output);
    const Matrix<double> slope = random_matrix(output.rows(), output.cols(), generator);
    pooling.input_gradient(slope, input_gradient);
    check_gradient(input, input_gradient, [&] {
      pooling.forward(input, output);
      return dot(slope, output);
    });
  }
}

TEST_CASE("a dense layer with its activation: output and gradients") {
  Generator generator(4);
  Layer<double> layer = random_layer(7, 5, generator);
  Matrix<double> input = random_matrix(7, 3, generator);
  Matrix<double> output;
  const auto forward = [&] {
    dense::forward<double>(layer, input, output);
    activate<double>(output);
  };
  forward();
  for (Eigen::Index sample = 0; sample < 3; ++sample) {
    for (Eigen::Index out = 0; out < 5; ++out) {
      double expected = layer.bias(out);
      for (Eigen::Index in = 0; in < 7; ++in) expected += layer.weight(out, in) * input(in, sample);
      CHECK(std::abs(output(out, sample) - std::tanh(expected)) < 1e-12);
    }
  }
  const Matrix<double> slope = random_matrix(5, 3, generator);
  Matrix<double> gradient = slope;
  Matrix<double> input_gradient;
  activation_gradient<double>(output, gradient);
  dense::backward<double>(layer, input, gradient);
  dense::input_gradient<double>(layer, gradient, input_gradient);
  const auto loss = [&] {
    forward();
    return dot(slope, output);
  };
  check_gradient(layer.weight, layer.weight_gradient, loss);
  check_gradient(layer.bias, layer.bias_gradient, loss);
  check_gradient(input, input_gradient, loss);
}

TEST_CASE("softmax cross entropy: value and gradient") {
  Generator generator(5);
  Matrix<double> logits = 3 * random_matrix(10, 4, generator);
  const std::array<std::uint8_t, 4> labels{9, 0, 3, 3};
  Matrix<double> gradient, unused;
  const double loss = softmax_cross_entropy<double>(logits, labels, gradient);
  double expected = 0;
  for (Eigen::Index i = 0; i < 4; ++i) {
    expected -= std::log(std::exp(logits(labels[static_cast<std::size_t>(i)], i)) / logits.col(i).array().exp().sum());
  }
  CHECK(std::abs(loss - expected / 4) < 1e-12);
  check_gradient(logits, gradient, [&] { return softmax_cross_entropy<double>(logits, labels, unused); });
}

TEST_CASE("softmax cross entropy stays finite where exponentials overflow") {
  Matrix<float> logits = Matrix<float>::Zero(10, 2);
  logits(3, 0) = 1e4F;
  logits(7, 1) = -1e4F;
  const std::array<std::uint8_t, 2> labels{3, 7};
  Matrix<float> gradient;
  CHECK(softmax_cross_entropy<float>(logits, labels, gradient) == doctest::Approx(5000).epsilon(1e-3));
  CHECK(gradient.allFinite());
  CHECK(gradient(3, 0) == 0);
  CHECK(gradient(7, 1) == -0.5F);
}

TEST_CASE("the mean loss of many equal samples is that of one") {
  Generator generator(1);
  const Matrix<float> one = random_matrix(64, 1, generator).cast<float>();
  const Matrix<float> logits = one.replicate(1, 5'000);
  const std::vector<std::uint8_t> labels(5'000, 3);
  Matrix<float> gradient;
  const auto loss = softmax_cross_entropy<float>(one, std::span(labels).first(1), gradient);
  CHECK(softmax_cross_entropy<float>(logits, labels, gradient) == loss);
}

TEST_CASE("the gradient of a bias is the sum of its slopes, rounded once") {
  Layer<float> layer("layer", 1, 2, *std::make_unique<Generator>(1));
  Matrix<float> slope = Matrix<float>::Ones(2, 100'000), input = Matrix<float>::Ones(1, 100'000);
  slope.col(0).setConstant(1e8F);
  dense::backward<float>(layer, input, slope);
  CHECK(layer.bias_gradient(0) == 100'099'999.0F);
  CHECK(layer.bias_gradient(1) == 100'099'999.0F);
}

TEST_CASE("the hyperbolic tangent is exact to 2.5 units in the last place") {
  Matrix<float> values(1, 40'001);
  for (Eigen::Index i = 0; i < values.size(); ++i) values(i) = static_cast<float>(i - 20'000) * 6e-4F;
  const Matrix<double> exact = values.cast<double>().array().tanh();
  activate<float>(values);
  double worst = 0;
  for (Eigen::Index i = 0; i < values.size(); ++i) {
    const auto unit = std::abs(std::nextafter(static_cast<float>(exact(i)), 2.0F) - static_cast<float>(exact(i)));
    worst = std::max(worst, std::abs(static_cast<double>(values(i)) - exact(i)) / static_cast<double>(unit));
  }
  CHECK(worst <= 2.5);
}

}  // namespace layers_test
