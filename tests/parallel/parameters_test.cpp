// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

#include "stages.hpp"

namespace {

using Floats = std::vector<float>;

/// What rank 0 and the last rank see, checked outside the threads.
template <class T>
struct OnAll {
  std::vector<T> values;
  explicit OnAll(int ranks) : values(static_cast<std::size_t>(ranks)) {}
  void set(const distx::ThreadCommunicator& comm, T value) {
    values[static_cast<std::size_t>(comm.rank())] = std::move(value);
  }
};

float mean_of_ranks(int ranks) { return static_cast<float>(ranks - 1) / 2; }

/// Two steps in which rank 1 has no gradient of the last parameter, whose bucket is reduced first.
template <class T, class... Policies>
void check_unused(int ranks, std::size_t count, std::size_t size, const distx::DataParallelOptions& options) {
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    std::vector<distx::Parameter<T>> parameters;
    for (std::size_t k = 0; k < count; ++k) parameters.emplace_back("layer" + std::to_string(k) + ".weight", size);
    distx::DataParallel<distx::ZeRO<distx::Dynamic>, Policies...> training(comm, parameters, distx::SGD{}, options);
    for (int step = 0; step < 2; ++step) {
      for (const auto& parameter : parameters) static_cast<void>(training.unshard(parameter));
      for (std::size_t k = count; k-- > 0;) {
        const auto weights = training.unshard(parameters[k]);
        if (comm.rank() == 1 && k + 1 == count) continue;
        for (auto& x : training.gradient(parameters[k])) x = T(static_cast<float>(ranks));
        training.ready(parameters[k]);
      }
      training.step({.learning_rate = 0.5});
    }
    const auto weights = training.unshard(parameters);
    for (std::size_t k = 0; k < count; ++k) {
      const float expected = -static_cast<float>(k + 1 == count ? ranks - 1 : ranks);
      CHECK(std::all_of(parameters[k].value().begin(), parameters[k].value().end(),
                        [&](T x) { return static_cast<float>(x) == expected; }));
    }
  });
}

}  // namespace

TEST_CASE("all ranks start with the root's weights, frozen weights and buffers") {
  for (const int ranks : toy::rank_counts) {
    for (const int root : {0, ranks - 1}) {
      OnAll<std::vector<Floats>> seen(ranks);
      OnAll<std::vector<std::uint16_t>> counts(ranks);
      toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        const auto mine = static_cast<float>(comm.rank() + 1);
        Floats weight(10, mine);
        Floats gradient(10);
        Floats frozen(20, mine);
        Floats statistics(30, mine);
        std::vector<std::uint16_t> integers(3, static_cast<std::uint16_t>(comm.rank() + 1));
        std::vector<int> nothing;
        distx::Parameter<float> owned("owned", 40, [&](distx::Span<float> v) {
          for (auto& x : v) x = mine;
        });
        distx::Parameter<float> owned_frozen("owned and frozen", 50,
                                             [&](distx::Span<float> v) {
                                               for (auto& x : v) x = mine;
                                             },
                                             {.trainable = false});
        distx::ParameterList<> list;
        list.add(distx::ref("weight", weight, gradient)).add(distx::ref("frozen", frozen, {.trainable = false}));
        list.add(distx::buffer_ref("statistics", statistics)).add(distx::buffer_ref("integers", integers));
        list.add(distx::buffer_ref("nothing", nothing)).add(owned).add(owned_frozen);
        distx::DataParallel<> training(comm, list, distx::SGD{}, {.broadcast_from = root});
        const auto copied = [](const distx::Parameter<float>& p) { return Floats(p.value().begin(), p.value().end()); };
        seen.set(comm, {weight, frozen, statistics, copied(owned), copied(owned_frozen)});
        counts.set(comm, integers);
      });
      for (const auto& rank : seen.values)
        for (std::size_t i = 0; i < 5; ++i) CHECK(rank[i] == Floats(10 * (i + 1), static_cast<float>(root + 1)));
      for (const auto& rank : counts.values)
        CHECK(rank == std::vector<std::uint16_t>(3, static_cast<std::uint16_t>(root + 1)));
    }
  }
}

TEST_CASE("frozen parameters and buffers are neither reduced nor updated") {
  for (const int ranks : {1, 3}) {
    OnAll<std::vector<Floats>> seen(ranks);
    toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
      const auto mine = static_cast<float>(comm.rank());
      Floats weight(10, 5);
      Floats gradient(10, mine);
      Floats frozen(10, 5);
      Floats frozen_gradient(10, mine);
      Floats buffer(10, 5);
      distx::ParameterList<> list;
      list.add(distx::ref("weight", weight, gradient));
      list.add(distx::ref("frozen", frozen, frozen_gradient, {.trainable = false}));
      list.add(distx::buffer_ref("buffer", buffer));
      distx::DataParallel<> training(comm, list, distx::AdamW{});
      buffer.assign(10, mine);
      training.ready(weight);
      training.step({.learning_rate = 1});
      CHECK(training.bucket_count() == 1);
      seen.set(comm, {weight, frozen, frozen_gradient, buffer});
    });
    for (int rank = 0; rank < ranks; ++rank) {
      const auto& mine = seen.values[static_cast<std::size_t>(rank)];
      CHECK(mine[0] != Floats(10, 5));
      CHECK(mine[1] == Floats(10, 5));
      CHECK(mine[2] == Floats(10, static_cast<float>(rank)));
      CHECK(mine[3] == Floats(10, static_cast<float>(rank)));
    }
  }
}

TEST_CASE("a tied parameter is reduced after its last use") {
  for (const int ranks : {1, 2, 4}) {
    OnAll<std::vector<Floats>> seen(ranks);
    toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
      Floats weight(10);
      Floats gradient(10);
      distx::Parameter<float> owned("owned", 10, {.uses = 3});
      distx::ParameterList<> list;
      list.add(distx::ref("weight", weight, gradient, {.uses = 2})).add(owned);
      distx::DataParallel<> training(comm, list, distx::SGD{}, {.bucket_bytes = 0});
      for (int step = 0; step < 2; ++step) {
        gradient.assign(10, static_cast<float>(comm.rank()));
        training.ready(weight);
        for (auto& x : gradient) x += 1;  // the second use adds to the first
        training.ready(weight);
        for (int use = 0; use < 3; ++use) {
          for (auto& x : owned.gradient()) x += static_cast<float>(comm.rank());
          training.ready(owned);
        }
        training.step({.learning_rate = 1});
      }
      seen.set(comm, {weight, Floats(owned.value().begin(), owned.value().end())});
    });
    for (const auto& rank : seen.values) {
      CHECK(rank[0] == Floats(10, -2 * (mean_of_ranks(ranks) + 1)));
      CHECK(rank[1] == Floats(10, -2 * 3 * mean_of_ranks(ranks)));
    }
  }
}

TEST_CASE("a gradient missing on some ranks counts as zero; one missing on all ranks skips the update") {
  for (const bool overlap : {false, true})
    for (const std::size_t bytes : {std::size_t{0}, distx::unlimited})
      for (const int ranks : {1, 2, 3, 7}) {
        OnAll<std::vector<Floats>> seen(ranks);
        toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
          Floats on_one(10);
          Floats on_none(10, 1);
          Floats on_all(10);
          distx::Parameter<float> owned_on_one("owned on one", 10);
          distx::Parameter<float> owned_on_none("owned on none", 10);
          // Left over from elsewhere: must not be taken for a gradient.
          Floats gradients[3] = {Floats(10, 1000), Floats(10, 1000), Floats(10, 1000)};
          distx::ParameterList<> list;
          list.add(distx::ref("on one", on_one, gradients[0])).add(distx::ref("on none", on_none, gradients[1]));
          list.add(distx::ref("on all", on_all, gradients[2])).add(owned_on_one).add(owned_on_none);
          // With momentum, a step with gradient 0 and no step at all differ.
          distx::DataParallel<> training(comm, list, distx::SGD{.momentum = 0.5, .weight_decay = 0.25},
                                         {.bucket_bytes = bytes, .overlap = overlap, .allow_unused = true});
          gradients[2].assign(10, static_cast<float>(comm.rank()));
          training.ready(on_all);
          if (comm.rank() == comm.size() - 1) {
            gradients[0].assign(10, static_cast<float>(comm.size()));
            training.ready(on_one);
            for (auto& x : owned_on_one.gradient()) x = static_cast<float>(comm.size());
            training.ready(owned_on_one);
          }
          training.step({.learning_rate = 1});
          const auto copied = [](const auto& p) { return Floats(p.value().begin(), p.value().end()); };
          seen.set(comm, {on_one, on_none, on_all, copied(owned_on_one), copied(owned_on_none)});
        });
        CAPTURE(overlap);
        CAPTURE(bytes);
        CAPTURE(ranks);
        for (const auto& rank : seen.values) {
          CHECK(rank[0] == Floats(10, -1));
          CHECK(rank[1] == Floats(10, 1));
          CHECK(rank[2] == Floats(10, -mean_of_ranks(ranks)));
          CHECK(rank[3] == Floats(10, -1));
          CHECK(rank[4] == Floats(10, 0));
        }
      }
}

TEST_CASE("a rank without a gradient in the first bucket does not block the others, at every stage") {
  for (const int stage : {0, 1, 2, 3})
    for (const bool overlap : {false, true})
      for (const std::size_t bytes : {std::size_t{0}, distx::unlimited})
        for (const std::size_t count : {3u, 8u}) {
          CAPTURE(stage);
          CAPTURE(overlap);
          CAPTURE(bytes);
          CAPTURE(count);
          const distx::DataParallelOptions options{
              .bucket_bytes = bytes, .overlap = overlap, .allow_unused = true, .stage = stage};
          for (const int ranks : {2, 4}) check_unused<float>(ranks, count, 64, options);
          check_unused<distx::bfloat16, distx::Precision<float>>(2, count, 64, options);
          if (bytes == 0) check_unused<float>(2, count, 20000, options);  // more than is packed
        }
}

TEST_CASE("a skipped update does not advance the optimizer's step number of the parameter") {
  toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Floats a(1);
    Floats b(1);
    Floats gradient(1, 1);
    Floats gradient_b(1, 1);
    std::vector<distx::ParameterRef<float>> both = {distx::ref("a", a, gradient), distx::ref("b", b, gradient_b)};
    distx::DataParallel<> training(comm, both, distx::AdamW{.weight_decay = 0}, {.allow_unused = true});
    for (int step = 0; step < 3; ++step) {
      gradient_b[0] = 1;
      training.ready(a);
      if (step == 2) training.ready(b);
      training.step({.learning_rate = 0.5});
    }
    // The first step of Adam is the learning rate; without its bias correction it would be a sixth of that.
    CHECK(b[0] == doctest::Approx(-0.5));
  });
}

TEST_CASE("groups scale the learning rate and set the weight decay") {
  const distx::ParameterGroup slow{.learning_rate_scale = 0.25};
  const distx::ParameterGroup no_decay{.weight_decay = 0.0};
  const distx::ParameterGroup decay{.weight_decay = 0.5};
  toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Floats weights[4] = {{1}, {1}, {1}, {1}};
    Floats gradients[4] = {{1}, {1}, {0}, {0}};
    const distx::ParameterGroup groups[4] = {{}, slow, no_decay, decay};
    distx::ParameterList<> list;
    for (std::size_t i = 0; i < 4; ++i)
      list.add(distx::ref(std::to_string(i), weights[i], gradients[i], {.group = groups[i]}));
    distx::DataParallel<> training(comm, list, distx::SGD{.weight_decay = 0.25});
    training.ready(weights);  // a list of arrays
    training.step({.learning_rate = 1});
    CHECK(weights[0][0] == 1 - 1.25f);
    CHECK(weights[1][0] == 1 - 1.25f / 4);
    CHECK(weights[2][0] == 1);
    CHECK(weights[3][0] == 0.5f);
  });
}

TEST_CASE("owned parameters have aligned memory and zeroed gradients, which are refused after ready") {
  toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    distx::Parameter<float> a("a", 3, [](distx::Span<float> v) { v[2] = 7; });
    distx::Parameter<double> b("b", 5);
    distx::Parameter<float> frozen("frozen", 5, {.trainable = false});
    CHECK_THROWS_WITH_AS(static_cast<void>(a.value()), doctest::Contains("'a' has no memory yet"), distx::Error);
    CHECK_THROWS_WITH_AS(static_cast<void>(a.gradient()), doctest::Contains("'a' is not part of a training"),
                         distx::Error);
    {
      distx::ParameterList<> list;
      list.add(a).add(&b).add(frozen);
      distx::DataParallel<> training(comm, list, distx::SGD{}, {.overlap = comm.size() > 1});
      for (const void* start : {static_cast<const void*>(a.value().data()), static_cast<const void*>(b.value().data())})
        CHECK(reinterpret_cast<std::uintptr_t>(start) % 64 == 0);
      CHECK(a.value()[2] == 7);
      CHECK_THROWS_WITH_AS(static_cast<void>(frozen.gradient()), doctest::Contains("is frozen"), distx::Error);
      for (int step = 0; step < 2; ++step) {
        CHECK(a.gradient()[0] == 0);
        a.gradient()[0] += 1;
        CHECK(a.gradient()[0] == 1);  // only the first is zeroed
        training.ready(a);
        CHECK_THROWS_WITH_AS(static_cast<void>(a.gradient()), doctest::Contains("was declared ready"), distx::Error);
        CHECK(b.gradient()[4] == 0);  // never written
        training.ready(b);
        training.reduce_gradients();
        CHECK_THROWS_AS(static_cast<void>(a.gradient()), distx::Error);
        training.update_weights({.learning_rate = 1});
        training.gather_weights();
      }
      CHECK(a.value()[0] == -2);
      CHECK(b.value()[4] == 0);
    }
    CHECK(a.value()[0] == -2);  // still there to be read
    CHECK_THROWS_AS(static_cast<void>(a.gradient()), distx::Error);
    // A later training continues from there.
    distx::DataParallel<> training(comm, distx::ParameterList<>().add(a), distx::SGD{});
    CHECK(a.value()[0] == -2);
    CHECK(a.value()[2] == 7);
    CHECK(a.gradient()[0] == 0);
    training.ready(a);
    training.step({.learning_rate = 1});
    CHECK(a.value()[0] == -2);
  });
}

TEST_CASE("an owned gradient that is written without requesting it in this step is an error, unless it may be unused") {
  for (const int stage : {0, 1, 2, 3})
    for (const bool allowed : {false, true})
      for (const int ranks : {1, 3}) {
        CAPTURE(stage);
        CAPTURE(allowed);
        CAPTURE(ranks);
        for (const auto& ending : toy::endings(ranks, [&](distx::ThreadCommunicator& comm) {
               const auto parameters = stages::owned();
               stages::Training training(comm, parameters, distx::SGD{}, {.allow_unused = allowed, .stage = stage});
               for (int step = 0; step < 2; ++step) {
                 for (const auto& parameter : parameters) {
                   const auto weights = training.unshard(parameter);
                   // A framework that keeps the memory of the first step, and adds to it in the second.
                   if (step == 0 || parameter.name() != "block1.layer4") training.gradient(parameter)[0] += 1;
                   training.ready(parameter);
                 }
                 training.step({.learning_rate = 1});
               }
             })) {
          CAPTURE(ending.words);
          CHECK(ending.kind == (allowed ? "no error" : ending.kind == "revoked" ? "revoked" : "state"));
          CHECK(toy::says(ending.words, allowed ? "" : "'block1.layer4' is ready, but its gradient was not requested"));
          CHECK(toy::says(ending.words, allowed ? "" : "call gradient before you write to it, or set .allow_unused"));
        }
      }
}

TEST_CASE("owned parameters of one bucket are disjoint and aligned to 64 bytes") {
  toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    std::vector<distx::Parameter<float>> parameters;
    for (const std::size_t size : {3u, 16u, 17u, 1u}) parameters.emplace_back(std::to_string(size), size);
    distx::DataParallel<> training(comm, parameters, distx::SGD{});
    CHECK(training.bucket_count() == 1);
    for (const auto& p : parameters) CHECK(reinterpret_cast<std::uintptr_t>(p.value().data()) % 64 == 0);
    for (const auto& p : parameters)
      for (const auto& q : parameters)
        if (&p != &q)
          CHECK((p.value().data() + p.size() <= q.value().data() || q.value().data() + q.size() <= p.value().data()));
  });
}

TEST_CASE("reduce, update and gather together do what step does") {
  toy::on_ranks(3, [&](distx::ThreadCommunicator& comm) {
    Floats weight(10, 1);
    Floats gradient(10);
    const std::vector<distx::ParameterRef<float>> parameters = {distx::ref("weight", weight, gradient)};
    distx::DataParallel<> training(comm, parameters, distx::SGD{});
    gradient.assign(10, static_cast<float>(comm.rank()));
    training.ready(parameters);  // all of them
    training.reduce_gradients();
    CHECK(gradient == Floats(10, 1));
    CHECK(weight == Floats(10, 1));
    for (auto& x : weight) x = 9;  // the user's own update
    training.gather_weights();
    training.ready(parameters[0]);
    training.reduce_gradients();
    training.update_weights({.learning_rate = 1});
    CHECK(weight == Floats(10, 8));
    training.gather_weights();
  });
}

TEST_CASE("a training of one rank works without communication") {
  distx::SelfConnector self;
  distx::ThreadCommunicator comm(self);
  toy::Model model;
  distx::DataParallel<> training(comm, model.parameters(), distx::SGD{}, {.bucket_bytes = 0});
  for (auto& layer : model.layers) {
    layer.gradient.assign(layer.gradient.size(), 1);
    training.ready(layer.weight);
  }
  training.step({.learning_rate = 0.5});
  CHECK(model.layers[2].weight[3] == static_cast<float>(toy::first_weight(2, 3)) - 0.5f);
}

TEST_CASE("a moved training updates the weights, and the communicator survives its end with a reduction in flight") {
  toy::on_ranks(3, [&](distx::ThreadCommunicator& comm) {
    toy::Model model;
    {
      distx::DataParallel<> first(comm, model.parameters(), distx::SGD{}, {.bucket_bytes = 0});
      distx::DataParallel<> training = std::move(first);
      for (auto& layer : model.layers) {
        layer.gradient.assign(layer.gradient.size(), 1);
        training.ready(layer.weight);
      }
      training.step({.learning_rate = 0.5});
      CHECK(model.layers[2].weight[3] == static_cast<float>(toy::first_weight(2, 3)) - 0.5f);
      training.ready(model.layers.back().weight);
    }
    int ranks = 1;
    distx::all_reduce(comm, ranks, distx::sum);
    CHECK(ranks == 3);
  });
}
