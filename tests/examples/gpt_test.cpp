// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "models/gpt.hpp"

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/gpt_sample.hpp"
#include "numeric_gradient.hpp"
#include "sealed_training.hpp"

using namespace examples;

namespace gpt_test {

namespace {

using Tokens = std::vector<Token>;

constexpr GptShape tiny{.vocabulary = 7, .context = 5, .width = 4, .layers = 2, .heads = 2};

Tokens random_tokens(std::size_t count, std::size_t vocabulary, Generator& generator) {
  Tokens tokens(count);
  for (auto& token : tokens) token = static_cast<Token>(below(generator, vocabulary));
  return tokens;
}

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("its parameters have names, GPT-2's number, and no decay for biases and norms") {
  const BasicGpt<double> model({.vocabulary = 96, .context = 64, .width = 32, .layers = 3, .heads = 4}, 1);
  std::size_t size = 0;
  std::vector<std::string> names;
  for (const auto* parameter : model.parameters()) {
    size += parameter->size();
    names.push_back(parameter->name());
    const bool weight = parameter->name().ends_with(".weight") || parameter->name().starts_with("embedding.");
    CHECK(parameter->options().group.weight_decay.has_value() != weight);
    CHECK(parameter->options().uses == (parameter->name() == "embedding.tokens" ? 2 : 1));
  }
  CHECK(size == (96 + 64) * 32 + 3 * (12 * 32 * 32 + 13 * 32) + 2 * 32);
  REQUIRE(names.size() == 2 + 3 * 12 + 2);
  CHECK(names[0] == "embedding.tokens");
  CHECK(names[2] == "block0.norm1.scale");
  CHECK(names[4] == "block0.projections.weight");
  CHECK(names.back() == "norm.shift");
}

TEST_CASE("every gradient is the slope of the loss, the tied one that of both uses") {
  Generator generator(1);
  BasicGpt<double> model(tiny, 1);
  SealedTraining<double> training(model.parameters());
  training.randomize(generator);
  const Tokens tokens = random_tokens(8, 7, generator), targets = random_tokens(8, 7, generator);
  const auto loss = [&] { return model.forward(tokens, targets, 4, training); };
  for (const double share : {1.0, 0.25}) {
    loss();
    model.backward(training, share);
    for (const auto* parameter : model.parameters()) {
      CAPTURE(parameter->name());
      check_gradient(training.values(*parameter), training.gradient(*parameter), [&] { return share * loss(); });
    }
    training.finish();
    // The first gradient of the next step is zero.
    for (const auto* parameter : model.parameters()) CHECK(parameter->gradient()[0] == 0);
  }
}

TEST_CASE("a later token changes nothing before it, and something after it") {
  Generator generator(2);
  BasicGpt<double> model(tiny, 1);
  SealedTraining<double> training(model.parameters());
  training.randomize(generator);
  Tokens tokens = random_tokens(10, 7, generator);
  const Matrix<double> before = model.logits(tokens, 5, training);
  for (const std::size_t changed : {2U, 4U, 5U, 7U}) {
    Tokens others = tokens;
    others[changed] = static_cast<Token>((others[changed] + 1) % 7);
    const Matrix<double>& after = model.logits(others, 5, training);
    for (std::size_t i = 0; i < 10; ++i) {
      const auto column = static_cast<Eigen::Index>(i);
      const bool reached = i / 5 == changed / 5 && i >= changed;
      CHECK((before.col(column) != after.col(column)) == reached);
    }
  }
}

TEST_CASE("a shorter sequence is guessed as the beginning of a longer one") {
  Generator generator(3);
  BasicGpt<double> model(tiny, 1);
  SealedTraining<double> training(model.parameters());
  training.randomize(generator);
  const Tokens tokens = random_tokens(5, 7, generator);
  const Matrix<double> whole = model.logits(tokens, 5, training);
  for (std::size_t length = 1; length <= 5; ++length) {
    const Tokens part(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(length));
    const Matrix<double>& logits = model.logits(part, length, training);
    CHECK((logits - whole.leftCols(static_cast<Eigen::Index>(length))).cwiseAbs().maxCoeff() < 1e-12);
  }
}

TEST_CASE("at first every token is about equally likely, and a seed means the same weights") {
  Generator generator(4);
  const GptShape shape{.vocabulary = 90, .context = 16, .width = 32, .layers = 2, .heads = 4};
  const Tokens tokens = random_tokens(64, 90, generator), targets = random_tokens(64, 90, generator);
  std::vector<double> losses;
  for (const std::uint64_t seed : {1U, 1U, 2U}) {
    BasicGpt<double> model(shape, seed);
    SealedTraining<double> training(model.parameters());
    losses.push_back(model.forward(tokens, targets, 16, training));
    CHECK(std::abs(losses.back() - std::log(90.0)) < 0.05);
  }
  CHECK(losses[0] == losses[1]);
  CHECK(losses[0] != losses[2]);
}

TEST_CASE("in bfloat16 the loss and the gradients are nearly those in double") {
  Generator generator(5);
  BasicGpt<distx::bfloat16> coarse(tiny, 1);
  BasicGpt<double> fine(tiny, 1);
  SealedTraining<distx::bfloat16> coarse_training(coarse.parameters());
  SealedTraining<double> fine_training(fine.parameters());
  coarse_training.randomize(generator);
  const auto coarse_parameters = coarse.parameters();
  const auto fine_parameters = fine.parameters();
  for (std::size_t i = 0; i < fine_parameters.size(); ++i) {
    const auto& values = coarse_training.values(*coarse_parameters[i]);
    fine_training.values(*fine_parameters[i]).assign(values.begin(), values.end());  // the same numbers
  }
  const Tokens tokens = random_tokens(10, 7, generator), targets = random_tokens(10, 7, generator);
  CHECK(coarse.forward(tokens, targets, 5, coarse_training) ==
        doctest::Approx(fine.forward(tokens, targets, 5, fine_training)).epsilon(1e-5));
  coarse.backward(coarse_training);
  fine.backward(fine_training);
  for (std::size_t i = 0; i < fine_parameters.size(); ++i) {
    const auto rough = coarse_training.gradient(*coarse_parameters[i]);
    const auto exact = fine_training.gradient(*fine_parameters[i]);
    for (std::size_t j = 0; j < exact.size(); ++j) {
      CAPTURE(fine_parameters[i]->name());
      CHECK(std::abs(static_cast<float>(rough[j]) - exact[j]) <= 0x1p-7 * std::abs(exact[j]) + 1e-5);
    }
  }
}

TEST_CASE("tokens are drawn by their shares, and the temperature says how strictly") {
  Vector<double> logits(4);
  logits << std::log(0.1) + 1000, std::log(0.2) + 1000, -1e9, std::log(0.7) + 1000;
  const auto counted = [&](double temperature) {
    Generator generator(7);
    std::vector<int> counts(4);
    for (int i = 0; i < 10000; ++i) ++counts.at(draw_token(logits, temperature, generator));
    return counts;
  };
  const auto plain = counted(1), strict = counted(0.5), cold = counted(0.01);
  CHECK(std::abs(plain[0] - 1000) < 150);
  CHECK(std::abs(plain[1] - 2000) < 200);
  CHECK(plain[2] == 0);
  CHECK(std::abs(strict[0] - 10000 * 0.01 / 0.54) < 80);
  CHECK(std::abs(strict[3] - 10000 * 0.49 / 0.54) < 150);
  CHECK(cold == std::vector<int>{0, 0, 0, 10000});
}

TEST_CASE("a sample continues the prompt, also beyond the context, and is determined by the seed") {
  Generator generator(8);
  BasicGpt<double> model(tiny, 1);
  SealedTraining<double> training(model.parameters());
  training.randomize(generator);
  const auto sampled = [&](const Tokens& prompt, std::size_t count, std::uint64_t seed) {
    Generator own(seed);
    return sample(model, training, prompt, count, 1.0, own);
  };
  const Tokens text = sampled({3, 1}, 20, 1);
  CHECK(text.size() == 20);
  CHECK(text == sampled({3, 1}, 20, 1));
  CHECK(text != sampled({3, 1}, 20, 2));
  CHECK(sampled({3, 1}, 7, 1) == Tokens(text.begin(), text.begin() + 7));
  CHECK(sampled({3}, 0, 1).empty());
  // No more than the context is looked at.
  CHECK(sampled({5, 1, 2, 3, 4, 5}, 9, 1) == sampled({0, 1, 2, 3, 4, 5}, 9, 1));
}

TEST_CASE("invalid shapes, tokens and lengths throw errors that say what to change") {
  Generator generator(6);
  const auto shaped = [](const GptShape& shape) { return refusal([&] { BasicGpt<double>(shape, 1); }); };
  CHECK(shaped({7, 5, 4, 2, 2}) == "");
  CHECK(shaped({1, 5, 4, 2, 2}).starts_with("Gpt: a vocabulary of 1 "));
  CHECK(shaped({257, 5, 4, 2, 2}) == "");
  for (const GptShape& shape : {GptShape{7, 0, 4, 2, 2}, {7, 5, 4, 0, 2}, {7, 5, 4, 2, 0}, {7, 5, 0, 2, 2}}) {
    CHECK(shaped(shape).ends_with("must be at least 1"));
  }
  CHECK(shaped({7, 5, 4, 2, 3}).starts_with("Gpt: a width of 4 is not divisible by 3 heads"));

  BasicGpt<double> model(tiny, 1);
  SealedTraining<double> training(model.parameters());
  const auto run = [&](const Tokens& tokens, const Tokens& targets, std::size_t length) {
    return refusal([&] { model.forward(tokens, targets, length, training); });
  };
  CHECK(run({0, 1}, {1, 2}, 2) == "");
  CHECK(run({0, 7}, {1, 2}, 2).starts_with("Gpt: token 7 is not among the 7"));
  CHECK(run({0, 1}, {1, 7}, 2).starts_with("Gpt: token 7 is not among the 7"));
  CHECK(run({0, 1, 2}, {1, 2, 3}, 2).starts_with("Gpt: 3 tokens in sequences of 2"));
  CHECK(run({}, {}, 2).starts_with("Gpt: 0 tokens"));
  CHECK(run(Tokens(6), Tokens(6), 6).starts_with("Gpt: 6 tokens in sequences of 6"));
  CHECK(run({0, 1, 2, 3}, {1, 2}, 2).starts_with("Gpt: 4 tokens and 2 targets"));

  CHECK(run({0, 1}, {1, 2}, 2) == "");
  model.backward(training);
  CHECK(refusal([&] { model.backward(training); }).starts_with("Gpt: backward() has no forward()"));
  CHECK(run({0, 1}, {1, 2}, 2) == "");
  const Tokens prompt{0};
  model.logits(prompt, 1, training);
  CHECK(refusal([&] { model.backward(training); }).starts_with("Gpt: backward() has no forward()"));
}

}  // namespace gpt_test
