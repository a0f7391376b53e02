// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/decorators/metered.hpp>
#include <distx/parallel/hooks/power_sgd.hpp>
#include <distx/parallel/hooks/quantized_blocks.hpp>

#include <numeric>

#include "stages.hpp"

using namespace distx::literals;

namespace compress_test {

namespace {

using distx::bfloat16;
using distx::float16;
using distx::hooks::BucketShape;
using distx::hooks::GradientBucket;
using distx::hooks::PowerSGD;
using distx::hooks::QuantizedBlocks;

/// The built-in average, as a hook.
struct Average {
  static std::size_t state_size(const BucketShape&) { return 0; }
  static void reduce(const GradientBucket& bucket) {
    if (bucket.shape.whole)
      distx::all_reduce(bucket.comm, bucket.gradients, bucket.averages, distx::average, bucket.location);
    else
      distx::reduce_scatter(bucket.comm, bucket.gradients, bucket.averages, distx::average, bucket.shape.counts,
                            bucket.location);
  }
};
static_assert(distx::hooks::GradientHook<Average> && !distx::hooks::GradientHook<float>);

struct Shape {
  const char* name;
  std::size_t rows, columns;  // no rows: a vector
};
constexpr Shape shapes[] = {
    {"embedding.weight", 90, 33}, {"a.weight", 24, 40}, {"a.bias", 0, 24},     {"a.scale", 0, 1},
    {"b.weight", 7, 5},           {"b.bias", 0, 7},     {"c.weight", 100, 200}};

std::size_t elements(const Shape& shape) { return std::max<std::size_t>(1, shape.rows) * shape.columns; }

float target(std::size_t p, std::size_t i, std::size_t sample) { return static_cast<float>(toy::target(p, i, sample)); }

/// The results of a training on one rank.
struct Trained {
  std::vector<float> weights;
  std::size_t sent = 0;
  distx::observe::MemoryLedger memory{};
};

struct Way {
  distx::DataParallelOptions options{};
  bool borrowed = false;
  std::size_t steps = 3;
  double rate = 0.01;
  bool one_batch = false;  ///< the same targets in each step
};

/// Trains towards the mean of the ranks' targets, which are other ones in each step.
template <class... Policies, class Optimizer = distx::AdamW>
Trained train(distx::ThreadCommunicator& comm, const Way& way, const Optimizer& optimizer = {}) {
  distx::Metered<distx::ThreadCommunicator> metered(comm.share());
  std::vector<distx::Parameter<float>> parameters;
  std::vector<std::vector<float>> arrays(2 * std::size(shapes));
  std::vector<distx::ParameterRef<float>> refs;
  for (std::size_t p = 0; p < std::size(shapes); ++p) {
    const auto initialize = [p](distx::Span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(toy::first_weight(p, i));
    };
    const distx::ParameterOptions options{.rows = shapes[p].rows};
    parameters.emplace_back(shapes[p].name, elements(shapes[p]), initialize, options);
    for (const std::size_t k : {2 * p, 2 * p + 1}) arrays[k].resize(elements(shapes[p]));
    initialize(arrays[2 * p]);
    refs.push_back(distx::ref(shapes[p].name, arrays[2 * p], arrays[2 * p + 1], options));
  }
  distx::DataParallel<distx::ZeRO<distx::Dynamic>, Policies...> training(
      metered, way.borrowed ? distx::ParameterList<>(refs) : distx::ParameterList<>(parameters), optimizer,
      way.options);
  const auto before = metered.ledger();
  for (std::size_t step = 0; step < way.steps; ++step) {
    const std::size_t sample = (way.one_batch ? 0 : 10 * step) + static_cast<std::size_t>(comm.rank());
    const auto pass = [&](const auto& all) {
      for (std::size_t p = std::size(shapes); p-- > 0;) {
        const auto weights = training.unshard(all[p]);
        const auto value = training.value(all[p]);
        const auto gradient = training.gradient(all[p]);
        for (std::size_t i = 0; i < value.size(); ++i) gradient[i] = value[i] - target(p, i, sample);
        training.ready(all[p]);
      }
    };
    way.borrowed ? pass(refs) : pass(parameters);
    training.step({.learning_rate = way.rate});
  }
  Trained result{{}, (metered.ledger() - before).total().sent_bytes, training.memory()};
  for (std::size_t p = 0; p < std::size(shapes); ++p) {
    const auto weights = training.unshard(parameters[p]);
    const auto values = way.borrowed ? distx::Span<float>(arrays[2 * p]) : parameters[p].value();
    result.weights.insert(result.weights.end(), values.begin(), values.end());
  }
  return result;
}

template <class... Policies, class Optimizer = distx::AdamW>
std::vector<Trained> train_on(int ranks, const Way& way, const Optimizer& optimizer = {}) {
  std::vector<Trained> all(static_cast<std::size_t>(ranks));
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    all[static_cast<std::size_t>(comm.rank())] = train<Policies...>(comm, way, optimizer);
  });
  for (const auto& each : all) CHECK(toy::same_bits(each.weights, all.front().weights));
  return all;
}

/// The largest magnitude of the differences; infinity if one is not a number.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double{a[i]} - double{b[i]});
    if (!(difference <= most)) most = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
  }
  return most;
}

/// Checks that a training gives the same weights at every stage, in every way and on every rank.
template <class... Policies>
std::vector<float> check_same_bits(int ranks) {
  CAPTURE(ranks);
  std::vector<float> expected;
  stages::for_each_way({}, 3, [&](const auto& options, bool borrowed) {
    const auto all = train_on<Policies...>(ranks, {options, borrowed});
    if (expected.empty()) expected = all.front().weights;
    CHECK(toy::same_bits(all.front().weights, expected));
  });
  return expected;
}

/// PowerSGD without error feedback.
struct Forgetful : PowerSGD<1> {
  static void reduce(const GradientBucket& bucket) {
    std::fill_n(bucket.state.begin(), error_size(bucket.shape), 0.0F);
    PowerSGD<1>::reduce(bucket);
  }
};

/// Half the squared distance of the matrices to the targets' mean after steps with one batch.
template <class... Policies>
double loss_after(std::size_t steps, double rate) {
  const auto weights =
      train_on<Policies...>(2, {.options = {.stage = 2}, .steps = steps, .rate = rate, .one_batch = true}, distx::SGD{})
          .front()
          .weights;
  double loss = 0;
  std::size_t at = 0;
  for (std::size_t p = 0; p < std::size(shapes); ++p)
    for (std::size_t i = 0; i < elements(shapes[p]); ++i, ++at)
      loss += 0.5 * std::pow(weights[at] - 0.5 * (double{target(p, i, 0)} + double{target(p, i, 1)}), 2);
  return loss;
}

}  // namespace

TEST_CASE("gradients that are sent in 16 bits give the same weights at every stage, rounded once") {
  for (const int ranks : {1, 2, 3, 4}) {
    const auto weights = check_same_bits<distx::Compress<bfloat16>>(ranks);
    const auto exact = check_same_bits<>(ranks);
    CHECK((ranks == 1) == toy::same_bits(weights, exact));
    CHECK(largest_difference(weights, exact) < 0.02);  // AdamW moves each weight by at most 0.01 in a step
  }
  check_same_bits<distx::Compress<float16>>(3);
}

TEST_CASE("a hook that averages gives the bits of the built-in reduction") {
  for (const int ranks : {1, 2, 3, 4})
    CHECK(toy::same_bits(check_same_bits<distx::Compress<Average>>(ranks), check_same_bits<>(ranks)));
}

TEST_CASE("PowerSGD gives the same weights at every stage, for every size of buckets") {
  for (const int ranks : {1, 2, 3, 4})
    CHECK((ranks == 1) ==
          toy::same_bits(check_same_bits<distx::Compress<PowerSGD<2>>>(ranks), check_same_bits<>(ranks)));
}

TEST_CASE("gradients of 8 bits give the same weights on every rank, near those of float") {
  for (const int ranks : {1, 2, 3, 4})
    stages::for_each_way({}, 3, [&](const auto& options, bool borrowed) {
      CAPTURE(ranks);
      const auto compressed = train_on<distx::Compress<QuantizedBlocks<>>>(ranks, {options, borrowed});
      const auto exact = train_on<>(ranks, {options, borrowed});
      const double largest = largest_difference(compressed.front().weights, exact.front().weights);
      CHECK((largest == 0) == (ranks == 1));
      CHECK(largest < 0.04);
    });
}

TEST_CASE("the first reductions of PowerSGD are exact as its type demands") {
  for (const int stage : {0, 1, 2, 3}) {
    const Way way{{.stage = stage}};
    CHECK(toy::same_bits(train_on<distx::Compress<PowerSGD<1, 3>>>(3, way).front().weights,
                         train_on<>(3, way).front().weights));
    CHECK(!toy::same_bits(train_on<distx::Compress<PowerSGD<1, 2>>>(3, way).front().weights,
                          train_on<>(3, way).front().weights));
  }
}

TEST_CASE("without error feedback PowerSGD leaves a higher loss") {
  const double exact = loss_after<>(100, 0.01), compressed = loss_after<distx::Compress<PowerSGD<1>>>(100, 0.01);
  CHECK(compressed < 1.5 * exact);
  CHECK(loss_after<distx::Compress<Forgetful>>(100, 0.01) > 3 * compressed);
}

TEST_CASE("the bytes of a step are those of the compressed gradients") {
  std::size_t padded = 0;  // elements, each parameter in lines of 64 bytes
  for (const auto& shape : shapes) padded += (elements(shape) + 15) / 16 * 16;
  // A matrix of 90 x 33, 24 x 40 or 100 x 200 is sent as two factors; the others have 24 + 1 + 35 + 7 elements.
  constexpr std::size_t factors = 2 * (90 + 33 + 24 + 40 + 100 + 200) + 24 + 1 + 35 + 7;
  for (const int ranks : {1, 2, 3, 4})
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(ranks);
      CAPTURE(stage);
      const Way way{{.bucket_bytes = distx::unlimited, .stage = stage}};
      const auto sent = [](const std::vector<Trained>& all) {
        std::size_t sum = 0;
        for (const auto& each : all) sum += each.sent;
        return sum / 3;  // steps
      };
      const auto others = static_cast<std::size_t>(ranks - 1);
      const std::size_t times = stage == 0 ? 2 : 1;
      const std::size_t weights = sent(train_on<>(ranks, way)) - times * others * 4 * padded;
      CHECK(sent(train_on<distx::Compress<bfloat16>>(ranks, way)) - weights == times * others * 2 * padded);
      CHECK(sent(train_on<distx::Compress<PowerSGD<2>>>(ranks, way)) - weights == 2 * others * 4 * factors);
      const std::size_t bytes = sent(train_on<distx::Compress<QuantizedBlocks<256>>>(ranks, way)) - weights;
      const std::size_t each = padded + 4 * padded / 256;  // and a scale for the last block of each shard
      CHECK(bytes >= times * others * each);
      CHECK(bytes <= times * others * (each + 8 * static_cast<std::size_t>(ranks) * std::size(shapes)));
      CHECK(4 * distx::plan(padded, 4, stage).sent -
                4 * distx::plan(padded, 4, stage, distx::full_precision<>, {.sent_gradient_bytes = 2}).sent ==
            times * 3 * 2 * padded);
    }
}

TEST_CASE("the memory ledger counts a hook's state") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const Way way{{.bucket_bytes = 4096, .stage = stage}};
    const auto exact = train_on<>(3, way), compressed = train_on<distx::Compress<PowerSGD<2>>>(3, way);
    const std::size_t errors = 90 * 33 + 24 * 40 + 100 * 200;
    const std::size_t factors = 2 * (90 + 33 + 24 + 40 + 100 + 200) + 24 + 1 + 35 + 7;
    for (std::size_t rank = 0; rank < 3; ++rank)
      CHECK(compressed[rank].memory.gradients.held == exact[rank].memory.gradients.held + 4 * (errors + factors));
  }
}

/// Trains three steps of `value`, of which one has another number in it; returns the first weight.
template <class... Policies>
float train_with(distx::ThreadCommunicator& comm, int stage, float bad) {
  std::vector<distx::Parameter<float>> parameters;
  parameters.emplace_back("weight", 2000, distx::ParameterOptions{.rows = 40});
  distx::DataParallel<distx::ZeRO<distx::Dynamic>, Policies...> training(comm, parameters, distx::SGD{},
                                                                         {.stage = stage, .skip_nonfinite = true});
  for (int step = 0; step < 3; ++step) {
    const auto gradient = training.gradient(parameters[0]);
    std::fill(gradient.begin(), gradient.end(), 1.0F);
    if (step == 1 && comm.rank() == 1) gradient[7] = bad;
    training.ready(parameters);
    training.step({.learning_rate = 1});
  }
  CHECK(training.skipped_steps() == 1);
  const auto weights = training.unshard(parameters[0]);
  return training.value(parameters[0])[0];
}

TEST_CASE("PowerSGD averages gradients whose squares overflow or underflow, and the gradients after them") {
  for (const float unusual : {1e20F, 1e10F, 1e-30F})
    toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(unusual);
      const std::size_t counts[] = {1000, 1000};
      const BucketShape shape{.size = 2000, .parameters = {{"weight", 0, 2000, 40}}, .counts = counts, .whole = true};
      std::vector<float> gradients(2000), state(PowerSGD<2>::state_size(shape));
      distx::AnyCommunicator<> any(comm.share());
      const auto reduce = [&](float value) {
        std::fill(gradients.begin(), gradients.end(), value);
        PowerSGD<2>::reduce({shape, gradients, gradients, 0, state, any, std::source_location::current()});
      };
      for (int step = 0; step < 3; ++step) {
        reduce(unusual);
        CHECK(largest_difference(gradients, std::vector(2000, unusual)) < 1e-4 * double{unusual});
      }
      reduce(1);
      CHECK(std::count(gradients.begin(), gradients.end(), 0.0F) < 2000);
      for (const float huge : {3e38F, 3e38F}) {  // the sum of two ranks is infinite
        reduce(huge);
        CHECK(std::none_of(gradients.begin(), gradients.end(), [](float value) { return std::isfinite(value); }));
      }
      reduce(1);
      CHECK(largest_difference(gradients, std::vector(2000, 1.0F)) < 1e-4);
    });
}

TEST_CASE("a step with a gradient that is not finite is skipped, and leaves nothing in the state") {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const int stage : {0, 1, 2, 3})
      toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
        CAPTURE(stage);
        CHECK(train_with<distx::Compress<bfloat16>>(comm, stage, bad) == -2);
        CHECK(train_with<distx::Compress<PowerSGD<2>>>(comm, stage, bad) == doctest::Approx(-2).epsilon(1e-5));
        CHECK(train_with<distx::Compress<QuantizedBlocks<>>>(comm, stage, bad) == doctest::Approx(-2).epsilon(1e-5));
      });
}

/// Counts the reductions since its state was zero.
struct Counting {
  static std::size_t state_size(const BucketShape&) { return 1; }
  static void reduce(const GradientBucket& bucket) {
    std::fill(bucket.averages.begin(), bucket.averages.end(), ++bucket.state[0]);
  }
};

TEST_CASE("a hook's state is zero after recover") {
  for (const int stage : {0, 1, 2, 3})
    toy::on_ranks(4, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(stage);
      auto few = comm.split(comm.rank() % 2, comm.rank());
      std::vector<distx::Parameter<float>> parameters;
      parameters.emplace_back("weight", 100);
      distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Replicate, distx::Compress<Counting>> training(
          comm, parameters, distx::SGD{}, {.stage = stage});
      const auto step = [&] {
        (void)training.gradient(parameters[0]);
        training.ready(parameters[0]);
        training.step({.learning_rate = 1});
      };
      step();
      step();
      if (comm.rank() % 2 != 0) return;
      CHECK(training.recover(few) == 2);
      step();
      const auto weights = training.unshard(parameters[0]);
      CHECK(training.value(parameters[0])[99] == -1 - 2 - 1);
    });
}

TEST_CASE("reductions of micro-batches are compressed one by one") {
  for (const int stage : {0, 1, 2, 3})
    toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(stage);
      const auto train_in_parts = [&]<class How>(std::type_identity<How>) {
        std::vector<distx::Parameter<float>> parameters;
        parameters.emplace_back("weight", 2000, distx::ParameterOptions{.rows = 40});
        distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Accumulate<distx::Sharded>, distx::Compress<How>>
            training(comm, parameters, distx::SGD{}, {.stage = stage});
        for (std::size_t part = 0; part < 3; ++part) {
          const auto scope = training.micro_batch({part, 3});
          const auto gradient = training.gradient(parameters[0]);
          for (float& value : gradient) value += static_cast<float>(comm.rank() + 1);
          training.ready(parameters[0]);
        }
        training.step({.learning_rate = 1});
        const auto weights = training.unshard(parameters[0]);
        return training.value(parameters[0])[1999];
      };
      CHECK(train_in_parts(std::type_identity<bfloat16>{}) == -4.5F);
      CHECK(train_in_parts(std::type_identity<PowerSGD<1>>{}) == doctest::Approx(-4.5).epsilon(1e-5));
      CHECK(train_in_parts(std::type_identity<QuantizedBlocks<>>{}) == doctest::Approx(-4.5).epsilon(1e-5));
    });
}

TEST_CASE("a rank without a batch takes part in a hook's reductions with zeros") {
  for (const int stage : {0, 1, 2, 3})
    toy::on_ranks(3, [&](distx::ThreadCommunicator& comm) {
      CAPTURE(stage);
      std::vector<distx::Parameter<float>> parameters;
      parameters.emplace_back("weight", 2000, distx::ParameterOptions{.rows = 40});
      distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Compress<PowerSGD<1>>> training(
          comm, parameters, distx::SGD{}, {.stage = stage});
      const bool has_batch = comm.rank() < 2;
      CHECK(training.announce_batch(has_batch) == 2);
      if (has_batch) {
        const auto weights = training.unshard(parameters[0]);
        for (float& value : training.gradient(parameters[0])) value = 3;
        training.ready(parameters[0]);
      }
      training.step({.learning_rate = 1});
      const auto weights = training.unshard(parameters[0]);
      CHECK(training.value(parameters[0])[5] == doctest::Approx(-2).epsilon(1e-5));
    });
}

TEST_CASE("at stage 3 ranks whose parameters become ready in other orders get a MismatchError with a hook, too") {
  for (const auto& ending : toy::endings(2, [](auto& comm) {
         std::vector<distx::Parameter<float>> parameters;
         for (const char* name : {"a.weight", "b.weight"}) parameters.emplace_back(name, 4);
         distx::DataParallel<distx::ZeRO<3>, distx::Compress<Average>> training(comm, parameters, distx::SGD{});
         for (const int p : {0, 1}) {
           const auto& parameter = parameters[static_cast<std::size_t>(comm.rank() == 0 ? p : 1 - p)];
           (void)training.gradient(parameter);
           training.ready(parameter);
         }
         training.step({.learning_rate = 1});
       })) {
    CHECK(ending.kind == "mismatch");
    CHECK(toy::says(ending.words, "ready in the same order on every rank"));
  }
}

TEST_CASE("groups of Hybrid average in 16 bits") {
  toy::on_ranks(4, [&](distx::ThreadCommunicator& comm) {
    std::vector<distx::Parameter<float>> parameters;
    parameters.emplace_back("weight", 2000);
    distx::DataParallel<distx::ZeRO<2>, distx::Hybrid, distx::Compress<bfloat16>> training(
        comm, parameters, distx::SGD{}, {.group_ranks = 2});
    for (float& value : training.gradient(parameters[0])) value = static_cast<float>(comm.rank());
    training.ready(parameters[0]);
    training.step({.learning_rate = 1});
    for (const float value : parameters[0].value()) CHECK(value == -1.5F);
  });
}

/// Throws on one rank.
struct Broken {
  static std::size_t state_size(const BucketShape&) { return 0; }
  static void reduce(const GradientBucket& bucket) {
    if (bucket.comm.rank() == 1) throw std::runtime_error("no more bits");
    distx::all_reduce(bucket.comm, bucket.gradients, distx::average, bucket.location);
  }
};

TEST_CASE("an exception of a hook on one rank ends the step on all") {
  for (const int stage : {0, 2}) {
    const auto all =
        toy::endings(3, [&](auto& comm) { (void)train<distx::Compress<Broken>>(comm, {{.stage = stage}}); });
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      CHECK(all[rank].kind == (rank == 1 ? "another" : "revoked"));
      CHECK(toy::says(all[rank].words, "no more bits"));
    }
  }
}

TEST_CASE("Compress is refused where no parameter is of float") {
  for (const auto& ending : toy::endings(2, [](auto& comm) {
         std::vector<distx::Parameter<double>> parameters;
         parameters.emplace_back("weight", 4);
         const distx::DataParallel<distx::Compress<bfloat16>> training(comm, parameters, distx::SGD{});
       }))
    CHECK(toy::says(ending.words, "Compress has no effect: no trained parameter is of float; remove Compress"));
}

TEST_CASE("ranks with different hooks get a MismatchError with their names") {
  for (const auto& ending : toy::endings(2, [](auto& comm) {
         std::vector<distx::Parameter<float>> parameters;
         parameters.emplace_back("weight", 4);
         if (comm.rank() == 0)
           distx::DataParallel<distx::Compress<PowerSGD<4>>>(comm, parameters, distx::SGD{});
         else
           distx::DataParallel<distx::Compress<PowerSGD<2>>>(comm, parameters, distx::SGD{});
       })) {
    CHECK(ending.kind == "mismatch");
    CHECK(toy::says(ending.words, "hooks::PowerSGD<4"));
    CHECK(toy::says(ending.words, "hooks::PowerSGD<2"));
  }
}

}  // namespace compress_test
