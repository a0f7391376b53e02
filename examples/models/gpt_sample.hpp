// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpt.hpp"

namespace examples {

/// Draws a token from the shares that logits are the logarithms of.
/// @param temperature above 0: below 1 the likely ones are drawn more often than that, above 1 less
template <class Scalar>
Token draw_token(const Vector<Scalar>& logits, double temperature, Generator& generator) {
  const Eigen::ArrayXd shares = ((logits.array() - logits.maxCoeff()).template cast<double>() / temperature).exp();
  double left = uniform(generator) * shares.sum();
  Eigen::Index token = 0;
  while (token + 1 < shares.size() && left >= shares(token)) left -= shares(token++);
  return static_cast<Token>(token);
}

/// Tokens that the model thinks may follow the prompt; all ranks that train it call this, and get the same.
/// @pre the prompt is not empty
template <class Model, class Training>
std::vector<Token> sample(Model& model, Training& training, std::vector<Token> prompt, std::size_t count,
                          double temperature, Generator& generator) {
  std::vector<Token> text = std::move(prompt);
  const std::size_t begin = text.size();
  while (text.size() < begin + count) {
    const auto seen = std::span(text).last(std::min(text.size(), model.shape().context));
    const auto& logits = model.logits(seen, seen.size(), training);
    text.push_back(draw_token<typename Model::Scalar>(logits.rightCols(1), temperature, generator));
  }
  text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin));
  return text;
}

}  // namespace examples
