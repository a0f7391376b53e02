// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <functional>
#include <map>
#include <mutex>
#include <numeric>

#include "kinds.hpp"

namespace {

/// An optimizer as a user writes it: without names for what it keeps.
struct Signs {
  static constexpr std::size_t states = 2;
  template <class T>
  [[nodiscard]] constexpr T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
  template <class T, class V>
  static constexpr void update(const T& rate, V& weight, V gradient, V& a, V& b) {
    a = gradient;
    b += gradient;
    weight -= rate * (a + b);
  }
};

struct Seen {
  std::size_t size = 0;
  std::vector<int> shares;  ///< of each element: the ranks whose share it is
};

/// Returns what all ranks share, by name, after they have checked what they hold.
template <class T, class Training, class Optimizer>
std::map<std::string, Seen> shares_of(int ranks, const Optimizer& optimizer,
                                      const distx::DataParallelOptions& options) {
  std::map<std::string, Seen> all;
  std::mutex mutex;
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    std::vector<distx::Parameter<T>> parameters;
    for (const auto& shape : kinds::shapes)
      parameters.emplace_back(
          shape.name, kinds::elements(shape),
          distx::ParameterOptions{.trainable = std::string_view(shape.name) != "b.bias", .rows = shape.rows});
    std::vector<float> mean(5);
    distx::ParameterList<> list(parameters);
    list.add(distx::buffer_ref("mean", mean));
    Training training(comm, list, optimizer, options);
    const auto state = training.state();
    const std::lock_guard lock(mutex);
    for (const auto& array : state.arrays) {
      const auto size = std::accumulate(array.shape.begin(), array.shape.end(), std::size_t{1}, std::multiplies<>());
      Seen& seen = all[array.name];
      if (seen.size == 0) seen = {size, std::vector<int>(size)};
      CHECK(seen.size == size);
      CHECK(array.offset + array.values.size() <= size);
      REQUIRE(array.share_begin + array.share_size <= array.values.size());
      for (std::size_t i = 0; i < array.share_size; ++i) ++seen.shares[array.offset + array.share_begin + i];
    }
  });
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("the ranks' shares partition every array of a training's state", Optimizer, distx::AdamW, Signs,
                   distx::LAMB, kinds::Mixture) {
  for (const int ranks : {1, 2, 3, 4})
    for (const auto& [stage, one_copy] :
         {std::pair{0, false}, {1, false}, {2, false}, {3, false}, {0, true}, {1, true}, {2, true}}) {
      CAPTURE(ranks);
      CAPTURE(stage);
      CAPTURE(one_copy);
      const auto all = shares_of<float, stages::Training>(
          ranks, Optimizer{}, {.bucket_bytes = 4096, .stage = stage, .share_weights = one_copy});
      CHECK(all.contains("mean"));
      CHECK(all.contains("b.bias"));
      for (const auto& [name, seen] : all) {
        CAPTURE(name);
        CHECK(seen.shares == std::vector<int>(seen.size, 1));
      }
    }
}

TEST_CASE("the state names the optimizer's arrays as PyTorch does, those of custom optimizers by number") {
  const auto names = [](const auto& optimizer) {
    std::string text;
    for (const auto& [name, seen] : shares_of<float, stages::Training>(2, optimizer, {.stage = 3}))
      if (name.find("optim.state.a.") == 0) text += name.substr(14) + " ";
    return text;
  };
  CHECK(names(distx::AdamW{}) == "bias.exp_avg bias.exp_avg_sq weight.exp_avg weight.exp_avg_sq ");
  CHECK(names(distx::SGD{}) == "bias.momentum_buffer weight.momentum_buffer ");
  CHECK(names(Signs{}) == "bias.state0 bias.state1 weight.state0 weight.state1 ");
  CHECK(names(kinds::Mixture{}) == "bias.exp_avg bias.exp_avg_sq weight.momentum_buffer ");
}

TEST_CASE("the state has the master weights, and with Hybrid one group has the shares") {
  using Training = distx::DataParallel<distx::ZeRO<1>, distx::Hybrid, distx::Precision<distx::bfloat16>>;
  const auto all = shares_of<distx::bfloat16, Training>(4, distx::AdamW{}, {.group_ranks = 2});
  CHECK(all.contains("optim.state.a.weight.master"));
  for (const auto& [name, seen] : all) {
    CAPTURE(name);
    CHECK(seen.shares == std::vector<int>(seen.size, 1));
  }
}

TEST_CASE("the state is not available during a step") {
  toy::on_ranks(1, [](distx::ThreadCommunicator& comm) {
    toy::Model model;
    distx::DataParallel<distx::Accumulate<distx::Local>> training(comm, model.parameters(), distx::AdamW{});
    const auto pass = [&](bool last) {
      const auto scope = training.micro_batch({.index = last ? 1U : 0U, .count = 2});
      for (auto& layer : model.layers) training.ready(layer.weight);
    };
    CHECK(training.state().arrays.size() == 3 * toy::sizes.size());
    pass(false);
    CHECK(toy::ending_of([&] { static_cast<void>(training.state()); }).kind == "state");
    pass(true);
    training.step({.learning_rate = 0.1});
    const auto state = training.state();
    REQUIRE(state.counters.updates.size() == toy::sizes.size());
    CHECK(state.counters.updates[0] == std::pair<std::string, std::uint64_t>("layer0", 1));
  });
}
