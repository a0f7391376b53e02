// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "toy.hpp"

using namespace distx::literals;

namespace {

struct Way {
  distx::DataParallelOptions options{};
  bool owned = false;
  enum class Order { backward, forward, of_its_own } order = Order::backward;  // the last: another on every rank
  bool in_parts = false;
};

/// The weights after three steps of AdamW.
std::vector<float> train(int ranks, const Way& way) {
  std::vector<float> result;
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    toy::Model model;
    std::vector<distx::Parameter<float>> owned;
    for (const auto& layer : model.layers)
      owned.emplace_back(layer.name, layer.weight.size(), [&layer](distx::Span<float> values) {
        std::copy(layer.weight.begin(), layer.weight.end(), values.begin());
      });
    const distx::AdamW optimizer{.weight_decay = 0.125};
    distx::DataParallel<> training(
        comm, way.owned ? distx::ParameterList<>(owned) : distx::ParameterList<>(model.parameters()), optimizer,
        way.options);
    std::mt19937 generator(static_cast<unsigned>(comm.rank()));
    for (std::size_t step = 0; step < 3; ++step) {
      std::vector<std::size_t> order;
      for (std::size_t p = 0; p < model.layers.size(); ++p) order.push_back(p);
      if (way.order == Way::Order::backward) std::reverse(order.begin(), order.end());
      if (way.order == Way::Order::of_its_own) std::shuffle(order.begin(), order.end(), generator);
      for (const auto p : order) {
        if (way.owned) std::copy(owned[p].value().begin(), owned[p].value().end(), model.layers[p].weight.begin());
        model.backward(p, 10 * step + static_cast<std::size_t>(comm.rank()), 1);
        if (way.owned) {
          std::copy(model.layers[p].gradient.begin(), model.layers[p].gradient.end(), owned[p].gradient().begin());
          training.ready(owned[p]);
        } else {
          training.ready(model.layers[p].weight);
        }
      }
      if (way.in_parts) {
        training.reduce_gradients();
        training.update_weights({.learning_rate = 0.01f});
        training.gather_weights();
      } else {
        training.step({.learning_rate = 0.01f});
      }
    }
    if (comm.rank() != 0) return;
    result = model.weights();
    if (!way.owned) return;
    result.clear();
    for (const auto& parameter : owned) result.insert(result.end(), parameter.value().begin(), parameter.value().end());
  });
  return result;
}

}  // namespace

TEST_CASE("the bits do not depend on buckets, overlap, ownership, parts or the order of ready") {
  for (const int ranks : toy::rank_counts) {
    const auto expected = train(ranks, {.options = {.bucket_bytes = 0, .overlap = false}});
    CHECK(expected.size() == 21125);
    CHECK_FALSE(toy::same_bits(expected, toy::Model().weights()));
    using Order = Way::Order;
    for (const bool owned : {false, true})
      for (const bool overlap : {false, true})
        for (const std::size_t bytes : {0_KiB, std::size_t{100}, 4_KiB, 25_MiB, distx::unlimited})
          for (const auto order : {Order::backward, Order::forward, Order::of_its_own}) {
            CAPTURE(ranks);
            CAPTURE(owned);
            CAPTURE(overlap);
            CAPTURE(bytes);
            CAPTURE(static_cast<int>(order));
            const Way way{{.bucket_bytes = bytes, .overlap = overlap}, owned, order, bytes == 4_KiB};
            CHECK(toy::same_bits(train(ranks, way), expected));
          }
    CHECK(toy::same_bits(train(ranks, {.options = {.allow_unused = true}}), expected));
  }
}

TEST_CASE("buckets hold up to bucket_bytes, the first one less") {
  toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    std::vector<std::vector<float>> weights;
    std::vector<std::vector<float>> gradients;
    weights.assign(5, std::vector<float>(300'000));  // 1.2 MB each
    gradients.assign(5, std::vector<float>(300'000));
    std::vector<distx::ParameterRef<float>> parameters;
    for (std::size_t p = 0; p < 5; ++p) parameters.push_back(distx::ref(std::to_string(p), weights[p], gradients[p]));
    const auto count = [&](std::size_t bytes) {
      return distx::DataParallel<>(comm, parameters, distx::SGD{}, {.bucket_bytes = bytes}).bucket_count();
    };
    const std::size_t counts[] = {count(0), count(2'500'000), count(25'000'000), count(distx::unlimited)};
    if (comm.rank() == 0) {
      CHECK(counts[0] == 5);
      CHECK(counts[1] == 3);  // one by itself, then two and two
      CHECK(counts[2] == 2);
      CHECK(counts[3] == 1);
    }
  });
}

TEST_CASE("parameters of different element types are reduced in their own types") {
  toy::on_ranks(3, [&](distx::ThreadCommunicator& comm) {
    std::vector<float> a(5, 1);
    std::vector<float> a_gradient(5, static_cast<float>(comm.rank()));
    std::vector<double> b(5, 1);
    std::vector<double> b_gradient(5, comm.rank() * 1e-12);
    std::vector<distx::bfloat16> c(5, distx::bfloat16(1.0f));
    std::vector<distx::bfloat16> c_gradient(5, distx::bfloat16(static_cast<float>(comm.rank())));
    std::vector<distx::float16> d(5, distx::float16(1.0f));
    std::vector<distx::float16> d_gradient(5, distx::float16(static_cast<float>(comm.rank())));
    distx::ParameterList<> list;
    list.add(distx::ref("a", a, a_gradient)).add(distx::ref("b", b, b_gradient));
    list.add(distx::ref("c", c, c_gradient)).add(distx::ref("d", d, d_gradient));
    distx::DataParallel<> training(comm, list, distx::SGD{}, {.bucket_bytes = distx::unlimited});
    training.ready(a, b, c, d);
    training.step({.learning_rate = 0.5});
    CHECK(training.bucket_count() == 4);
    CHECK(a[4] == 0.5f);
    CHECK(b[4] == 1 - 0.5 * 1e-12);
    CHECK(static_cast<float>(c[4]) == 0.5f);
    CHECK(static_cast<float>(d[4]) == 0.5f);
  });
}
