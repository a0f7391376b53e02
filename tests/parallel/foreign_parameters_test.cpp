// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// What wrappers of frameworks need: element types of run time, gradients and tensors in memory of the framework's.
#include <doctest/doctest.h>

#include <algorithm>

#include "stages.hpp"

namespace {

using Any = distx::Span<distx::AnyElement>;
using Foreign = distx::Parameter<distx::AnyElement>;

constexpr std::size_t lengths[] = {33, 5, 120};
constexpr distx::ElementType types[] = {distx::ElementType::f32, distx::ElementType::f64, distx::ElementType::bf16};

template <class T>
void write(Any span, double first) {
  auto* values = static_cast<T*>(span.data());
  for (std::size_t i = 0; i < span.size(); ++i) values[i] = T(static_cast<float>(first + static_cast<double>(i) / 64));
}
void write(Any span, double first) {
  if (span.type() == distx::ElementType::f32) write<float>(span, first);
  if (span.type() == distx::ElementType::f64) write<double>(span, first);
  if (span.type() == distx::ElementType::bf16) write<distx::bfloat16>(span, first);
}

std::vector<std::byte> bytes(distx::Span<const distx::AnyElement> span) {
  return {span.bytes(), span.bytes() + span.size_bytes()};
}

/// A gradient in memory that is not distx's.
struct Outside {
  std::vector<std::byte> memory;
  Any span;
  Outside(std::size_t size, distx::ElementType type)
      : memory(size * distx::size_of(type)), span(memory.data(), size, type, distx::size_of(type)) {}
};

template <class T>
Any any(std::vector<T>& values) {
  return distx::Span<T>(values);
}

std::string name(std::size_t i) { return "layer" + std::to_string(i) + ".weight"; }

/// Weights after three steps of parameters of types known at run time; `ready(training, parameter, i, first)` gives
/// parameter i a gradient that begins with `first`.
template <class Ready>
std::vector<std::vector<std::byte>> train(distx::ThreadCommunicator& comm, int stage, Ready&& ready) {
  std::vector<Foreign> model;
  for (std::size_t i = 0; i < 3; ++i)
    model.emplace_back(name(i), types[i], lengths[i], [i](Any values) { write(values, static_cast<double>(i)); });
  stages::Training training(comm, model, distx::AdamW{}, {.stage = stage});
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 3; i-- > 0;) ready(training, model[i], i, 0.25 * (step + 1) * (comm.rank() + 1));
    training.step({.learning_rate = 0.1});
  }
  std::vector<std::vector<std::byte>> weights;
  training.for_each_full_weight([&](const std::string&, auto values) { weights.push_back(bytes(values)); });
  return weights;
}

}  // namespace

TEST_CASE("parameters of run-time types, and gradients that are added, train to the bits of typed ones") {
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    distx::Parameter<float> a(name(0), lengths[0], [](distx::Span<float> v) { write<float>(v, 0); });
    distx::Parameter<double> b(name(1), lengths[1], [](distx::Span<double> v) { write<double>(v, 1); });
    distx::Parameter<distx::bfloat16> c(name(2), lengths[2], [](auto v) { write<distx::bfloat16>(v, 2); });
    distx::ParameterList<> list;
    distx::DataParallel<> typed(comm, list.add(a).add(b).add(c), distx::AdamW{});
    for (int step = 0; step < 3; ++step) {
      const double first = 0.25 * (step + 1) * (comm.rank() + 1);
      write<distx::bfloat16>(typed.gradient(c), first);
      write<double>(typed.gradient(b), first);
      write<float>(typed.gradient(a), first);
      typed.ready(c, b, a);
      typed.step({.learning_rate = 0.1});
    }
    const std::vector expected{bytes(a.value()), bytes(b.value()), bytes(c.value())};
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(stage);
      CHECK(train(comm, stage, [](auto& training, const Foreign& parameter, std::size_t, double first) {
              write(training.gradient(parameter), first);
              training.ready(parameter);
            }) == expected);
      CHECK(train(comm, stage, [](auto& training, const Foreign& parameter, std::size_t i, double first) {
              Outside gradient(lengths[i], types[i]), rest(lengths[i], types[i]);
              write(gradient.span, first);
              training.add_gradient(parameter, gradient.span);
              training.add_gradient(parameter, rest.span);  // of zeros: a second one is added
              training.ready(parameter);
            }) == expected);
    }
  });
}

TEST_CASE("a borrowed parameter of a run-time type trains in place") {
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    std::vector<double> weight(7, 1), gradient(7);
    const auto entry = distx::ref("weight", any(weight), any(gradient));
    distx::DataParallel<> training(comm, distx::ParameterList<>().add(entry), distx::SGD{});
    write(training.gradient(entry), comm.rank());
    training.ready(entry);
    training.step({.learning_rate = 1});
    CHECK(weight[0] == 0.5);
    CHECK(weight[6] == 0.5 - 6.0 / 64);
  });
  std::vector<float> weight(3), gradient(3);
  std::vector<int> integers(3);
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", any(integers), any(integers))),
                       doctest::Contains("'w' is of int32; parameters are of float32, float64, bfloat16 or float16"),
                       distx::InvalidArgument);
  std::vector<double> wide(3);
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", any(weight), any(wide))),
                       doctest::Contains("'w' is of float32, but its gradient is of float64"), distx::InvalidArgument);
}

TEST_CASE("a gradient of another size or type is refused") {
  toy::on_ranks(1, [](distx::ThreadCommunicator& comm) {
    const std::vector<Foreign> model = [] {
      std::vector<Foreign> made;
      made.emplace_back("w", distx::ElementType::f32, 4, [](Any) {});
      return made;
    }();
    distx::DataParallel<> training(comm, model, distx::SGD{});
    for (const auto& wrong : {Outside(3, distx::ElementType::f32), Outside(4, distx::ElementType::f64)})
      CHECK_THROWS_WITH_AS(training.add_gradient(model[0], wrong.span),
                           doctest::Contains("the gradient of 'w' has 4 elements of float32, but "),
                           distx::InvalidArgument);
    CHECK_THROWS_WITH_AS(Foreign("w", distx::ElementType::i64, 4, [](Any) {}), doctest::Contains("'w' is of int64"),
                         distx::InvalidArgument);
  });
}

TEST_CASE("on_value follows the values at every stage") {
  for (const bool mapped : {true, false})
    for (const int stage : {0, 1, 2, 3})
      toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
        CAPTURE(stage);
        distx::Parameter<float> weight("weight", 100);
        distx::Span<float> seen;
        int calls = 0;
        weight.on_value([&](distx::Span<float> values) { seen = values, ++calls; });
        stages::Training training(comm, std::array{&weight}, distx::SGD{}, {.stage = stage, .map_weights = mapped});
        CHECK(seen.empty() == (stage == 3));
        for (int step = 0; step < 2; ++step) {
          {
            const auto whole = training.unshard(weight);
            REQUIRE(seen.size() == 100);
            CHECK(seen.data() == weight.value().data());
          }
          CHECK(seen.empty() == (stage == 3));
          static_cast<void>(training.gradient(weight));
          training.ready(weight);
          training.step({.learning_rate = 1});
        }
        training.release();
        CHECK(seen.data() == weight.value().data());
        CHECK(calls >= (stage == 3 ? 5 : 1));
      });
}

TEST_CASE("a parameter and a buffer have their shapes in the state") {
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    distx::Parameter<float> weight("conv", 24, distx::ParameterOptions{.shape = {4, 3, 2}});
    std::vector<float> mean(6);
    distx::ParameterList<> list;
    distx::DataParallel<distx::ZeRO<3>> training(comm, list.add(weight).add(distx::buffer_ref("mean", mean, {2, 3})),
                                                 distx::AdamW{});
    for (const auto& array : training.state().arrays)
      CHECK(array.shape == (array.name == "mean" ? std::vector<std::size_t>{2, 3} : std::vector<std::size_t>{4, 3, 2}));
  });
  CHECK_THROWS_WITH_AS(distx::Parameter<float>("conv", 24, distx::ParameterOptions{.shape = {4, 3}}),
                       doctest::Contains("invalid .shape = {4, 3} of 'conv': its extents must multiply to 24 elements"),
                       distx::InvalidArgument);
}

TEST_CASE("without an optimizer the user updates what owned() returns, and step is an error") {
  for (const int stage : {0, 1, 2, 3})
    toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(stage);
      distx::Parameter<float> weight("weight", 100);
      stages::Training training(comm, std::array{&weight}, distx::NoOptimizer{}, {.stage = stage});
      CHECK(training.memory().optimizer.held == 0);
      const auto add_gradient = [&] {
        for (auto& x : training.gradient(weight)) x += static_cast<float>(comm.rank());
        training.ready(weight);
      };
      add_gradient();
      training.reduce_gradients();
      for (const auto& fragment : training.owned())
        for (std::size_t i = 0; i < fragment.weight.size(); ++i)
          fragment.weights<float>()[i] -= fragment.gradients<float>()[i];
      training.gather_weights();
      {
        const auto whole = training.unshard(weight);
        for (const float x : weight.value()) CHECK(x == -0.5f);
      }
      add_gradient();
      CHECK_THROWS_WITH_AS(training.step({.learning_rate = 1}), doctest::Contains("this training has no optimizer"),
                           distx::Error);  // InvalidState, or what it revoked
    });
}

TEST_CASE("a unit that is always whole needs no scope, but in calls that change weights") {
  for (const bool mapped : {true, false})
    toy::on_ranks(3, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(mapped);
      std::vector<distx::Parameter<float>> model;
      model.emplace_back("norm.weight", 10, distx::ParameterOptions{.always_whole = true});
      model.emplace_back("norm.bias", 10);
      model.emplace_back("layer.weight", 100);
      distx::DataParallel<distx::ZeRO<3>> training(comm, model, distx::SGD{}, {.map_weights = mapped});
      CHECK_THROWS_AS(static_cast<void>(model[2].value()), distx::InvalidState);
      const auto train = [&] {
        for (const auto& p : model) {
          const auto whole = training.unshard(p);
          for (auto& x : training.gradient(p)) x += 1;
          training.ready(p);
        }
      };
      for (int step = 1; step <= 3; ++step) {
        CHECK(model[0].value()[3] == 1.0f - static_cast<float>(step));
        CHECK(training.announce_batch(true) == 3);
        train();
        if (step == 2) {
          training.reduce_gradients();
          training.update_weights({.learning_rate = 1});
          CHECK_THROWS_AS(static_cast<void>(model[1].value()), distx::InvalidState);
          training.gather_weights();
        } else {
          training.step({.learning_rate = 1});
        }
        CHECK(model[1].value()[9] == -static_cast<float>(step));
      }
      CHECK(training.announce_batch(comm.rank() != 1) == 2);  // a step in which rank 1 only takes part
      CHECK(model[1].value()[9] == -3.0f);
      if (comm.rank() != 1) train();
      training.step({.learning_rate = 3});
      CHECK(model[1].value()[9] == -5.0f);
      {
        auto average = training.ema(0.5);
        const auto swapped = average.swap_in();
        CHECK(model[0].value()[0] == -5.0f);
      }
      training.release();
      CHECK(model[2].value()[99] == -5.0f);
    });
}
