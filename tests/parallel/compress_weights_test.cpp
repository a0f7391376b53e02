// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/decorators/metered.hpp>
#include <distx/parallel/detail/bucket/bucket_layout.hpp>
#include <distx/parallel/hooks/quantized_blocks.hpp>

#include "mesh_model.hpp"
#include "stages.hpp"

namespace compress_weights_test {

namespace {

using distx::Compress;
using Blocks = distx::hooks::QuantizedBlocks<32>;
static_assert(distx::hooks::WeightHook<Blocks> && !distx::hooks::WeightHook<float>);

constexpr std::size_t sizes[] = {1000, 24, 35, 1, 3000};  // a unit each

std::size_t padded(std::size_t size) { return (size + 15) / 16 * 16; }

/// The bytes that encode all shards of one parameter.
std::size_t encoded_bytes(std::size_t size, int ranks) {
  const auto partition = distx::detail::Partition::at_lines(padded(size), sizeof(float), ranks);
  std::size_t floats = 0;
  for (const std::size_t count : partition.counts()) floats += Blocks::encoded_size(count);
  return 4 * floats;
}

std::vector<distx::Parameter<float>> make_parameters(bool always_whole = false) {
  std::vector<distx::Parameter<float>> parameters;
  for (std::size_t p = 0; p < std::size(sizes); ++p)
    parameters.emplace_back(
        "layer" + std::to_string(p), sizes[p],
        [p](distx::Span<float> values) {
          for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(toy::first_weight(p, i));
        },
        distx::ParameterOptions{.always_whole = always_whole && p == 1});
  return parameters;
}

template <class Training>
std::vector<float> exact_weights(Training& training) {
  std::vector<float> all;
  training.for_each_full_weight([&](const std::string&, distx::Span<const distx::AnyElement> values) {
    const auto* const begin = static_cast<const float*>(values.data());
    all.insert(all.end(), begin, begin + values.size());
  });
  return all;
}

template <class Training, class Parameters>
std::vector<float> unsharded_weights(Training& training, Parameters& parameters) {
  std::vector<float> all;
  const auto evaluation = training.evaluate();
  for (auto& parameter : parameters) {
    const auto scope = training.unshard(parameter);
    const auto values = training.value(parameter);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// One forward and backward pass, whose gradients do not depend on the weights.
template <class Training, class Parameters>
void pass(Training& training, Parameters& parameters, std::size_t sample) {
  for (auto& parameter : parameters) const auto scope = training.unshard(parameter);
  for (std::size_t p = parameters.size(); p-- > 0;) {
    const auto scope = training.unshard(parameters[p]);
    const auto gradient = training.gradient(parameters[p]);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += static_cast<float>(toy::target(p, i, sample));
    training.ready(parameters[p]);
  }
}

/// One rank's results of three steps.
struct Trained {
  std::vector<float> unsharded{}, exact{}, averaged{};
  std::vector<std::pair<std::size_t, std::size_t>> shards{};  ///< offset and size of each fragment that it updates
  std::size_t sent = 0;                                       ///< for the weights of the last step
  distx::observe::MemoryLedger memory{};
};

struct Way {
  distx::DataParallelOptions options{};
  bool always_whole = false;
  bool uneven = false;  ///< the last rank has no batch in the last step
};

template <class... Policies>
Trained train(distx::ThreadCommunicator& comm, const Way& way) {
  distx::Metered<distx::ThreadCommunicator> metered(comm.share());
  auto parameters = make_parameters(way.always_whole);
  distx::DataParallel<distx::ZeRO<3>, Policies...> training(metered, parameters, distx::AdamW{}, way.options);
  auto average = training.ema(0.5);
  Trained result;
  for (std::size_t step = 0; step < 3; ++step) {
    const bool idle = way.uneven && step == 2 && comm.rank() > 0 && comm.rank() + 1 == comm.size();
    if (way.uneven) CHECK(training.announce_batch(!idle) > 0);
    const auto before = metered.ledger();
    if (!idle) pass(training, parameters, 10 * step + static_cast<std::size_t>(comm.rank()));
    training.reduce_gradients();
    result.shards.clear();
    for (const auto& fragment : training.owned()) {
      std::size_t begin = fragment.offset;
      for (std::size_t p = 0; p < fragment.parameter; ++p) begin += sizes[p];
      result.shards.emplace_back(begin, fragment.weight.size());
    }
    training.update_weights({.learning_rate = 0.01});
    training.gather_weights();
    result.sent = (metered.ledger() - before)["all_gather"].sent_bytes;
    average.update();
    CHECK(toy::same_bits(exact_weights(training), exact_weights(training)));
  }
  result.unsharded = unsharded_weights(training, parameters);
  {
    const auto evaluation = training.evaluate();
    const auto scope = training.unshard(parameters[0]);  // prefetches the second one
  }
  result.exact = exact_weights(training);
  result.memory = training.memory();
  {
    const auto scope = average.swap_in();
    result.averaged = exact_weights(training);
  }
  training.release();
  std::vector<float> released;
  for (const auto& parameter : parameters)
    released.insert(released.end(), parameter.value().begin(), parameter.value().end());
  CHECK(toy::same_bits(released, result.exact));
  return result;
}

template <class... Policies>
std::vector<Trained> train_on(int ranks, const Way& way) {
  std::vector<Trained> all(static_cast<std::size_t>(ranks));
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    all[static_cast<std::size_t>(comm.rank())] = train<Policies...>(comm, way);
  });
  return all;
}

/// The weights as each shard's blocks of them are decoded.
std::vector<float> decoded(const std::vector<Trained>& all) {
  auto weights = all.front().exact;
  for (const auto& each : all)
    for (const auto& [begin, size] : each.shards) {
      std::vector<float> encoded(Blocks::encoded_size(size));
      Blocks::encode({weights.data() + begin, size}, encoded);
      Blocks::decode(encoded, {weights.data() + begin, size});
    }
  return weights;
}

}  // namespace

TEST_CASE("copies of weights of 8 bits have the same bits on every rank, and the weights those of exact copies") {
  for (const int ranks : {1, 2, 3, 4})
    for (const bool overlap : {false, true})
      for (const bool maps : {false, true})
        for (const bool always_whole : {false, true})
          for (const bool uneven : {false, true}) {
            CAPTURE(ranks);
            CAPTURE(overlap);
            CAPTURE(maps);
            CAPTURE(always_whole);
            CAPTURE(uneven);
            const Way way{{.overlap = overlap, .map_weights = maps}, always_whole, uneven};
            const auto exact = train_on<>(ranks, way).front();
            const auto all = train_on<Compress<float, Blocks>>(ranks, way);
            const auto copies = decoded(all);
            CHECK(!toy::same_bits(copies, exact.exact));
            for (const auto& each : all) {
              CHECK(toy::same_bits(each.exact, exact.exact));
              CHECK(toy::same_bits(each.averaged, exact.averaged));
              CHECK(toy::same_bits(each.unsharded, ranks == 1 ? exact.exact : copies));
            }
          }
}

TEST_CASE("a weight of 8 bits differs from the exact one by at most half of a 127th of its block's largest magnitude") {
  std::vector<float> values(1000), encoded(Blocks::encoded_size(values.size())), copies(values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(toy::first_weight(0, i)) * (i / 32 % 2 == 0 ? 1.0F : 1e-6F);
  Blocks::encode(values, encoded);
  Blocks::decode(encoded, copies);
  for (std::size_t begin = 0; begin < values.size(); begin += 32) {
    float most = 0, difference = 0;
    for (std::size_t i = begin; i < std::min(values.size(), begin + 32); ++i) {
      most = std::max(most, std::abs(values[i]));
      difference = std::max(difference, std::abs(values[i] - copies[i]));
    }
    CHECK(difference <= most * (0.5F / 127 + 1e-6F));
    CHECK(difference > 0);
  }
}

TEST_CASE("gradients and weights are compressed independently of each other") {
  for (const int ranks : {2, 3}) {
    const auto gradients = train_on<Compress<distx::bfloat16>>(ranks, {});
    const auto both = train_on<Compress<distx::bfloat16, Blocks>>(ranks, {});
    const auto by_hooks = train_on<Compress<Blocks, Blocks>>(ranks, {});
    CHECK(toy::same_bits(both.back().exact, gradients.back().exact));
    CHECK(toy::same_bits(by_hooks.back().exact, train_on<Compress<Blocks>>(ranks, {}).back().exact));
    for (const auto& each : both) CHECK(toy::same_bits(each.unsharded, decoded(both)));
    for (const auto& each : by_hooks) CHECK(toy::same_bits(each.unsharded, decoded(by_hooks)));
  }
}

TEST_CASE("a step sends the bytes of encoded weights, and the pool of gathered ones has the encodings of two units") {
  for (const int ranks : {1, 2, 3, 4})
    for (const bool overlap : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(overlap);
      const Way way{{.overlap = overlap, .map_weights = ranks == 1}};
      const auto exact = train_on<>(ranks, way), all = train_on<Compress<float, Blocks>>(ranks, way);
      std::size_t exact_bytes = 0, bytes = 0, sent_exactly = 0, sent = 0;
      for (const std::size_t size : sizes) {
        exact_bytes += 4 * padded(size);
        bytes += encoded_bytes(size, ranks);
      }
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        sent_exactly += exact[rank].sent;
        sent += all[rank].sent;
        const auto &held = all[rank].memory, &held_exactly = exact[rank].memory;
        const auto lines = [&](std::size_t size) { return (encoded_bytes(size, ranks) + 63) / 64 * 64; };
        const std::size_t encodings = ranks == 1 ? 0 : lines(3000) + (overlap ? lines(1000) : 0);
        CHECK(held.in_flight.held == held_exactly.in_flight.held + encodings);
        CHECK(held.in_flight.peak == held.in_flight.held);
        CHECK(held.total.held == held_exactly.total.held + encodings);
      }
      const std::size_t others = all.size() - 1;
      CHECK(sent_exactly == 2 * others * exact_bytes);
      CHECK(sent == 2 * others * bytes);
      CHECK(10 * bytes < 3 * exact_bytes);
    }
}

TEST_CASE(
    "weights of other types than float are gathered as they are, and groups of Hybrid gather compressed weights") {
  toy::on_ranks(4, [](distx::ThreadCommunicator& comm) {
    distx::Parameter<float> floats("floats", 1000, [](distx::Span<float> values) { values[3] = 1, values[4] = 0.3F; });
    distx::Parameter<double> doubles("doubles", 1000,
                                     [](distx::Span<double> values) { values[3] = 1, values[4] = 0.3; });
    distx::ParameterList<> list;
    list.add(floats).add(doubles);
    distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Hybrid, Compress<float, Blocks>> training(
        comm, list, distx::SGD{}, {.stage = 3, .group_ranks = 2});
    const auto scope = training.unshard(floats, doubles);
    CHECK(floats.value()[4] != 0.3F);
    CHECK(floats.value()[4] == doctest::Approx(0.3).epsilon(0.01));
    CHECK(doubles.value()[4] == 0.3);
  });
}

TEST_CASE("weights of a mesh are compressed along its data axis, and passed exactly") {
  using mesh_model::Grid, mesh_model::Data, mesh_model::Model;
  using Split = distx::Shard<0, Model>;
  toy::on_ranks(4, [](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, {2, 2});
    const auto first = [](const auto& index) { return static_cast<float>(toy::first_weight(0, index[0])); };
    const distx::TensorParameter<float, 1, Grid, distx::Layout<Split>> weight("weight", mesh, {400}, first);
    distx::TensorParameterList<> list;
    list.add(weight);
    distx::MeshParallel<Data, distx::ZeRO<3>, Compress<float, Blocks>> training(mesh, list, distx::SGD{});
    const auto exact = exact_weights(training);
    const auto scope = training.unshard(weight);
    const std::size_t begin = weight.local().size() * static_cast<std::size_t>(mesh.coordinates()[1]);
    double most = 0;
    for (std::size_t i = 0; i < 400; ++i) CHECK(exact[i] == first(std::array{i}));
    for (std::size_t i = 0; i < weight.local().size(); ++i)
      most = std::max(most, std::abs(double{weight.local()[i]} - double{exact[begin + i]}));
    CHECK(most > 0);
    CHECK(most < 0.01);
  });
}

TEST_CASE("for_each_full_weight is refused in a scope of unshard whose weights are encoded") {
  for (const int ranks : {1, 2})
    for (const auto& ending : toy::endings(ranks, [](auto& comm) {
           auto parameters = make_parameters();
           distx::DataParallel<distx::ZeRO<3>, Compress<float, Blocks>> training(comm, parameters, distx::SGD{});
           const auto scope = training.unshard(parameters[0]);
           (void)exact_weights(training);
         })) {
      CHECK(ending.kind == "state");
      CHECK(toy::says(ending.words, "'layer0' is unsharded, and its weights are those that Compress encodes"));
    }
}

TEST_CASE("compressed weights are refused at other stages than 3, and on ranks with another hook") {
  for (const int stage : {0, 1, 2})
    for (const auto& ending : toy::endings(2, [stage](auto& comm) {
           auto parameters = make_parameters();
           distx::DataParallel<distx::ZeRO<distx::Dynamic>, Compress<float, Blocks>>(comm, parameters, distx::SGD{},
                                                                                     {.stage = stage});
         })) {
      CHECK(ending.kind == "argument");
      CHECK(toy::says(ending.words, "at stage 3 of ZeRO; set .stage = 3, or remove the argument"));
    }
  for (const auto& ending : toy::endings(2, [](auto& comm) {
         auto parameters = make_parameters();
         if (comm.rank() == 0)
           distx::DataParallel<distx::ZeRO<3>, Compress<float, Blocks>>(comm, parameters, distx::SGD{});
         else
           distx::DataParallel<distx::ZeRO<3>, Compress<distx::bfloat16>>(comm, parameters, distx::SGD{});
       })) {
    CHECK(ending.kind == "mismatch");
    CHECK(toy::says(ending.words, "Compress<float32, "));
    CHECK(toy::says(ending.words, "hooks::QuantizedBlocks<32"));
    CHECK(toy::says(ending.words, "Compress<bfloat16>"));
  }
}

}  // namespace compress_weights_test
