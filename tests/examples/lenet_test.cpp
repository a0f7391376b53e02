// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "models/lenet.hpp"

#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "data/synthetic_digits.hpp"
#include "numeric_gradient.hpp"

using namespace examples;

namespace {

using Images = std::vector<double>;
using Labels = std::vector<std::uint8_t>;

Images random_images(const ImageShape& shape, std::size_t count, Generator& generator) {
  Images images(count * static_cast<std::size_t>(shape.size()));
  for (double& pixel : images) pixel = uniform(generator);
  return images;
}

/// With biases that are not all zero, as they are at first.
BasicLeNet<double> random_model(const ImageShape& shape, Generator& generator) {
  BasicLeNet<double> model(shape, 1);
  for (auto& layer : model.layers()) layer.bias = 0.1 * random_matrix(layer.bias.size(), 1, generator);
  return model;
}

const auto ignore = [](auto&) {};

}  // namespace

TEST_CASE("on 28 × 28 pixels it is LeNet-5") {
  LeNet model({1, 28, 28}, 1);
  const std::vector<std::string> names{"conv1", "conv2", "dense1", "dense2", "output"};
  const std::vector<Eigen::Index> sizes{6 * 25, 16 * 150, 120 * 400, 84 * 120, 10 * 84};
  Eigen::Index parameters = 0;
  REQUIRE(model.layers().size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    const auto& layer = model.layers()[i];
    CHECK(layer.name == names[i]);
    CHECK(layer.weight.size() == sizes[i]);
    CHECK(layer.weight_gradient.size() == layer.weight.size());
    CHECK(layer.bias_gradient.size() == layer.bias.size());
    parameters += layer.weight.size() + layer.bias.size();
  }
  CHECK(parameters == 61706);
}

TEST_CASE("every gradient is the slope of the loss") {
  for (const ImageShape& shape : {ImageShape{1, 8, 8}, ImageShape{1, 16, 16}, ImageShape{2, 28, 28}}) {
    CAPTURE(shape.height);
    Generator generator(7);
    BasicLeNet<double> model = random_model(shape, generator);
    const Images images = random_images(shape, 3, generator);
    const Labels labels{3, 0, 9};
    model.forward(images, labels);
    model.backward(ignore);
    for (auto& layer : model.layers()) {
      CAPTURE(layer.name);
      CHECK(layer.weight_gradient.norm() > 1e-3);
      const auto loss = [&] { return model.forward(images, labels); };
      check_gradient(layer.weight, layer.weight_gradient, loss, layer.weight.size() / 40 + 1);
      check_gradient(layer.bias, layer.bias_gradient, loss, layer.bias.size() / 20 + 1);
    }
  }
}

TEST_CASE("backward reports the layers from last to first, each when its gradients are final") {
  Generator generator(8);
  const ImageShape shape{1, 8, 8};
  BasicLeNet<double> model = random_model(shape, generator);
  model.forward(random_images(shape, 2, generator), Labels{1, 2});
  std::vector<Layer<double>> reported;
  model.backward([&](const auto& layer) { reported.push_back(layer); });
  REQUIRE(reported.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    const auto& layer = model.layers()[4 - i];
    CHECK(reported[i].name == layer.name);
    CHECK(reported[i].weight_gradient == layer.weight_gradient);
    CHECK(reported[i].bias_gradient == layer.bias_gradient);
  }
}

TEST_CASE("backward overwrites, and its arrays stay where they are") {
  Generator generator(9);
  const ImageShape shape{1, 8, 8};
  BasicLeNet<double> model = random_model(shape, generator);
  const Images images = random_images(shape, 4, generator);
  const Labels labels{1, 2, 3, 4};
  const auto places = [&] {
    std::vector<const double*> all;
    for (const auto& l : model.layers())
      all.insert(all.end(), {l.weight.data(), l.weight_gradient.data(), l.bias.data(), l.bias_gradient.data()});
    return all;
  };
  const auto at_first = places();
  model.forward(images, labels);
  model.backward(ignore);
  CHECK(places() == at_first);
  const std::vector<Layer<double>> first(model.layers().begin(), model.layers().end());
  model.forward(random_images(shape, 7, generator), Labels(7, 5));
  model.backward(ignore);
  CHECK(places() == at_first);
  CHECK(model.layers()[0].weight_gradient != first[0].weight_gradient);
  model.forward(images, labels);
  model.backward(ignore);
  CHECK(places() == at_first);
  for (std::size_t i = 0; i < 5; ++i) {
    const auto& layer = model.layers()[i];
    CHECK(layer.weight_gradient == first[i].weight_gradient);
    CHECK(layer.bias_gradient == first[i].bias_gradient);
  }
}

TEST_CASE("a batch's loss and gradients are the mean of those of its halves") {
  Generator generator(10);
  const ImageShape shape{1, 16, 16};
  BasicLeNet<double> whole = random_model(shape, generator);
  BasicLeNet<double> left = whole;
  BasicLeNet<double> right = whole;
  const Images images = random_images(shape, 6, generator);
  const Labels labels{1, 2, 3, 4, 5, 6};
  const auto half = [&](std::size_t i) { return std::span(images).subspan(i * images.size() / 2, images.size() / 2); };
  const double loss = whole.forward(images, labels);
  const double left_loss = left.forward(half(0), std::span(labels).first(3));
  const double right_loss = right.forward(half(1), std::span(labels).last(3));
  CHECK(std::abs(loss - (left_loss + right_loss) / 2) < 1e-12);
  for (auto* model : {&whole, &left, &right}) model->backward(ignore);
  for (std::size_t i = 0; i < 5; ++i) {
    const auto mean = (left.layers()[i].weight_gradient + right.layers()[i].weight_gradient) / 2;
    CHECK((whole.layers()[i].weight_gradient - mean).cwiseAbs().maxCoeff() < 1e-12);
  }
}

TEST_CASE("the seed fixes the first weights to the bit") {
  const LeNet model({1, 8, 8}, 3), again({1, 8, 8}, 3), other({1, 8, 8}, 4);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(model.layers()[i].weight == again.layers()[i].weight);
    CHECK(model.layers()[i].weight != other.layers()[i].weight);
    CHECK((model.layers()[i].bias.array() == 0).all());
  }
  Generator raw(3);
  const double first = static_cast<double>(raw() >> 11) / 9007199254740992.0;
  CHECK(model.layers()[0].weight(0, 0) == doctest::Approx((2 * first - 1) * std::sqrt(3.0 / 25)).epsilon(1e-6));
}

TEST_CASE("a copy learns alone") {
  LeNet model({1, 8, 8}, 3);
  LeNet copy = model;
  copy.layers()[0].weight.setZero();
  CHECK(model.layers()[0].weight.norm() > 0);
}

TEST_CASE("it learns digits by heart in a few steps of plain descent") {
  for (const std::size_t side : {8U, 16U, 28U}) {
    CAPTURE(side);
    const Digits digits = synthetic_digits(40, 1, side);
    const auto pixels = static_cast<Eigen::Index>(side);
    LeNet model({1, pixels, pixels}, 1);
    const float before = model.forward(digits.images, digits.labels);
    for (int step = 0; step < 250; ++step) {
      model.forward(digits.images, digits.labels);
      model.backward(ignore);
      for (auto& layer : model.layers()) {
        layer.weight -= 0.3F * layer.weight_gradient;
        layer.bias -= 0.3F * layer.bias_gradient;
      }
    }
    CHECK(before > 1.5F);
    CHECK(model.forward(digits.images, digits.labels) < 0.1F);
    CHECK(model.count_correct(digits.images, digits.labels) == 40);
    CHECK(model.predict(digits.images) == digits.labels);
  }
}

TEST_CASE("a prediction does not depend on how many are asked for at once") {
  const Digits digits = synthetic_digits(150, 2, 8);
  LeNet model({1, 8, 8}, 5);
  const std::vector<std::uint8_t> together = model.predict(digits.images);
  REQUIRE(together.size() == 150);
  std::size_t correct = 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    CHECK(model.predict(digits.image(i)) == std::vector{together[i]});
    correct += together[i] == digits.labels[i] ? 1U : 0U;
  }
  CHECK(model.count_correct(digits.images, digits.labels) == correct);
  CHECK(model.predict({}).empty());
}

TEST_CASE("invalid arguments and calls out of order throw errors that say what is wrong") {
  const auto says = [](auto&& call, const std::string& words) {
    try {
      call();
      FAIL_CHECK("nothing was thrown");
    } catch (const std::logic_error& error) {  // std::invalid_argument is one
      CHECK(std::string(error.what()).find(words) != std::string::npos);
    }
  };
  says([] { LeNet({1, 3, 28}, 1); }, "1 × 3 × 28 are too small");
  says([] { LeNet({0, 28, 28}, 1); }, "are too small");
  LeNet model({1, 8, 8}, 1);
  std::vector<float> images(128);
  says([&] { model.forward({}, {}); }, "the batch is empty");
  says([&] { model.forward(images, Labels{1}); }, "128 values are not 1 images of 64");
  says([&] { model.forward(images, Labels{1, 10}); }, "label 10 of sample 1 is not a digit");
  says([&] { static_cast<void>(model.predict(std::span(images).first(65))); }, "65 values are not a whole number");
  says([&] { static_cast<void>(model.count_correct(images, Labels{1})); }, "128 values are not 1 images");
  says([&] { model.backward(ignore); }, "backward() has no forward() to follow");
  model.forward(images, Labels{1, 2});
  static_cast<void>(model.predict(images));
  says([&] { model.backward(ignore); }, "backward() has no forward() to follow");
  model.forward(images, Labels{1, 2});
  model.backward(ignore);
  says([&] { model.backward(ignore); }, "backward() has no forward() to follow");
}
