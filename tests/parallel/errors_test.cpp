// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/comm/decorators/decorator.hpp>
#include <distx/comm/point_to_point.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>

#include <limits>

#include "toy.hpp"

namespace {

using Floats = std::vector<float>;
using toy::says;

/// Checks that one rank throws an error of the given kind, and all others that one or a revocation with its message.
void check_endings(const std::vector<toy::Ending>& endings, std::size_t failing, const std::string& words,
                   const char* kind) {
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    CAPTURE(rank);
    CAPTURE(endings[rank].words);
    if (rank == failing)
      CHECK(endings[rank].kind == kind);
    else
      CHECK((endings[rank].kind == kind || endings[rank].kind == "revoked"));
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
void check_step(const char* kind, const std::string& words, Wrong&& wrong,
                const distx::ParameterOptions& options_of_b = {}) {
  for (const bool overlap : {false, true})
    for (const int ranks : toy::rank_counts) {
      CAPTURE(overlap);
      CAPTURE(ranks);
      const int failing = ranks / 2;
      const auto endings = toy::endings(ranks, [&](distx::ThreadCommunicator& comm) {
        Two model;
        distx::DataParallel<> training(comm, model.parameters(options_of_b), distx::SGD{},
                                       {.bucket_bytes = 0, .overlap = overlap});
        if (comm.rank() == failing) {
          wrong(training, model);
        } else {
          if (options_of_b.trainable)
            for (int use = 0; use < options_of_b.uses; ++use) training.ready(model.b);
          training.ready(model.a);
          training.step({.learning_rate = 1});
          distx::barrier(comm);  // where all may be well here before the failing rank throws
        }
      });
      check_endings(endings, static_cast<std::size_t>(failing), words, kind);
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

TEST_CASE("ready for a parameter that is already ready is an error") {
  check_step("state", "'b' is already ready", [](auto& training, Two& model) { training.ready(model.b, model.b); });
  check_step("state", "'b' has already been ready for all of its .uses",
             [](auto& training, Two& model) { training.ready(model.b, model.b, model.b); }, {.uses = 2});
}

TEST_CASE("requesting a borrowed gradient after ready, or of a frozen parameter, is an error") {
  const auto ask = [](auto& training, Two& model) {
    training.ready(model.b);
    static_cast<void>(training.gradient(model.parameters()[1]));
  };
  check_step("state", "'b' was declared ready, and its gradient is being reduced; write it before ready", ask);
  check_step("state", "gradient on rank", [](auto& training, Two& model) {
    training.ready(model.b, model.a);
    training.reduce_gradients();
    static_cast<void>(training.gradient(model.parameters()[1]));
  });
  check_step("argument", "'b' is frozen and has no gradient; set .trainable",
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

TEST_CASE("a parameter without a gradient is an error without allow_unused") {
  check_step("state", "'a' has no gradient in this step", [](auto& training, Two& model) {
    training.ready(model.b);
    training.step({.learning_rate = 1});
  });
  check_step("state", "'b' was ready less often than its .uses",
             [](auto& training, Two& model) {
               training.ready(model.a, model.b);
               training.step({.learning_rate = 1});
             },
             {.uses = 2});
}

TEST_CASE("a step without any gradient is an error without allow_unused") {
  for (const int ranks : toy::rank_counts)
    for (const auto& ending : toy::endings(ranks, [](distx::ThreadCommunicator& comm) {
           Two model;
           distx::DataParallel<> training(comm, model.parameters(), distx::SGD{});
           training.step({.learning_rate = 1});
         }))
      CHECK(says(ending.words, "'a' has no gradient"));
}

TEST_CASE("ready for a frozen parameter, a buffer or a foreign array is an error") {
  check_step("argument", "'b' is frozen", [](auto& training, Two& model) { training.ready(model.b); },
             {.trainable = false});
  check_step("argument", "not one of the training's parameters",
             [](auto& training, Two& model) { training.ready(model.a_gradient); });
  check_step("argument", "not one of the training's parameters",
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

TEST_CASE("reduce, update and gather out of order are errors") {
  check_step("state", "the gradients of this step are already reduced", [](auto& training, Two& model) {
    training.ready(model.b, model.a);
    training.reduce_gradients();
    training.ready(model.a);
  });
  check_step("state", "already reduced", [](auto& training, Two& model) {
    training.ready(model.b, model.a);
    training.reduce_gradients();
    training.reduce_gradients();
  });
  check_step("state", "the gradients of this step are not reduced; call reduce_gradients first",
             [](auto& training, Two&) { training.update_weights({.learning_rate = 1}); });
  check_step("state", "call reduce_gradients first", [](auto& training, Two&) { training.gather_weights(); });
}

TEST_CASE("a learning rate that is not finite or negative is an error") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double bad : {inf, -inf, std::numeric_limits<double>::quiet_NaN(), -1e-3})
    check_step("argument", "must be finite and >= 0", [bad](auto& training, Two& model) {
      training.ready(model.b, model.a);
      training.step({.learning_rate = bad});
    });
}

TEST_CASE("a gradient that was requested but not declared ready is an error") {
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
      check_endings(endings, 0, "'p' has a gradient that was requested but not declared ready", "state");
    }
}

TEST_CASE("models that differ among ranks are an error that names the first difference on every rank") {
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

TEST_CASE("options and optimizers that differ among ranks are an error with both values") {
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
      CHECK(says(ending.words, words));
    }
  };
  check(differ(distx::DataParallelOptions{.bucket_bytes = 77}, distx::SGD{}),
        ".bucket_bytes differs: rank 0 has 26214400; rank 1 has 77");
  check(differ(distx::DataParallelOptions{.overlap = false}, distx::SGD{}),
        ".overlap differs: rank 0 has true; rank 1 has false");
  check(differ(distx::DataParallelOptions{.allow_unused = true}, distx::SGD{}), ".allow_unused differs");
  check(differ(distx::DataParallelOptions{.broadcast_from = 2}, distx::SGD{}), ".broadcast_from differs");
  check(differ(distx::DataParallelOptions{}, distx::AdamW{}),
        "the optimizer differs: rank 0 has distx::SGD{.momentum = 0");
  check(differ(distx::DataParallelOptions{}, distx::AdamW{}), "rank 1 has distx::AdamW{.beta1 = 0.9, .beta2 = 0.999");
  const auto small = toy::endings(2, [](distx::ThreadCommunicator& comm) {
    Two model;
    distx::DataParallel<>(comm, model.parameters(), distx::SGD{}, {.clip_norm = comm.rank() == 0 ? 1e-7 : 3e-7});
  });
  check(small, ".clip_norm differs: rank 0 has 1e-07; rank 1 has 3e-07");
}

#if defined(__SSE2__)
TEST_CASE("ranks of which some flush subnormal numbers to zero are an error at construction") {
  for (const auto& ending : toy::endings(3, [](distx::ThreadCommunicator& comm) {
         if (comm.rank() == 1) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040u);
         Two model;
         distx::DataParallel<>(comm, model.parameters(), distx::SGD{});
       })) {
    CHECK(ending.kind == "mismatch");
    CHECK(says(ending.words,
               "the treatment of subnormal numbers differs: rank 0 has kept; rank 1 has flushed to zero; construct"));
  }
}
#endif

TEST_CASE("an optimizer's hyperparameters that differ among ranks are an error at construction") {
  const auto check = [](const std::string& words, auto&& optimizer_of) {
    for (const auto& ending : toy::endings(3, [&](distx::ThreadCommunicator& comm) {
           Two model;
           distx::DataParallel<>(comm, model.parameters({.rows = 4}), optimizer_of(comm.rank() == 2));
         })) {
      CHECK(ending.kind == "mismatch");
      CHECK(says(ending.words, "the optimizer differs: rank 0 has "));
      CHECK(says(ending.words, words));
    }
  };
  check(".momentum = 0.5", [](bool odd) { return distx::SGD{.momentum = odd ? 0.5 : 0.9}; });
  check(".nesterov = true", [](bool odd) { return distx::SGD{.momentum = 0.9, .nesterov = odd}; });
  check(".epsilon = 1e-07", [](bool odd) { return distx::AdamW{.epsilon = odd ? 1e-7 : 1e-8}; });
  check(".iterations = 6",
        [](bool odd) { return distx::Mixed{distx::Muon{.iterations = odd ? 6 : 5}, distx::AdamW{}}; });
}

TEST_CASE("learning rates that differ among ranks are an error with the step and both values") {
  const auto train = [](std::size_t wrong_step, std::size_t steps, bool in_parts) {
    return toy::endings(3, [&](distx::ThreadCommunicator& comm) {
      Two model;
      distx::DataParallel<> training(comm, model.parameters(), distx::SGD{});
      for (std::size_t step = 0; step < steps; ++step) {
        training.ready(model.b, model.a);
        const double rate = step == wrong_step && comm.rank() == 1 ? 0.25 : 0.5;
        if (in_parts) {
          training.reduce_gradients();
          training.update_weights({.learning_rate = rate});
          training.gather_weights();
        } else {
          training.step({.learning_rate = rate});
        }
      }
      training.for_each_full_weight([](const std::string&, distx::Span<const distx::AnyElement>) {});
    });
  };
  for (const bool in_parts : {false, true})
    for (const auto& [wrong_step, steps] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{20, 40}})
      for (const auto& ending :
           train(static_cast<std::size_t>(wrong_step), static_cast<std::size_t>(steps), in_parts)) {
        CHECK(ending.kind == "mismatch");
        CHECK(says(ending.words, ".learning_rate of step " + std::to_string(wrong_step) +
                                     " differs: rank 0 has 0.5; rank 1 has 0.25"));
      }
}

TEST_CASE("an invalid list on one rank is an error on every rank") {
  const auto check = [](const std::string& words, auto&& list, const char* kind = "argument") {
    for (const int ranks : {1, 2, 4}) {
      std::vector<Two> models(static_cast<std::size_t>(ranks));
      const auto endings = make(ranks, [&](distx::ThreadCommunicator& comm) {
        Two& two = models[static_cast<std::size_t>(comm.rank())];
        return comm.rank() == ranks - 1 ? list(two) : distx::ParameterList<>(two.parameters());
      });
      check_endings(endings, static_cast<std::size_t>(ranks - 1), words, kind);
    }
  };
  check("overlap in memory; list a tied parameter once", [](Two& two) {
    return distx::ParameterList<>(two.parameters()).add(distx::ref("head", two.a, two.a_gradient));
  });
  check("'b' and 'tail' overlap in memory", [](Two& two) {
    return distx::ParameterList<>(two.parameters()).add(distx::buffer_ref("tail", std::span(two.b).subspan(15)));
  });
  check("the weight and the gradient of 'c' overlap", [](Two& two) {
    return distx::ParameterList<>().add(distx::ref("c", std::span(two.a).first(6), std::span(two.a).last(6)));
  });
  check("two parameters have the name 'a'", [](Two& two) {
    return distx::ParameterList<>()
        .add(distx::ref("a", two.a, two.a_gradient))
        .add(distx::ref("a", two.b, two.b_gradient));
  });
  // Checkpoints cannot have arrays of these names.
  for (const auto& [name, words] :
       {std::pair("b\xff", "the name \"b\\ufffd\" is not UTF-8"),
        std::pair("__metadata__", "'__metadata__' is one of a checkpoint's own"),
        std::pair("optim.state.a.step", "'optim.state.a.step' is one of a checkpoint's own")})
    check(words, [&](Two& two) { return distx::ParameterList<>().add(distx::ref(name, two.a, two.a_gradient)); });
  check("'b' has 20 elements, but its gradient has 10", [](Two& two) {
    auto b = distx::ref("b", two.b, two.b_gradient);
    b.gradient = b.gradient.first(10);
    return distx::ParameterList<>().add(b);
  });
  check(
      "'b' is already in a training",
      [](Two&) {
        static thread_local distx::SelfConnector self;
        static thread_local distx::ThreadCommunicator alone(self);
        static thread_local distx::Parameter<float> b("b", 20);
        static thread_local distx::DataParallel<> first(alone, distx::ParameterList<>().add(b), distx::SGD{});
        return distx::ParameterList<>().add(b);
      },
      "state");
}

TEST_CASE("an invalid root, optimizer or group on one rank is an error on every rank") {
  for (const int root : {-1, 3}) {
    std::vector<Two> models(3);
    const auto endings = make(3, [&](auto& comm) { return models[static_cast<std::size_t>(comm.rank())].parameters(); },
                              {.broadcast_from = root});
    check_endings(endings, 0, "must be in [0, 3)", "argument");
  }
  for (const auto& ending : toy::endings(3, [](distx::ThreadCommunicator& comm) {
         Two model;
         distx::DataParallel<>(comm, model.parameters(), distx::SGD{.momentum = comm.rank() == 1 ? 2.0 : 0.0});
       }))
    CHECK(says(ending.words, "momentum"));
  Two two;
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const distx::ParameterGroup scale{.learning_rate_scale = bad};
    const distx::ParameterGroup decay{.weight_decay = bad};
    CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("a", two.a, two.a_gradient, {.group = scale})),
                         doctest::Contains("learning_rate_scale"), distx::InvalidArgument);
    CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("a", two.a, two.a_gradient, {.group = decay})),
                         doctest::Contains("weight_decay"), distx::InvalidArgument);
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

TEST_CASE("a group's weight decay is an error with an optimizer that has none") {
  for (const auto& ending : toy::endings(2, [](distx::ThreadCommunicator& comm) {
         Two model;
         distx::DataParallel<>(comm, model.parameters({.group = {.weight_decay = 0.5}}), NoDecay{});
       }))
    CHECK(says(ending.words, "the group of 'b' sets .weight_decay, but the optimizer has no weight decay"));
}

TEST_CASE("invalid parameters are errors where they are constructed") {
  Floats weight(10);
  Floats gradient(9);
  Floats none;
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", weight, gradient)),
                       doctest::Contains("'w' has 10 elements, but its gradient has 9"), distx::InvalidArgument);
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", none, none)), doctest::Contains("has no elements"),
                       distx::InvalidArgument);
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("", weight, weight)), doctest::Contains("no name"),
                       distx::InvalidArgument);
  CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", weight, distx::ParameterOptions{})),
                       doctest::Contains("has no gradient"), distx::InvalidArgument);
  for (const int uses : {0, -1})
    CHECK_THROWS_WITH_AS(static_cast<void>(distx::ref("w", weight, weight, {.uses = uses})),
                         doctest::Contains(".uses = "), distx::InvalidArgument);
  CHECK_THROWS_AS(distx::Parameter<float>("p", 0), distx::InvalidArgument);
}

TEST_CASE("an initializer that throws on one rank is an error on every rank") {
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

namespace {

/// A communicator that throws in place of its n-th `split` or allocation.
class LeavingCommunicator : public distx::detail::Decorator<distx::ThreadCommunicator> {
  using Inner = distx::ThreadCommunicator;
  using base = distx::detail::Decorator<Inner>;
  using here = std::source_location;

 public:
  LeavingCommunicator(Inner inner, std::shared_ptr<int> left) : base(std::move(inner)), left_(std::move(left)) {}
  template <class Call>
    requires distx::calls::Executes<Inner, Call>
  void execute(const Call& call) {
    inner().execute(call);
  }
  template <class Call>
    requires distx::calls::Starts<Inner, Call>
  [[nodiscard]] auto start(const Call& call, typename Call::space::stream after = {}) {
    return inner().start(call, after);
  }
  [[nodiscard]] LeavingCommunicator share() const { return {inner().share(), left_}; }
  [[nodiscard]] LeavingCommunicator split(int color, int key, here location = here::current()) {
    leave();
    return {split_inner(color, key, location), left_};
  }
  template <class T>
  [[nodiscard]] distx::CommunicatorMemory<T, distx::Host> allocate(std::size_t size, here location = here::current()) {
    leave();
    return inner().allocate<T>(size, location);
  }
  [[nodiscard]] auto allocate_common(std::size_t bytes, const std::vector<distx::detail::ByteRange>& own,
                                     here location = here::current()) {
    leave();
    return inner().allocate_common(bytes, own, location);
  }

 private:
  void leave() {
    if ((*left_)-- == 0) throw std::runtime_error("this rank leaves");
  }
  std::shared_ptr<int> left_;
};

}  // namespace

TEST_CASE("an error during the construction of a training names the caller's line, whichever call it occurs in") {
  using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Hybrid>;
  int calls = 0;
  for (const int stage : {1, 2, 3})
    for (const bool maps : {false, true})
      for (int left = 0;; ++left) {
        CAPTURE(stage);
        CAPTURE(maps);
        CAPTURE(left);
        const auto endings = toy::endings(4, [&](distx::ThreadCommunicator& comm) {
          LeavingCommunicator leaving(comm.share(), std::make_shared<int>(comm.rank() == 1 ? left : -1));
          std::vector<distx::Parameter<float>> parameters;
          for (const char* name : {"a.w", "b.w"}) parameters.emplace_back(name, 1000);
          Training(leaving, parameters, distx::SGD{},
                   {.stage = stage, .map_weights = maps, .share_weights = maps && stage < 3, .group_ranks = 2});
        });
        if (endings[1].kind == "no error") break;
        ++calls;
        CHECK(endings[1].words == "this rank leaves");
        for (const auto& ending : endings) {
          if (ending.kind == "another" || ending.kind == "no error") continue;
          CHECK_MESSAGE(says(ending.words, "[errors_test.cpp:"), ending.words);
          CHECK_MESSAGE(says(ending.words, "this rank leaves"), ending.words);
        }
      }
  CHECK(calls > 15);
}
