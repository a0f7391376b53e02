// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/point_to_point.hpp>

#include <limits>

#include "toy.hpp"

namespace {

using Floats = std::vector<float>;
using toy::says;

/// The given rank ends in the given error, all others in that one or in a revocation that repeats its words.
void check_endings(const std::vector<toy::Ending>& endings, std::size_t culprit, const std::string& words) {
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    CAPTURE(rank);
    CAPTURE(endings[rank].words);
    if (rank == culprit)
      CHECK(endings[rank].kind == "mismatch");
    else
      CHECK((endings[rank].kind == "mismatch" || endings[rank].kind == "revoked"));
    CHECK(says(endings[rank].words, words));
  }
}

/// A model of two parameters, and what one rank does wrong with it.
struct Two {
  Floats a = Floats(10, 1), a_gradient = Floats(10), b = Floats(20, 1), b_gradient = Floats(20);
  std::vector<distx::ParameterRef<float>> parameters(const distx::ParameterOptions& options = {}) {
    return {distx::ref("a", a, a_gradient), distx::ref("b", b, b_gradient, options)};
  }
};

/// Runs `wrong(training, model)` on one rank and a faultless step on the others, overlapped and not.
template <class Wrong>
void check_step(const std::string& words, Wrong&& wrong, const distx::ParameterOptions& options_of_b = {}) {
  for (const bool overlap : {false, true})
    for (const int ranks : toy::rank_counts) {
      CAPTURE(overlap);
      CAPTURE(ranks);
      const int culprit = ranks / 2;
      const auto endings = toy::endings(ranks, [&](distx::ThreadCommunicator& comm) {
        Two model;
        distx::DataParallel<> training(comm, model.parameters(options_of_b), distx::SGD{},
                                       {.bucket_bytes = 0, .overlap = overlap});
        if (comm.rank() == culprit) {
          wrong(training, model);
        } else {
          if (options_of_b.trainable)
            for (int use = 0; use < options_of_b.uses; ++use) training.ready(model.b);
          training.ready(model.a);
          training.step({.learning_rate = 1});
          distx::barrier(comm);  // where all may be well here before the culprit errs
        }
      });
      check_endings(endings, static_cast<std::size_t>(culprit), words);
    }
}

/// Makes a training of `parameters(comm)` on every rank.
template <class Parameters>
std::vector<toy::Ending> make(int ranks, Parameters&& parameters, const distx::DataParallelOptions& options = {}) {
  return toy::endings(ranks, [&](distx::ThreadCommunicator& comm) {
    distx::DataParallel<> training(comm, parameters(comm), distx::SGD{}, options);
  });
}

}  // namespace

TEST_CASE("ready twice") {
  check_step("'b' is ready already", [](auto& training, Two& model) { training.ready(model.b, model.b); });
  check_step("'b' has been ready for all of its .uses",
             [](auto& training, Two& model) { training.ready(model.b, model.b, model.b); }, {.uses = 2});
}

TEST_CASE("a borrowed gradient asked for after ready, or where there is none") {
  const auto ask = [](auto& training, Two& model) {
    training.ready(model.b);
    static_cast<void>(training.gradient(model.parameters()[1]));
  };
  check_step("'b' was declared ready, and its gradient is being reduced: write it before ready", ask);
  check_step("gradient on rank", [](auto& training, Two& model) {
    training.ready(model.b, model.a);
    training.reduce();
    static_cast<void>(training.gradient(model.parameters()[1]));
  });
  check_step("'b' is frozen and has no gradient: set .trainable",
             [](auto& training, Two& model) { static_cast<void>(training.gradient(model.parameters()[1])); },
             {.trainable = false});
  for (const auto& ending : toy::endings(2, [](distx::ThreadCommunicator& comm) {  // the next use, and the next step
         Two model;
         const auto parameters = model.parameters({.uses = 2});
         distx::DataParallel<> training(comm, parameters, distx::SGD{});
         for (int step = 0; step < 2; ++step) {
           for (int use = 0; use < 2; ++use) {
             training.gradient(parameters[1])[0] += 1;
             training.ready(parameters[1]);
           }
           training.ready(parameters[0]);
           training.step({.learning_rate = 1});
         }
         CHECK(model.b[0] == -3);  // the gradients of both uses together, from zero in both steps
       }))
    CHECK(ending.kind == "no error");
}

TEST_CASE("a parameter without a gradient, where that is not allowed") {
  check_step("'a' has no gradient in this step", [](auto& training, Two& model) {
    training.ready(model.b);
    training.step({.learning_rate = 1});
  });
  check_step("ready was called 1 times for 'b', declared with .uses = 2",
             [](auto& training, Two& model) {
               training.ready(model.a, model.b);
               training.step({.learning_rate = 1});
             },
             {.uses = 2});
}

TEST_CASE("no rank has a gradient, where that is not allowed") {
  for (const int ranks : toy::rank_counts)
    for (const auto& ending : toy::endings(ranks, [](distx::ThreadCommunicator& comm) {
           Two model;
           distx::DataParallel<> training(comm, model.parameters(), distx::SGD{});
           training.step({.learning_rate = 1});
         }))
      CHECK(says(ending.words, "'a' has no gradient"));
}

TEST_CASE("ready for what is frozen, a buffer, or nothing of the training's") {
  check_step("'b' is frozen", [](auto& training, Two& model) { training.ready(model.b); }, {.trainable = false});
  check_step("none of the training's parameters", [](auto& training, Two& model) { training.ready(model.a_gradient); });
  check_step("none of the training's parameters",
             [](auto& training, Two&) { training.ready(distx::Parameter<float>("stranger", 3)); });
  for (const auto& ending : toy::endings(2, [](distx::ThreadCommunicator& comm) {
         Two model;
         Floats buffer(3);
         distx::ParameterList<> list(model.parameters());
         distx::DataParallel<> training(comm, list.add(distx::buffer_ref("statistics", buffer)), distx::SGD{});
         training.ready(buffer);
       }))
    CHECK(says(ending.words, "'statistics' is a buffer"));
}

TEST_CASE("the parts of a step out of their order") {
  check_step("'a' comes after reduce", [](auto& training, Two& model) {
    training.ready(model.b, model.a);
    training.reduce();
    training.ready(model.a);
  });
  check_step("reduced already", [](auto& training, Two& model) {
    training.ready(model.b, model.a);
    training.reduce();
    training.reduce();
  });
  check_step("update", [](auto& training, Two&) { training.update({.learning_rate = 1}); });
  check_step("call reduce first", [](auto& training, Two&) { training.gather(); });
}

TEST_CASE("a learning rate that is not given, not finite or negative") {
  const double inf = std::numeric_limits<double>::infinity();
  check_step("the learning rate is not a number", [](auto& training, Two&) { training.step({}); });
  for (const double bad : {inf, -inf, -1e-3})
    check_step("it must be finite and at least 0", [bad](auto& training, Two& model) {
      training.ready(model.b, model.a);
      training.step({.learning_rate = bad});
    });
}

TEST_CASE("a gradient that was written and not declared ready") {
  for (const bool allowed : {false, true})
    for (const int ranks : {1, 3}) {
      const auto endings = toy::endings(ranks, [&](distx::ThreadCommunicator& comm) {
        distx::Parameter<float> parameter("p", 10);
        distx::DataParallel<> training(comm, distx::ParameterList<>().add(parameter), distx::SGD{},
                                       {.allow_unused = allowed});
        parameter.gradient()[0] = 1;
        if (comm.rank() != 0) training.ready(parameter);
        training.step({.learning_rate = 1});
      });
      check_endings(endings, 0, "the gradient of 'p' was asked for, and ready was not called");
    }
}

TEST_CASE("models that differ among ranks: every rank names the first difference") {
  struct Case {
    const char* words;
    std::function<distx::ParameterList<>(Two&, bool odd)> list;
  };
  Floats more(5);
  const auto base = [](Two& two) { return distx::ref("a", two.a, two.a_gradient); };
  const std::vector<Case> cases = {
      {"parameter 1 differs",
       [&](Two& two, bool odd) {
         distx::ParameterList<> list;
         list.add(base(two));
         return odd ? list : list.add(distx::ref("b", two.b, two.b_gradient));
       }},
      {"'second', 20 of float32",
       [&](Two& two, bool odd) {
         return distx::ParameterList<>().add(base(two)).add(distx::ref(odd ? "second" : "b", two.b, two.b_gradient));
       }},
      {"'b', 10 of float32",
       [&](Two& two, bool odd) {
         two.b.resize(odd ? 10 : 20);
         two.b_gradient.resize(odd ? 10 : 20);
         return distx::ParameterList<>().add(base(two)).add(distx::ref("b", two.b, two.b_gradient));
       }},
      {"'b', 20 of float32, frozen",
       [&](Two& two, bool odd) {
         return distx::ParameterList<>().add(base(two)).add(
             distx::ref("b", two.b, two.b_gradient, {.trainable = !odd}));
       }},
      {"'b', 20 of float32, weight decay 2e-09",
       [&](Two& two, bool odd) {
         const distx::ParameterGroup group{.weight_decay = odd ? 2e-9 : 1e-9};
         return distx::ParameterList<>().add(base(two)).add(distx::ref("b", two.b, two.b_gradient, {.group = group}));
       }},
      {"'b', 20 of float32, used 2 times",
       [&](Two& two, bool odd) {
         return distx::ParameterList<>().add(base(two)).add(
             distx::ref("b", two.b, two.b_gradient, {.uses = odd ? 2 : 1}));
       }},
      {"'b', 20 of float32, owned",
       [&](Two& two, bool odd) {
         distx::ParameterList<> list;
         list.add(base(two));
         return odd ? list.add(distx::Parameter<float>("b", 20)) : list.add(distx::ref("b", two.b, two.b_gradient));
       }},
      {"'b', 20 of float32, a buffer",
       [&](Two& two, bool odd) {
         distx::ParameterList<> list;
         list.add(base(two));
         return odd ? list.add(distx::buffer_ref("b", two.b)) : list.add(distx::ref("b", two.b, two.b_gradient));
       }},
      {"'b', 10 of float64",
       [&](Two& two, bool odd) {
         static thread_local std::vector<double> other(10);
         static thread_local std::vector<double> other_gradient(10);
         distx::ParameterList<> list;
         list.add(base(two));
         return odd ? list.add(distx::ref("b", other, other_gradient))
                    : list.add(distx::ref("b", two.b, two.b_gradient));
       }},
  };
  for (const int ranks : {2, 3, 4, 7})
    for (const int odd : {0, ranks - 1})
      for (const auto& [words, list] : cases) {
        CAPTURE(ranks);
        CAPTURE(words);
        std::vector<Two> models(static_cast<std::size_t>(ranks));
        const auto endings = make(ranks, [&](distx::ThreadCommunicator& comm) {
          return list(models[static_cast<std::size_t>(comm.rank())], comm.rank() == odd);
        });
        for (const auto& ending : endings) {
          CHECK(ending.kind == "mismatch");
          CHECK(says(ending.words, words));
          CHECK(says(ending.words, "rank 0 has "));
          CHECK(says(ending.words, odd == 0 ? "; rank 1 has " : "; rank " + std::to_string(odd) + " has "));
        }
      }
}

TEST_CASE("options and optimizers that differ among ranks") {
  const auto differ = [](auto&& options, auto&& optimizer) {
    return toy::endings(3, [&](distx::ThreadCommunicator& comm) {
      Two model;
      if (comm.rank() == 1)
        distx::DataParallel<>(comm, model.parameters(), optimizer, options);
      else
        distx::DataParallel<>(comm, model.parameters(), distx::SGD{});
    });
  };
  const auto check = [](const std::vector<toy::Ending>& endings, const std::string& words) {
    for (const auto& ending : endings) {
      CHECK(ending.kind == "mismatch");
      CHECK(says(ending.words, "the options differ: rank 0 has "));
      CHECK(says(ending.words, words));
    }
  };
  check(differ(distx::DataParallelOptions{.bucket_bytes = 77}, distx::SGD{}), "bucket_bytes = 77");
  check(differ(distx::DataParallelOptions{.overlap = false}, distx::SGD{}), "overlap = false");
  check(differ(distx::DataParallelOptions{.allow_unused = true}, distx::SGD{}), "allow_unused = true");
  check(differ(distx::DataParallelOptions{.broadcast_from = 2}, distx::SGD{}), "broadcast_from = 2");
  check(differ(distx::DataParallelOptions{}, distx::AdamW{}), "; rank 1 has ");
  const auto small = toy::endings(2, [](distx::ThreadCommunicator& comm) {
    Two model;
    distx::DataParallel<>(comm, model.parameters(), distx::SGD{}, {.clip_norm = comm.rank() == 0 ? 1e-7 : 3e-7});
  });
  check(small, "clip_norm = 1e-07");
  check(small, "clip_norm = 3e-07");
}

TEST_CASE("a list that one rank can see to be wrong ends all ranks") {
  const auto check = [](const std::string& words, auto&& list) {
    for (const int ranks : {1, 2, 4}) {
      std::vector<Two> models(static_cast<std::size_t>(ranks));
      const auto endings = make(ranks, [&](distx::ThreadCommunicator& comm) {
        Two& two = models[static_cast<std::size_t>(comm.rank())];
        return comm.rank() == ranks - 1 ? list(two) : distx::ParameterList<>(two.parameters());
      });
      check_endings(endings, static_cast<std::size_t>(ranks - 1), words);
    }
  };
  check("overlap in memory: list a tied parameter once", [](Two& two) {
    return distx::ParameterList<>(two.parameters()).add(distx::ref("head", two.a, two.a_gradient));
  });
  check("'b' and 'tail' overlap in memory", [](Two& two) {
    return distx::ParameterList<>(two.parameters()).add(distx::buffer_ref("tail", std::span(two.b).subspan(15)));
  });
  check("the weight of 'c' and its gradient overlap", [](Two& two) {
    return distx::ParameterList<>().add(distx::ref("c", std::span(two.a).first(6), std::span(two.a).last(6)));
  });
  check("two parameters have the name 'a'", [](Two& two) {
    return distx::ParameterList<>()
        .add(distx::ref("a", two.a, two.a_gradient))
        .add(distx::ref("a", two.b, two.b_gradient));
  });
  check("'b' has 20 elements, its gradient 10", [](Two& two) {
    auto b = distx::ref("b", two.b, two.b_gradient);
    b.gradient = b.gradient.first(10);
    return distx::ParameterList<>().add(b);
  });
  check("'b' is in a training already", [](Two&) {
    static thread_local distx::SelfConnector self;
    static thread_local distx::ThreadCommunicator alone(self);
    static thread_local distx::Parameter<float> b("b", 20);
    static thread_local distx::DataParallel<> first(alone, distx::ParameterList<>().add(b), distx::SGD{});
    return distx::ParameterList<>().add(b);
  });
}

TEST_CASE("a bad root, optimizer or group ends all ranks") {
  for (const int root : {-1, 3}) {
    std::vector<Two> models(3);
    const auto endings = make(3, [&](auto& comm) { return models[static_cast<std::size_t>(comm.rank())].parameters(); },
                              {.broadcast_from = root});
    check_endings(endings, 0, "is no rank: ranks are 0 to 2");
  }
  for (const auto& ending : toy::endings(3, [](distx::ThreadCommunicator& comm) {
         Two model;
         distx::DataParallel<>(comm, model.parameters(), distx::SGD{.momentum = comm.rank() == 1 ? 2.0 : 0.0});
       }))
    CHECK(says(ending.words, "momentum is 2"));
  Two two;
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const distx::ParameterGroup scale{.learning_rate_scale = bad};
    const distx::ParameterGroup decay{.weight_decay = bad};
    CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("a", two.a, two.a_gradient, {.group = scale})),
                         doctest::Contains("learning_rate_scale"), distx::MismatchError);
    CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("a", two.a, two.a_gradient, {.group = decay})),
                         doctest::Contains("weight_decay"), distx::MismatchError);
  }
}

namespace {

struct NoDecay {
  static constexpr std::size_t states = 0;
  template <class T>
  T coefficients(const distx::Step& step) const {
    return static_cast<T>(step.learning_rate);
  }
  template <class T, class V>
  static constexpr void update(const T& rate, V& weight, V gradient) {
    weight -= rate * gradient;
  }
};

}  // namespace

TEST_CASE("a group's weight decay is not ignored by an optimizer that has none") {
  for (const auto& ending : toy::endings(2, [](distx::ThreadCommunicator& comm) {
         Two model;
         distx::DataParallel<>(comm, model.parameters({.group = {.weight_decay = 0.5}}), NoDecay{});
       }))
    CHECK(says(ending.words, "the group of 'b' sets .weight_decay, and the optimizer has none"));
}

TEST_CASE("bad parameters are refused where they are written") {
  Floats weight(10);
  Floats gradient(9);
  Floats none;
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", weight, gradient)),
                       doctest::Contains("'w' has 10 elements, its gradient 9"), distx::MismatchError);
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", none, none)), doctest::Contains("has no elements"),
                       distx::MismatchError);
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("", weight, weight)), doctest::Contains("no name"),
                       distx::MismatchError);
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", weight, distx::ParameterOptions{})),
                       doctest::Contains("has no gradient"), distx::MismatchError);
  for (const int uses : {0, -1})
    CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", weight, weight, {.uses = uses})),
                         doctest::Contains(".uses = "), distx::MismatchError);
  CHECK_THROWS_AS(distx::Parameter<float>("p", 0), distx::MismatchError);
}

TEST_CASE("an initialiser that throws on one rank ends all") {
  const auto endings = toy::endings(3, [](distx::ThreadCommunicator& comm) {
    distx::Parameter<float> p("p", 5, [&](distx::Span<float>) {
      if (comm.rank() == 2) throw std::runtime_error("no such file: weights.bin");
    });
    distx::DataParallel<>(comm, distx::ParameterList<>().add(p), distx::SGD{});
  });
  CHECK(endings[2].kind == "another");
  for (const std::size_t rank : {0u, 1u}) {
    CHECK(endings[rank].kind == "revoked");
    CHECK(says(endings[rank].words, "weights.bin"));
  }
}
