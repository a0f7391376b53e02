// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <algorithm>

#include "stages.hpp"

using namespace distx::literals;

namespace {

using toy::says;
using Floats = std::vector<float>;

/// Checks the message of each rank's error.
template <class F>
void check_words(int ranks, const std::string& words, F&& f) {
  for (const auto& ending : toy::endings(ranks, f)) {
    CAPTURE(ending.words);
    CHECK(says(ending.words, words));
  }
}

/// Ready for everything, regardless of its gradient.
template <class T, class Parameters>
void ready_all(T& training, const Parameters& parameters) {
  for (const auto& p : parameters) {
    static_cast<void>(training.gradient(p));
    training.ready(p);
  }
}

}  // namespace

TEST_CASE("at stage 3 a value is readable only in the scope of unshard") {
  for (const int ranks : {1, 3}) {
    check_words(ranks, "'block0.layer1' is held in shards; read it in the scope of", [](auto& comm) {
      const auto parameters = stages::owned();
      distx::DataParallel<distx::ZeRO<3>> training(comm, parameters, distx::SGD{});
      static_cast<void>(parameters[1].value());
    });
    toy::on_ranks(ranks, [](distx::ThreadCommunicator& comm) {
      const auto parameters = stages::owned();
      distx::DataParallel<distx::ZeRO<3>> training(comm, parameters, distx::SGD{});
      {
        const auto outer = training.unshard(parameters[1]);
        CHECK(parameters[2].value()[0] == static_cast<float>(toy::first_weight(2, 0)));  // of the same unit
        CHECK_THROWS_AS(static_cast<void>(parameters[3].value()), distx::Error);
        {
          const auto inner = training.unshard(parameters);
          CHECK(parameters[7].value()[6] == static_cast<float>(toy::first_weight(7, 6)));
        }
        CHECK_THROWS_AS(static_cast<void>(parameters[7].value()), distx::Error);
        CHECK(training.value(parameters[0])[16] == static_cast<float>(toy::first_weight(0, 16)));
      }
      CHECK_THROWS_AS(static_cast<void>(parameters[0].value()), distx::Error);
      {
        const auto scope = training.evaluate();
        const auto weights = training.unshard(parameters[4]);
        CHECK(parameters[4].value().size() == 3);
      }
    });
  }
}

TEST_CASE("gradients are refused during an evaluation") {
  for (const int stage : {0, 3}) {
    check_words(2, "gradients are not available inside the scopes of evaluate()", [&](auto& comm) {
      const auto parameters = stages::owned();
      stages::Training training(comm, parameters, distx::SGD{}, {.stage = stage});
      const auto scope = training.evaluate();
      static_cast<void>(training.gradient(parameters[0]));
    });
    check_words(2, "ready on rank", [&](auto& comm) {
      const auto parameters = stages::owned();
      stages::Training training(comm, parameters, distx::SGD{}, {.stage = stage});
      const auto scope = training.evaluate();
      training.ready(parameters[0]);
    });
    toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {  // between forward and backward, too
      const auto parameters = stages::owned();
      stages::Training training(comm, parameters, distx::SGD{}, {.stage = stage});
      for (int step = 0; step < 3; ++step) {
        const auto look = [&] {
          const auto scope = training.evaluate();
          for (std::size_t p = step == 1 ? 3 : 0; p < 5; ++p) static_cast<void>(training.unshard(parameters[p]));
        };
        look();
        ready_all(training, parameters);
        look();
        training.step({.learning_rate = 1});
      }
    });
  }
}

TEST_CASE("an error of unshard or ready names the line of the call, with any number of parameters") {
  const auto line_after = [](const std::source_location& here = std::source_location::current()) {
    return "[sharding_test.cpp:" + std::to_string(here.line() + 1) + "]";
  };
  for (const int call : {0, 1, 2, 3}) {
    CAPTURE(call);
    std::string line;
    const auto endings = toy::endings(2, [&](auto& comm) {
      const auto parameters = stages::owned();
      distx::DataParallel<distx::ZeRO<3>> training(comm, parameters, distx::SGD{});
      const distx::Parameter<float> stranger("stranger", 3);
      if (comm.rank() == 0) {
        static_cast<void>(training.unshard(parameters[0]));
        return static_cast<void>(training.value(parameters[0]));
      }
      if (call == 0) {
        line = line_after();
        static_cast<void>(training.unshard(stranger));
      } else if (call == 1) {
        line = line_after();
        static_cast<void>(training.unshard(stranger, parameters[0], parameters[1]));
      } else if (call == 2) {
        line = line_after();
        training.ready(stranger, parameters[0]);
      } else {
        line = line_after();
        training.ready(stranger, parameters[0], parameters[1], parameters[2]);
      }
    });
    CHECK(endings[1].kind == "argument");
    for (const auto& ending : endings) {
      CAPTURE(ending.words);
      CHECK(says(ending.words, line));
    }
  }
}

TEST_CASE("ranks that unshard different units get an error on every rank, and read no wrong weights") {
  for (const bool overlap : {false, true})
    for (const bool evaluates : {false, true})
      for (const int ranks : {2, 3}) {
        CAPTURE(overlap);
        CAPTURE(evaluates);
        CAPTURE(ranks);
        const auto endings = toy::endings(ranks, [&](auto& comm) {
          std::vector<distx::Parameter<float>> parameters;
          for (const float value : {1.0f, 2.0f})
            parameters.emplace_back("layer" + std::to_string(parameters.size()), 64,
                                    [value](distx::Span<float> all) { std::fill(all.begin(), all.end(), value); });
          distx::DataParallel<distx::ZeRO<3>> training(comm, parameters, distx::SGD{}, {.overlap = overlap});
          const auto evaluation = evaluates ? std::optional(training.evaluate()) : std::nullopt;
          for (const std::size_t k : {0u, 1u}) {
            const auto& parameter = parameters[comm.rank() == 1 ? 1 - k : k];
            const auto weights = training.unshard(parameter);
            CHECK(parameter.value()[0] == (parameter.name() == "layer0" ? 1 : 2));
          }
        });
        for (const auto& ending : endings) {
          CAPTURE(ending.words);
          CHECK((ending.kind == "mismatch" || ending.kind == "revoked"));
          CHECK(says(ending.words, "call unshard in the same order on every rank"));
          CHECK(says(ending.words, "[sharding_test.cpp:"));
          CHECK(says(ending.words, "rank 1"));
          CHECK(says(ending.words, "'layer0'"));
          CHECK(says(ending.words, "'layer1'"));
        }
      }
}

TEST_CASE("at stage 3, ranks that call ready in different orders get an error on every rank") {
  for (const bool overlap : {false, true})
    for (const std::size_t bytes : {std::size_t{0}, distx::unlimited}) {
      CAPTURE(overlap);
      CAPTURE(bytes);
      const auto endings = toy::endings(3, [&](auto& comm) {
        const auto parameters = stages::owned();
        distx::DataParallel<distx::ZeRO<3>> training(comm, parameters, distx::SGD{},
                                                     {.bucket_bytes = bytes, .overlap = overlap});
        const auto weights = training.unshard(parameters);
        for (std::size_t k = parameters.size(); k-- > 0;) {
          const std::size_t swapped = k == 2 ? 3 : k == 3 ? 2 : k;
          const auto& parameter = parameters[comm.rank() == 1 ? swapped : k];
          static_cast<void>(training.gradient(parameter));
          training.ready(parameter);
        }
        training.reduce_gradients();
      });
      for (const auto& ending : endings) {
        CAPTURE(ending.words);
        CHECK((ending.kind == "mismatch" || ending.kind == "revoked"));
        CHECK(says(ending.words, "call ready in the same order on every rank"));
      }
      CHECK(std::any_of(endings.begin(), endings.end(), [](const auto& one) { return one.kind == "mismatch"; }));
    }
}

TEST_CASE("a scope that outlives the training does nothing, and its weights are lost") {
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    const auto parameters = stages::owned();
    distx::DataParallel<distx::ZeRO<3>>::scope scope;
    {
      distx::DataParallel<distx::ZeRO<3>> training(comm, parameters, distx::SGD{});
      scope = training.unshard(parameters);
      CHECK(parameters[0].value().size() == 17);
    }
    CHECK_THROWS_WITH_AS(static_cast<void>(parameters[0].value()), doctest::Contains("by a training that has ended"),
                         distx::Error);
  });
  check_words(2, "'block0.layer0' was held in shards by a training that has ended", [](auto& comm) {
    const auto parameters = stages::owned();
    { distx::DataParallel<distx::ZeRO<3>> training(comm, parameters, distx::SGD{}); }
    distx::DataParallel<> again(comm, parameters, distx::SGD{});
  });
}

TEST_CASE("a step inside a scope of unshard is an error") {
  check_words(2, "'block1' is still unsharded, and its weights would become stale", [](auto& comm) {
    const auto parameters = stages::owned();
    distx::DataParallel<distx::ZeRO<3>> training(comm, parameters, distx::SGD{});
    const auto weights = training.unshard(parameters[3]);
    ready_all(training, parameters);
    training.step({.learning_rate = 1});
  });
}

TEST_CASE("units follow the option, or the names up to the last dot") {
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    std::vector<distx::Parameter<float>> p;
    p.emplace_back("a.weight", 5);
    p.emplace_back("b.weight", 5, distx::ParameterOptions{.unit = "tied"});
    p.emplace_back("a.bias", 5);
    p.emplace_back("c", 5, distx::ParameterOptions{.unit = "tied"});
    p.emplace_back("d", 5);
    p.emplace_back("e", 5);
    distx::DataParallel<distx::ZeRO<3>> training(comm, p, distx::SGD{});
    const auto whole = [&](std::size_t i) {
      try {
        return p[i].value().size() == 5;
      } catch (const distx::Error&) {
        return false;
      }
    };
    const auto seen = [&](const distx::Parameter<float>& of) {
      const auto weights = training.unshard(of);
      std::string text;
      for (std::size_t i = 0; i < p.size(); ++i) text += whole(i) ? '1' : '0';
      return text;
    };
    CHECK(seen(p[0]) == "101000");
    CHECK(seen(p[3]) == "010100");
    CHECK(seen(p[4]) == "000010");
    CHECK(seen(p[5]) == "000001");
  });
}

TEST_CASE("a gradient starts from zeros, is refused after ready, and may exceed the pool") {
  for (const int stage : {0, 1, 2, 3})
    toy::on_ranks(3, [stage](distx::ThreadCommunicator& comm) {
      const std::vector<distx::Parameter<float>> parameters = [] {
        std::vector<distx::Parameter<float>> made;
        for (int p = 0; p < 12; ++p) made.emplace_back("p" + std::to_string(p), 1000);
        return made;
      }();
      stages::Training training(comm, parameters, distx::SGD{}, {.bucket_bytes = 0, .stage = stage});
      for (int step = 0; step < 2; ++step) {
        std::vector<distx::Span<float>> open;  // all at once: more than the pool has
        for (const auto& p : parameters) open.push_back(training.gradient(p));
        for (const auto& gradient : open) {
          CHECK(std::all_of(gradient.begin(), gradient.end(), [](float x) { return x == 0; }));
          for (auto& x : gradient) x += static_cast<float>(comm.rank());
        }
        for (const auto& p : parameters) training.ready(p);
        CHECK_THROWS_WITH_AS(static_cast<void>(training.gradient(parameters[3])),
                             doctest::Contains("'p3' was declared ready"), distx::Error);
        training.step({.learning_rate = 1});
      }
      const auto weights = training.unshard(parameters);
      for (const auto& p : parameters) CHECK(p.value()[999] == -2.0f);
      const auto in_flight = training.memory().in_flight;
      if (stage == 2) CHECK((in_flight.held == 3 * 4032 && in_flight.peak == 12 * 4032));
    });
}

TEST_CASE("owned returns the fragments that this rank updates, for custom kernels") {
  const std::vector<std::size_t> sizes = {30000, 5, 777, 1};
  for (const int ranks : toy::rank_counts)
    for (const int stage : {0, 1})
      for (const bool one_array : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(stage);
        CAPTURE(one_array);
        std::vector<Floats> updates(static_cast<std::size_t>(ranks), Floats(30783));  // by each rank, of each element
        std::vector<Floats> results(static_cast<std::size_t>(ranks));
        toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
          Floats memory(2 * 40000);
          std::vector<distx::ParameterRef<float>> refs;
          std::vector<std::size_t> begins;
          std::size_t begin = 0;
          for (const auto size : sizes) {
            const std::size_t gap = one_array ? 0 : 100 * refs.size();
            refs.push_back(distx::ref("p" + std::to_string(begin), std::span(memory).subspan(begin + gap, size),
                                      std::span(memory).subspan(40000 + begin + gap, size)));
            begins.push_back(begin);
            begin += size;
          }
          stages::Training training(comm, refs, distx::SGD{}, {.bucket_bytes = distx::unlimited, .stage = stage});
          for (const auto& ref : refs)
            for (std::size_t i = 0; i < ref.gradient.size(); ++i)
              ref.gradient[i] = static_cast<float>(i % 1000) + static_cast<float>(2 * comm.rank());
          training.ready(refs);
          training.reduce_gradients();
          const auto owned = training.owned();
          if (one_array && stage == 1) CHECK(owned.size() <= sizes.size());
          for (const auto& fragment : owned) {
            const auto weights = fragment.weights<float>();
            const auto gradients = fragment.gradients<float>();
            CHECK(weights.data() == refs[fragment.parameter].weight.data() + fragment.offset);
            CHECK(fragment.offset + weights.size() <= refs[fragment.parameter].weight.size());
            for (std::size_t i = 0; i < weights.size(); ++i) {
              weights[i] -= gradients[i];
              ++updates[static_cast<std::size_t>(comm.rank())][begins[fragment.parameter] + fragment.offset + i];
            }
          }
          training.gather_weights();
          for (const auto& ref : refs)
            results[static_cast<std::size_t>(comm.rank())].insert(results[static_cast<std::size_t>(comm.rank())].end(),
                                                                  ref.weight.begin(), ref.weight.end());
        });
        Floats total(30783), expected;
        for (const auto size : sizes)
          for (std::size_t i = 0; i < size; ++i)
            expected.push_back(-static_cast<float>(i % 1000) - static_cast<float>(ranks - 1));
        for (const auto& rank : updates)
          for (std::size_t i = 0; i < total.size(); ++i) total[i] += rank[i];
        CHECK(total == Floats(30783, stage == 0 ? static_cast<float>(ranks) : 1.0f));
        for (const auto& rank : results) CHECK(rank == expected);
      }
  check_words(2, "owned on rank", [](auto& comm) {
    const auto parameters = stages::owned();
    distx::DataParallel<distx::ZeRO<1>> training(comm, parameters, distx::SGD{});
    static_cast<void>(training.owned());
  });
}

TEST_CASE("the gradient norm has the same bits for every partition, and clips the gradients") {
  for (const int ranks : toy::rank_counts) {
    std::vector<double> norms;
    for (const int stage : {0, 1, 2, 3})
      for (const std::size_t bytes : {0_KiB, distx::unlimited})
        toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
          const auto parameters = stages::owned();
          stages::Training training(comm, parameters, distx::SGD{},
                                    {.bucket_bytes = bytes, .stage = stage, .clip_norm = 0.5});
          double exact = 0;
          for (const auto& p : parameters) {
            const auto gradient = training.gradient(p);
            for (std::size_t i = 0; i < gradient.size(); ++i) {
              // Few bits, so that every rank's is the average to the last of them.
              gradient[i] = std::round(1024 * static_cast<float>(std::sin(0.1 * static_cast<double>(i)))) / 1024;
              exact += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
            }
            training.ready(p);
          }
          training.reduce_gradients();
          CHECK(training.gradient_norm() == doctest::Approx(std::sqrt(exact)).epsilon(1e-12));
          double clipped = 0;
          for (const auto& fragment : training.owned())
            for (const float g : fragment.gradients<float>())
              clipped += static_cast<double>(g) * static_cast<double>(g);
          double all[1] = {stage == 0 ? clipped / ranks : clipped};
          distx::all_reduce(comm, all, distx::sum);
          CHECK(std::sqrt(all[0]) == doctest::Approx(0.5).epsilon(1e-6));
          training.gather_weights();
          if (comm.rank() == 0) norms.push_back(training.gradient_norm());
        });
    for (const double norm : norms) CHECK(norm == norms.front());
  }
}

TEST_CASE("with clipping, a gradient that is not finite is named on every rank") {
  for (const int stage : {0, 1, 2, 3})
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
      check_words(3, "the gradient of 'block1.layer4' is infinite or not a number", [&](auto& comm) {
        const auto parameters = stages::owned();
        stages::Training training(comm, parameters, distx::SGD{}, {.stage = stage, .clip_norm = 1});
        for (const std::size_t p : {std::size_t{4}, std::size_t{5}})
          training.gradient(parameters[p])[1] = comm.rank() == 2 ? bad : 0;
        ready_all(training, parameters);
        training.step({.learning_rate = 1});
      });
}

TEST_CASE("invalid options, and combinations that a stage does not support, are errors") {
  const auto made = [](const distx::DataParallelOptions& options) {
    return [options](auto& comm) {
      const auto parameters = stages::owned();
      stages::Training training(comm, parameters, distx::SGD{}, options);
    };
  };
  check_words(2, "ZeRO<Dynamic> needs .stage", made({}));
  check_words(2, "invalid .stage = 4", made({.stage = 4}));
  check_words(2, "invalid .clip_norm = -1: must be > 0", made({.stage = 1, .clip_norm = -1}));
  check_words(2, ".stage has no effect with the policy ZeRO<1>", [](auto& comm) {
    const auto parameters = stages::owned();
    distx::DataParallel<distx::ZeRO<1>> training(comm, parameters, distx::SGD{}, {.stage = 1});
  });
  check_words(2, "'layer0' is borrowed, but ZeRO<2> allocates gradients itself", [](auto& comm) {
    toy::Model model;
    stages::Training training(comm, model.parameters(), distx::SGD{}, {.stage = 2});
  });
  check_words(2, "the list of policies differs: rank 0 has ZeRO<2>", [](auto& comm) {
    const auto parameters = stages::owned();
    stages::Training training(comm, parameters, distx::SGD{}, {.stage = comm.rank() + 2});
  });
}
