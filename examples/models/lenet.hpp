// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "activation.hpp"
#include "average_pooling.hpp"
#include "convolution.hpp"
#include "dense.hpp"
#include "image_shape.hpp"
#include "layer.hpp"
#include "softmax_cross_entropy.hpp"

namespace examples {

/// Opens layers whose weights are always there.
struct AlwaysOpen {
  struct Scope {
    ~Scope() {}  // NOLINT: as a scope has, so that nobody is warned of an unused variable
  };
  template <class AnyLayer>
  Scope operator()(AnyLayer&) const {
    return {};
  }
};

/// LeNet-5 (LeCun et al., 1998): two convolutions with pooling, then three dense layers; tanh between them.
///
/// On 28 × 28 pixels it has the classical 61,706 parameters. Where the image is too small for the second convolution to
/// do without padding (below 12 pixels after the first pooling), that one is padded as the first is.
/// It is smooth everywhere, on purpose: rounding, and so the number of ranks, changes a training's course by rounding
/// only. ReLU and the maximum have kinks, where the last bit decides between two gradients.
/// The model owns its arrays and does not know that other ranks exist. Copies are deep. `open(layer)` is called before
/// a layer's weights are used, and what it returns is kept until they no longer are: they may be away meanwhile.
template <class Scalar>
class BasicLeNet {
 public:
  static constexpr std::size_t classes = 10;

  /// Draws the initial weights from the seed; the same seed gives the same bits everywhere.
  /// @throws std::invalid_argument if the images are below 4 × 4 pixels or have no channel
  BasicLeNet(const ImageShape& input, std::uint64_t seed) : BasicLeNet(checked(input), Generator(seed)) {}

  /// The five layers in forward order, each with name, weight, bias and their gradients.
  [[nodiscard]] std::span<Layer<Scalar>> layers() { return layers_; }
  [[nodiscard]] std::span<const Layer<Scalar>> layers() const { return layers_; }

  [[nodiscard]] const ImageShape& input() const { return input_; }

  /// Returns the mean loss over a batch of images (sample after sample, row after row) and their labels.
  /// @throws std::invalid_argument if `labels` is empty or contains a label above 9, or if the number of images differs
  ///         from the number of labels
  template <class Open = AlwaysOpen>
  Scalar forward(std::span<const Scalar> images, std::span<const std::uint8_t> labels, Open&& open = {}) {
    check(images, labels);
    infer(images, open);
    const Scalar loss = softmax_cross_entropy<Scalar>(logits_, labels, logits_gradient_);
    ran_forward_ = true;
    return loss;
  }

  /// The gradients of the loss that forward() last gave; overwrites those that were there.
  ///
  /// Calls on_ready(layer) as soon as the gradients of a layer are final, the last layer first. Its weights are still
  /// read after that.
  /// @throws std::logic_error unless forward() was called since the last backward() and prediction
  template <class OnReady, class Open = AlwaysOpen>
  void backward(OnReady&& on_ready, Open&& open = {}) {
    if (!ran_forward_) throw std::logic_error("LeNet: backward() has no forward() to follow: call forward() first");
    ran_forward_ = false;
    auto& [conv1, conv2, dense1, dense2, output] = layers_;
    {
      const auto weights = open(output);
      dense::backward<Scalar>(output, dense2_, logits_gradient_);
      on_ready(output);
      dense::input_gradient<Scalar>(output, logits_gradient_, dense2_gradient_);
      activation_gradient<Scalar>(dense2_, dense2_gradient_);
    }
    {
      const auto weights = open(dense2);
      dense::backward<Scalar>(dense2, dense1_, dense2_gradient_);
      on_ready(dense2);
      dense::input_gradient<Scalar>(dense2, dense2_gradient_, dense1_gradient_);
      activation_gradient<Scalar>(dense1_, dense1_gradient_);
    }
    {
      const auto weights = open(dense1);
      dense::backward<Scalar>(dense1, features(pool2_), dense1_gradient_);
      on_ready(dense1);
      dense::input_gradient<Scalar>(dense1, dense1_gradient_, pool2_gradient_);
      pooling2_.input_gradient(pixels(pool2_gradient_, pooling2_.output()), conv2_gradient_);
      activation_gradient<Scalar>(conv2_, conv2_gradient_);
    }
    {
      const auto weights = open(conv2);
      convolution2_.backward(conv2, conv2_gradient_);
      on_ready(conv2);
      convolution2_.input_gradient(conv2, conv2_gradient_, pool1_gradient_);
      pooling1_.input_gradient(pool1_gradient_, conv1_gradient_);
      activation_gradient<Scalar>(conv1_, conv1_gradient_);
    }
    convolution1_.backward(conv1, conv1_gradient_);
    on_ready(conv1);
  }

  /// The likeliest digit of each image.
  /// @throws std::invalid_argument if the images do not divide into whole ones
  template <class Open = AlwaysOpen>
  [[nodiscard]] std::vector<std::uint8_t> predict(std::span<const Scalar> images, Open&& open = {}) {
    const std::size_t size = image_size();
    if (images.size() % size != 0) {
      throw std::invalid_argument("LeNet: " + std::to_string(images.size()) +
                                  " values are not a whole number of images of " + std::to_string(size) +
                                  ": pass whole images");
    }
    ran_forward_ = false;
    std::vector<std::uint8_t> digits;
    digits.reserve(images.size() / size);
    while (!images.empty()) {
      const auto chunk = images.first(std::min(images.size(), predicted_at_once * size));
      images = images.subspan(chunk.size());
      infer(chunk, open);
      for (Eigen::Index sample = 0; sample < logits_.cols(); ++sample) {
        Eigen::Index digit = 0;
        logits_.col(sample).maxCoeff(&digit);
        digits.push_back(static_cast<std::uint8_t>(digit));
      }
    }
    return digits;
  }

  /// How many of the images are predicted as labelled; the accuracy is that divided by their number.
  /// @throws std::invalid_argument as predict() does, and if the labels are more or fewer than the images
  template <class Open = AlwaysOpen>
  [[nodiscard]] std::size_t count_correct(std::span<const Scalar> images, std::span<const std::uint8_t> labels,
                                          Open&& open = {}) {
    const std::vector<std::uint8_t> digits = predict(images, open);
    if (digits.size() != labels.size()) throw counts_differ(images.size(), labels.size());
    std::size_t correct = 0;
    for (std::size_t i = 0; i < labels.size(); ++i) correct += digits[i] == labels[i] ? 1U : 0U;
    return correct;
  }

 private:
  static constexpr Eigen::Index kernel = 5;
  static constexpr Eigen::Index same = kernel / 2;      // the padding that keeps the size
  static constexpr std::size_t predicted_at_once = 64;  // bounds the memory that a prediction takes

  BasicLeNet(const ImageShape& input, Generator generator)
      : input_(input),
        convolution1_(input, 6, kernel, same),
        pooling1_(convolution1_.output()),
        convolution2_(pooling1_.output(), 16, kernel, padding_of_second(pooling1_.output())),
        pooling2_(convolution2_.output()),
        layers_{Layer<Scalar>("conv1", convolution1_.patch_size(), 6, generator),
                Layer<Scalar>("conv2", convolution2_.patch_size(), 16, generator),
                Layer<Scalar>("dense1", pooling2_.output().size(), 120, generator),
                Layer<Scalar>("dense2", 120, 84, generator), Layer<Scalar>("output", 84, classes, generator)} {}

  static constexpr Eigen::Index padding_of_second(const ImageShape& shape) {
    return std::min(shape.height, shape.width) < 12 ? same : 0;
  }

  static const ImageShape& checked(const ImageShape& shape) {
    if (shape.channels < 1 || shape.height < 4 || shape.width < 4) {
      throw std::invalid_argument("LeNet: images of " + std::to_string(shape.channels) + " × " +
                                  std::to_string(shape.height) + " × " + std::to_string(shape.width) +
                                  " are too small: give at least 1 channel and 4 × 4 pixels");
    }
    return shape;
  }

  [[nodiscard]] std::size_t image_size() const { return static_cast<std::size_t>(input_.size()); }

  [[nodiscard]] std::invalid_argument counts_differ(std::size_t values, std::size_t labels) const {
    return std::invalid_argument("LeNet: " + std::to_string(values) + " values are not " + std::to_string(labels) +
                                 " images of " + std::to_string(image_size()) + ": pass one image for each label");
  }

  void check(std::span<const Scalar> images, std::span<const std::uint8_t> labels) const {
    if (labels.empty()) throw std::invalid_argument("LeNet: the batch is empty: pass at least one image");
    if (images.size() != labels.size() * image_size()) throw counts_differ(images.size(), labels.size());
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] >= classes) {
        throw std::invalid_argument("LeNet: label " + std::to_string(labels[i]) + " of sample " + std::to_string(i) +
                                    " is not a digit: pass 0 to 9");
      }
    }
  }

  /// The same memory, one sample a column.
  Eigen::Map<const Matrix<Scalar>> features(const Matrix<Scalar>& pixels) const {
    const Eigen::Index size = pooling2_.output().size();
    return {pixels.data(), size, pixels.size() / size};
  }

  /// The same memory, one pixel a column.
  static Eigen::Map<const Matrix<Scalar>> pixels(const Matrix<Scalar>& features, const ImageShape& shape) {
    return {features.data(), shape.channels, features.size() / shape.channels};
  }

  /// From images to logits.
  template <class Open>
  void infer(std::span<const Scalar> images, Open&& open) {
    auto& conv1 = layers_[0];
    auto& conv2 = layers_[1];
    auto& dense1 = layers_[2];
    auto& dense2 = layers_[3];
    auto& output = layers_[4];
    const auto values = static_cast<Eigen::Index>(images.size());
    const auto with = [&](Layer<Scalar>& layer, auto&& use) {
      const auto weights = open(layer);
      use();
    };
    with(conv1, [&] {
      const Eigen::Map<const Matrix<Scalar>> input(images.data(), input_.channels, values / input_.channels);
      convolution1_.forward(conv1, input, conv1_);
    });
    activate<Scalar>(conv1_);
    pooling1_.forward(conv1_, pool1_);
    with(conv2, [&] { convolution2_.forward(conv2, pool1_, conv2_); });
    activate<Scalar>(conv2_);
    pooling2_.forward(conv2_, pool2_);
    with(dense1, [&] { dense::forward<Scalar>(dense1, features(pool2_), dense1_); });
    activate<Scalar>(dense1_);
    with(dense2, [&] { dense::forward<Scalar>(dense2, dense1_, dense2_); });
    activate<Scalar>(dense2_);
    with(output, [&] { dense::forward<Scalar>(output, dense2_, logits_); });
  }

  ImageShape input_;
  Convolution<Scalar> convolution1_;
  AveragePooling<Scalar> pooling1_;
  Convolution<Scalar> convolution2_;
  AveragePooling<Scalar> pooling2_;
  std::array<Layer<Scalar>, 5> layers_;
  Matrix<Scalar> conv1_, pool1_, conv2_, pool2_, dense1_, dense2_, logits_;
  Matrix<Scalar> conv1_gradient_, pool1_gradient_, conv2_gradient_, pool2_gradient_;
  Matrix<Scalar> dense1_gradient_, dense2_gradient_, logits_gradient_;
  bool ran_forward_ = false;
};

using LeNet = BasicLeNet<float>;

}  // namespace examples
