// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/observe/timeline.hpp>
#include <distx/parallel/layers/experts.hpp>
#include <distx/parallel/layers/recomputed.hpp>
#include <distx/parallel/layers/transformer_block.hpp>
#include <distx/parallel/mesh_parallel.hpp>
#include <distx/tensor.hpp>

#include <functional>
#include <numeric>

#include "toy.hpp"

namespace experts_test {

namespace {

using distx::layers::Routed;
using distx::layers::RouterSettings;

struct Data {};
struct Experts {};
struct Context {};
struct Model {};
using Grid = distx::Mesh<Data, Experts, Context, Model>;
using Sizes = std::array<int, 4>;
using Split = distx::layers::TensorParallel<Grid, Data, Model, false, distx::Host, Context, Experts>;
template <class T>
using Layer = distx::layers::ParallelExperts<T, Split>;
template <class T>
using Tokens = Split::tensor<T, 3, Split::tokens>;

struct At {
  double seed;
  double size = 0.4;
  template <std::size_t Rank>
  double operator()(const std::array<std::size_t, Rank>& index) const {
    double at = seed;
    for (const auto i : index) at = 1.7 * at + static_cast<double>(i);
    return size * std::sin(at);
  }
};

constexpr std::size_t batch = 8, length = 4, width = 12, inner = 10;

template <class T>
Layer<T> layer_of(const Grid& mesh, std::size_t experts, const std::shared_ptr<const RouterSettings>& settings,
                  const std::string& name = "experts") {
  return {name, mesh, width, inner, experts, At{1, 0.6}, At{2}, At{3}, settings};
}
template <class L>
distx::TensorParameterList<> weights_of(const std::vector<L>& all) {
  distx::TensorParameterList<> list;
  for (const auto& each : all) each.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
  return list;
}
/// Sequences `first`, `first` + 1, … of a batch.
template <class T>
Tokens<T> tokens_of(const Grid& mesh, std::size_t sequences, std::size_t first, double seed) {
  return distx::generate<T, Split::tokens>(mesh, {sequences, length, width}, [=](distx::Extents<3> index) {
    index[0] += first;
    return static_cast<T>(At{seed, 1.0}(index));
  });
}

using Words = std::vector<std::vector<float>>;

struct Run {
  Sizes sizes;
  std::size_t experts = 8;
  std::size_t micro_batches = 1;
  RouterSettings settings{};
  bool recompute = false;
};

template <class Block, class Make>
std::vector<Block> stack(const Grid& mesh, Make make) {
  std::vector<Block> all;
  struct {
    At projections{5}, output{6};
  } initial;
  for (const char* const name : {"block0", "block1"})
    all.emplace_back(name, mesh, width, std::size_t{4}, initial, make(name));
  return all;
}

/// Returns the weights after three steps.
template <int Stage, class Block = distx::layers::TransformerBlock<float, Split, Layer<float>>>
Words trained(Run run) {
  Words found;
  const Sizes& s = run.sizes;
  toy::on_ranks(s[0] * s[1] * s[2] * s[3], [&](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, s);
    auto settings = std::make_shared<RouterSettings>(run.settings);
    settings->loss_share = 1.0 / static_cast<double>(run.micro_batches);
    const auto all = stack<Block>(
        mesh, [&](const std::string& name) { return layer_of<float>(mesh, run.experts, settings, name + ".experts"); });
    distx::MeshParallel<Data, distx::ZeRO<Stage>, distx::Accumulate<distx::Sharded>> training(
        mesh, weights_of(all), distx::SGD{}, {.bucket_bytes = 4096});
    const std::size_t each = batch / run.micro_batches;
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < run.micro_batches; ++i) {
        const auto part = training.micro_batch({.index = i, .count = run.micro_batches});
        auto x = tokens_of<float>(mesh, each, i * each, 7 + step);
        std::vector<decltype(all[0].forward(std::move(x), training).activations)> kept;
        for (const auto& block : all) {
          auto [output, activations] = block.forward(std::move(x), training);
          x = std::move(output);
          kept.push_back(std::move(activations));
        }
        auto gradient = tokens_of<float>(mesh, each, i * each, 23 + step);
        // Shares of a mean: exact, because they are powers of two.
        for (float& value : gradient.local()) value *= 1.0F / batch * static_cast<float>(s[0]);
        for (std::size_t b = all.size(); b-- > 0;) gradient = all[b].backward(std::move(kept[b]), gradient, training);
      }
      training.step({.learning_rate = 0.005});
    }
    const auto scope = training.evaluate();
    for (const auto& block : all)
      block.for_each_parameter([&](const auto& parameter) {
        const auto whole_part = training.unshard(parameter);
        const auto whole = distx::gather(parameter, 0);
        if (comm.rank() == 0) found.emplace_back(whole.values().begin(), whole.values().end());
      });
  });
  return found;
}

/// The largest difference, relative to the largest weight: small ones are sums of which much cancels.
double distance(const Words& a, const Words& b) {
  double most = 0, size = 0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t k = 0; k < a[i].size(); ++k) {
      most = std::max(most, std::abs(static_cast<double>(a[i][k]) - static_cast<double>(b[i][k])));
      size = std::max(size, std::abs(static_cast<double>(b[i][k])));
    }
  return most / size;
}

/// The loss that backward passes differentiate: a product with the output, and the router's own losses.
struct Loss {
  double value = 0;
  std::vector<std::vector<double>> gradients;  // of the input and of all weights
};
/// @param change  added to element `at` of the input (0), the gate (1), wide (2) or narrow (3)
Loss loss_of(const RouterSettings& chosen, std::size_t experts, std::size_t of, std::size_t at, double change) {
  Loss loss;
  toy::on_ranks(1, [&](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, {1, 1, 1, 1});
    auto settings = std::make_shared<RouterSettings>(chosen);
    settings->loss_share = 0.5;
    settings->on_routed = [&](const Routed& routed) {
      loss.value += 0.5 * (settings->balance * routed.balance + settings->z * routed.z);
    };
    const auto changed = [&](std::size_t which, double seed, double size) {
      return [=, element = std::size_t{0}](const auto& index) mutable {
        const double value = At{seed, size}(index);
        return element++ == at && which == of ? value + change : value;
      };
    };
    Layer<double> layer("experts", mesh, width, inner, experts, changed(1, 1, 0.6), changed(2, 2, 0.4),
                        changed(3, 3, 0.4), settings);
    distx::TensorParameterList<> list;
    layer.for_each_parameter([&](const auto& parameter) { list.add(parameter); });
    distx::MeshParallel<Data, distx::ZeRO<0>> training(mesh, list, distx::SGD{});
    auto x = tokens_of<double>(mesh, 2, 0, 9);
    if (of == 0) x.local()[at] += change;
    auto slope = tokens_of<double>(mesh, 2, 0, 31);
    auto [output, kept] = layer.forward(x, training);
    CHECK(training.memory().activations.held == kept.bytes());
    for (std::size_t i = 0; i < slope.local().size(); ++i) loss.value += output.local()[i] * slope.local()[i];
    const auto of_x = layer.backward(std::move(kept), slope, training);
    CHECK(training.memory().activations.held == 0);
    loss.gradients.emplace_back(of_x.local().begin(), of_x.local().end());
    std::vector<std::vector<double>> before;
    layer.for_each_parameter(
        [&](const auto& weight) { before.emplace_back(weight.local().begin(), weight.local().end()); });
    training.step({.learning_rate = 1});
    std::size_t i = 0;
    layer.for_each_parameter([&](const auto& weight) {
      auto& gradient = loss.gradients.emplace_back(before[i++]);
      for (std::size_t k = 0; k < gradient.size(); ++k) gradient[k] -= weight.local()[k];
    });
  });
  return loss;
}
void check_gradients(const RouterSettings& settings, std::size_t experts) {
  const auto exact = loss_of(settings, experts, 9, 0, 0);
  constexpr double step = 1e-6;
  for (std::size_t of = 0; of < 4; ++of)
    for (std::size_t at = 0; at < exact.gradients[of].size(); at += 7) {
      INFO("element ", at, " of ", of);
      const double slope =
          (loss_of(settings, experts, of, at, step).value - loss_of(settings, experts, of, at, -step).value) /
          (2 * step);
      CHECK(exact.gradients[of][at] == doctest::Approx(slope).epsilon(1e-5).scale(1e-3));
    }
}

std::vector<std::uint64_t> sizes_of(const std::vector<float>& logits, std::size_t experts,
                                    const RouterSettings& settings) {
  return distx::detail::Routing<float>({distx::Span<const float>(logits), logits.size() / experts, experts}, settings)
      .sizes();
}

}  // namespace

TEST_CASE("the gradients of experts, of the gate and of its losses are the slopes of the loss") {
  check_gradients({.experts_per_token = 1, .balance = 0.3, .z = 0.2}, 4);
  check_gradients({.experts_per_token = 2, .balance = 0.3, .z = 0.2}, 4);
  check_gradients({.experts_per_token = 3, .capacity = 0.7, .balance = 0, .z = 0}, 3);
}

TEST_CASE("experts on several ranks train to the bits of one process with a micro-batch for each rank") {
  for (const RouterSettings& settings :
       {RouterSettings{}, RouterSettings{.experts_per_token = 1}, RouterSettings{.capacity = 0.8}}) {
    const auto two = trained<0>({{1, 1, 1, 1}, 8, 2, settings});
    REQUIRE(two.size() == 2 * 11);
    CHECK(trained<0>({{1, 2, 1, 1}, 8, 1, settings}) == two);
    CHECK(trained<3>({{1, 2, 1, 1}, 8, 1, settings}) == two);
    CHECK(trained<0>({{1, 4, 1, 1}, 8, 1, settings}) == trained<0>({{1, 1, 1, 1}, 8, 4, settings}));
  }
  // Not equally many for each rank, and none for some.
  CHECK(trained<0>({{1, 4, 1, 1}, 6}) == trained<0>({{1, 1, 1, 1}, 6, 4}));
  CHECK(trained<1>({{1, 4, 1, 1}, 3}) == trained<0>({{1, 1, 1, 1}, 3, 4}));
}
TEST_CASE("recomputed experts have the same bits") {
  using Block = distx::layers::Recomputed<distx::layers::TransformerBlock<float, Split, Layer<float>>>;
  CHECK(trained<0, Block>({{1, 2, 1, 1}}) == trained<0>({{1, 2, 1, 1}}));
}
TEST_CASE("experts with other axes train to the weights of one process") {
  // The balance loss is a product of means over one rank's tokens, so it differs where an axis divides them.
  const RouterSettings settings{.balance = 0};
  const auto one = trained<0>({{1, 1, 1, 1}, 8, 1, settings});
  for (const Sizes& sizes : {Sizes{2, 1, 1, 1},
                             {1, 2, 1, 1},
                             {2, 2, 1, 1},
                             {1, 1, 2, 1},
                             {1, 1, 1, 2},
                             {1, 2, 1, 2},
                             {1, 2, 2, 1},
                             {2, 2, 1, 2}}) {
    INFO(sizes[0], " x ", sizes[1], " x ", sizes[2], " x ", sizes[3]);
    CHECK(distance(trained<0>({sizes, 8, 1, settings}), one) < 1e-6);
    CHECK(trained<2>({sizes, 8, 1, settings}) == trained<0>({sizes, 8, 1, settings}));
    CHECK(trained<3>({sizes, 8, 1, settings}) == trained<0>({sizes, 8, 1, settings}));
  }
  const RouterSettings balanced{.balance = 0.5};
  const auto whole = trained<0>({{1, 1, 1, 1}, 8, 1, balanced});
  CHECK(distance(trained<0>({{1, 1, 1, 2}, 8, 1, balanced}), whole) < 1e-6);
  CHECK(distance(whole, one) > 1e-4);
}

TEST_CASE("an expert takes its capacity: first choices first, and each in the order of tokens") {
  const std::vector<float> logits = {3, 2, 0,  //
                                     3, 2, 0,  //
                                     2, 3, 0,  //
                                     2, 3, 0};
  CHECK(sizes_of(logits, 3, {}) == std::vector<std::uint64_t>{4, 4, 0});
  // At most ceil(0.75 * 8 / 3) = 2 choices: all first ones, and no second one.
  const RouterSettings tight{.capacity = 0.75};
  CHECK(sizes_of(logits, 3, tight) == std::vector<std::uint64_t>{2, 2, 0});
  const distx::detail::Routing<float> routing({distx::Span<const float>(logits), 4, 3}, tight);
  CHECK(routing.report("block0").to_string() == "block0: 2 2 0 tokens for the experts, 4 dropped");
  const float rows[] = {10, 20, 30, 40};
  const auto sent = routing.rows(rows, 1);
  CHECK(std::vector(sent.data(), sent.data() + sent.size()) == std::vector<float>{10, 20, 30, 40});
  // Equal probabilities: the experts of lower numbers.
  CHECK(sizes_of({1, 1, 1, 1, 1, 1}, 3, {}) == std::vector<std::uint64_t>{2, 2, 0});
  const std::vector<float> equal(12, 1);
  CHECK(distx::detail::Routing<float>({distx::Span<const float>(equal), 4, 3}, {.experts_per_token = 3})
            .report("")
            .balance == doctest::Approx(1));
  CHECK(sizes_of({NAN, NAN, NAN}, 3, {}) == std::vector<std::uint64_t>{1, 1, 0});
}

TEST_CASE("rows go to their experts and back") {
  toy::on_ranks(3, [](distx::ThreadCommunicator& comm) {
    auto along = distx::AnyCommunicator<>(comm.share());
    const auto rank = static_cast<std::size_t>(comm.rank());
    // Of 4 experts: 1, 1 and 2 on the ranks.
    const std::vector<std::vector<std::uint64_t>> sizes{{0, 1, 2, 3}, {2, 0, 0, 1}, {1, 1, 1, 1}};
    constexpr std::array<std::size_t, 4> first{0, 1, 2, 4};
    const auto row = [](std::size_t source, std::size_t expert, std::size_t i) {
      return std::array{static_cast<double>(10 * source + expert), static_cast<double>(i)};
    };
    std::vector<double> rows;
    for (std::size_t e = 0; e < 4; ++e)
      for (std::size_t i = 0; i < sizes[rank][e]; ++i)
        for (const double value : row(rank, e, i)) rows.push_back(value);
    const distx::layers::ExpertDispatch dispatch(along, sizes[rank]);
    const auto got = dispatch.to_experts(distx::Span<const double>(rows), 2);
    std::vector<double> expected;
    const std::size_t own = first[rank + 1] - first[rank];
    REQUIRE(dispatch.blocks().size() == 3 * own);
    for (std::size_t b = 0; b < 3 * own; ++b) {
      const auto& [expert, begin, size] = dispatch.blocks()[b];
      const std::size_t source = b / own, e = first[rank] + expert;
      CHECK(expert == b % own);
      CHECK(begin == expected.size() / 2);
      CHECK(size == sizes[source][e]);
      for (std::size_t i = 0; i < size; ++i)
        for (const double value : row(source, e, i)) expected.push_back(value);
    }
    CHECK(std::vector(got.data(), got.data() + got.size()) == expected);
    CHECK(dispatch.rows() == expected.size() / 2);
    const auto back = dispatch.to_tokens(distx::Span<const double>(got.span()), 2);
    CHECK(std::vector(back.data(), back.data() + back.size()) == rows);
  });
}

TEST_CASE("a timeline has a span for each forward pass, named by the tokens of each expert") {
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, {1, 2, 1, 1});
    distx::observe::Timeline timeline;
    const auto settings = std::make_shared<RouterSettings>(RouterSettings{.capacity = 0.8});
    std::vector<std::string> names;
    settings->on_routed = [&](const Routed& routed) {
      REQUIRE(routed.of_expert.size() == 4);
      CHECK(std::accumulate(routed.of_expert.begin(), routed.of_expert.end(), routed.dropped) == 2 * length * 2);
      names.push_back("experts: " + std::to_string(routed.of_expert[0]) + " " + std::to_string(routed.of_expert[1]) +
                      " " + std::to_string(routed.of_expert[2]) + " " + std::to_string(routed.of_expert[3]) +
                      " tokens for the experts, " + std::to_string(routed.dropped) + " dropped");
      const auto scope = timeline.scope(routed.to_string());
    };
    std::vector<Layer<float>> all;
    all.push_back(layer_of<float>(mesh, 4, settings));
    distx::MeshParallel<Data, distx::ZeRO<0>> training(mesh, weights_of(all), distx::SGD{});
    for (const double seed : {1.0, 2.0})
      static_cast<void>(all[0].forward(tokens_of<float>(mesh, 4, 0, seed), training));
    std::vector<std::string> recorded;
    for (const auto& span : timeline.contents().spans) recorded.push_back(span.name);
    CHECK(names.size() == 2);
    CHECK(recorded == names);
  });
}

TEST_CASE("an error on one rank ends the forward pass of the others, while that rank keeps its communicator") {
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, {1, 2, 1, 1});
    const auto settings = std::make_shared<RouterSettings>();
    std::vector<Layer<float>> all;
    all.push_back(layer_of<float>(mesh, 4, settings));
    distx::MeshParallel<Data, distx::ZeRO<0>> training(mesh, weights_of(all), distx::SGD{});
    const auto x = tokens_of<float>(mesh, 2, 0, 1);
    const auto forward = [&] { static_cast<void>(all[0].forward(x, training)); };
    if (comm.rank() == 1) {
      settings->on_routed = [](const Routed&) { throw std::runtime_error("no more of this"); };
      CHECK_THROWS_WITH_AS(forward(), "no more of this", std::runtime_error);
    } else {
      CHECK_THROWS_WITH_AS(forward(), doctest::Contains("no more of this"), distx::RevokedError);
    }
  });
}

TEST_CASE("settings that do not fit are errors that name them") {
  toy::on_ranks(1, [](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, {1, 1, 1, 1});
    const auto settings = std::make_shared<RouterSettings>();
    CHECK_THROWS_WITH_AS(layer_of<float>(mesh, 0, settings),
                         doctest::Contains("'experts' has no experts: give at least one"), distx::InvalidArgument);
    CHECK_THROWS_WITH_AS(layer_of<float>(mesh, 4, nullptr), doctest::Contains("'experts' has no settings"),
                         distx::InvalidArgument);
    const std::vector<Layer<float>> all = [&] {
      std::vector<Layer<float>> one;
      one.push_back(layer_of<float>(mesh, 4, settings));
      return one;
    }();
    distx::MeshParallel<Data, distx::ZeRO<0>> training(mesh, weights_of(all), distx::SGD{});
    const auto x = tokens_of<float>(mesh, 1, 0, 1);
    settings->experts_per_token = 5;
    CHECK_THROWS_WITH_AS(static_cast<void>(all[0].forward(x, training)),
                         doctest::Contains("invalid .experts_per_token = 5 of 'experts': must be in [1, 4]"),
                         distx::InvalidArgument);
    settings->experts_per_token = 2;
    settings->capacity = 0;
    CHECK_THROWS_WITH_AS(static_cast<void>(all[0].forward(x, training)),
                         doctest::Contains("invalid .capacity of 'experts': must be positive"), distx::InvalidArgument);
  });
}

}  // namespace experts_test
