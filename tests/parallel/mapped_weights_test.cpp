// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Weights that ranks read in each other's shards, at stage 3. The bits are checked by for_each_way.
#include <doctest/doctest.h>
#include <distx/comm/decorators/metered.hpp>
#include <distx/comm/decorators/throttled.hpp>
#include <distx/comm/point_to_point.hpp>

#include <atomic>

#include "stages.hpp"

using namespace distx::literals;
using namespace std::chrono_literals;

namespace {

using Comm = distx::ThreadCommunicator;
using toy::says;

TEST_CASE("unshard of mapped weights sends no bytes, and only the first one after a step takes a barrier") {
  for (const int ranks : {1, 2, 7})
    for (const bool overlap : {false, true})
      for (const bool maps : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(overlap);
        CAPTURE(maps);
        toy::on_ranks(ranks, [&](Comm& comm) {
          distx::Metered<Comm> metered(comm.share());
          const auto parameters = stages::owned();
          // Several buckets to a unit.
          stages::Training training(metered, parameters, distx::SGD{},
                                    {.bucket_bytes = 0, .overlap = overlap, .stage = 3, .map_weights = maps});
          const auto before = metered.ledger();
          {
            const auto weights = training.unshard(parameters);
            CHECK(training.value(parameters[2])[7] == static_cast<float>(toy::first_weight(2, 7)));
          }
          const auto seen = metered.ledger() - before;
          CHECK((seen.total().sent_bytes == 0) == (maps || ranks == 1));
          CHECK((seen.total().received_bytes == 0) == (maps || ranks == 1));
          CHECK(seen["barrier"].calls == (maps && ranks > 1 ? 1 : 0));
          CHECK(seen["all_gather"].calls == (maps ? 0 : parameters.size()));
        });
      }
}

TEST_CASE("mapped weights are one copy for all ranks, and gathered ones are a copy of each") {
  for (const bool maps : {false, true}) {
    const void* seen[3] = {};
    toy::on_ranks(3, [&](Comm& comm) {
      const auto parameters = stages::owned();
      stages::Training training(comm, parameters, distx::SGD{}, {.stage = 3, .map_weights = maps});
      const auto weights = training.unshard(parameters[2]);
      seen[comm.rank()] = training.value(parameters[2]).data();
      distx::barrier(comm);  // each copy exists until all have been seen
    });
    CHECK((seen[0] == seen[1]) == maps);
    CHECK((seen[1] == seen[2]) == maps);
  }
}

TEST_CASE("communicators without common memory, or with a link between the ranks, gather weights") {
  toy::on_ranks(2, [](Comm& comm) {
    distx::Metered metered(distx::Throttled<Comm>(comm.share(), {}));
    const auto parameters = stages::owned();
    stages::Training training(metered, parameters, distx::SGD{}, {.stage = 3});
    const auto before = metered.ledger();
    const auto weights = training.unshard(parameters);
    CHECK((metered.ledger() - before).total().sent_bytes > 0);
  });
}

TEST_CASE("ranks that unshard mapped units in different orders get an error on every rank, at the latest in step") {
  for (const bool first : {true, false}) {
    CAPTURE(first);
    for (const auto& ending : toy::endings(3, [&](Comm& comm) {
           const auto parameters = stages::owned();
           stages::Training training(comm, parameters, distx::SGD{}, {.stage = 3});
           if (!first) static_cast<void>(training.unshard(parameters[0]));
           for (const std::size_t unit : {0u, 1u, 2u})
             static_cast<void>(training.unshard(parameters[3 * (comm.rank() == 1 ? 2 - unit : unit)]));
           CHECK_FALSE(first);
           for (const auto& parameter : parameters) {
             static_cast<void>(training.gradient(parameter));
             training.ready(parameter);
           }
           training.step({.learning_rate = 1});
         })) {
      CAPTURE(ending.words);
      CHECK((ending.kind == "mismatch" || ending.kind == "revoked"));
      CHECK(says(ending.words, "call unshard in the same order on every rank"));
      CHECK(says(ending.words, "[mapped_weights_test.cpp:"));
      CHECK(says(ending.words, "rank 1"));
      if (first) CHECK((says(ending.words, "'block0'") && says(ending.words, "'block2'")));
    }
  }
}

TEST_CASE("no rank changes mapped weights while another one reads them") {
  for (const bool in_parts : {false, true}) {
    CAPTURE(in_parts);
    std::atomic<bool> updated{false};
    toy::on_ranks(2, [&](Comm& comm) {
      const auto parameters = stages::owned();
      stages::Training training(comm, parameters, distx::SGD{}, {.stage = 3});
      {
        const auto weights = training.unshard(parameters);
        for (const auto& parameter : parameters) {
          const auto gradient = training.gradient(parameter);
          std::fill(gradient.begin(), gradient.end(), 1.0f);
          training.ready(parameter);
        }
        if (comm.rank() == 1) {  // as a layer that computes the gradient of its input last
          // Rank 0 updates its shards at once unless it waits for the end of this scope.
          distx::detail::wait_until(100ms, [&] { return updated.load(); }, [] { return false; });
          CHECK_FALSE(updated.load());
          for (std::size_t p = 0; p < parameters.size(); ++p)
            CHECK(training.value(parameters[p])[0] == static_cast<float>(toy::first_weight(p, 0)));
        }
      }
      if (in_parts) {
        training.reduce_gradients();
        for (const auto& fragment : training.owned())
          for (float& x : fragment.weights<float>()) x -= 1;
        updated = true;
        training.gather_weights();
      } else {
        training.step({.learning_rate = 1});
        updated = true;
      }
      const auto weights = training.unshard(parameters);
      std::size_t wrong = 0;
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        const auto value = training.value(parameters[p]);
        for (std::size_t i = 0; i < value.size(); ++i)
          if (value[i] != static_cast<float>(toy::first_weight(p, i)) - 1) ++wrong;
      }
      CHECK(wrong == 0);
    });
  }
}

TEST_CASE("a step in parts begins outside the scopes of unshard") {
  for (const auto& ending : toy::endings(2, [](Comm& comm) {
         const auto parameters = stages::owned();
         stages::Training training(comm, parameters, distx::SGD{}, {.stage = 3});
         const auto weights = training.unshard(parameters);
         for (const auto& parameter : parameters) {
           static_cast<void>(training.gradient(parameter));
           training.ready(parameter);
         }
         training.reduce_gradients();
       }))
    CHECK(says(ending.words, "is still unsharded"));
}

TEST_CASE("ranks that map weights and ranks that gather them do not train together") {
  for (const auto& ending : toy::endings(2, [](Comm& comm) {
         const auto parameters = stages::owned();
         stages::Training training(comm, parameters, distx::SGD{}, {.stage = 3, .map_weights = comm.rank() == 0});
       })) {
    CHECK(ending.kind == "mismatch");
    CHECK(says(ending.words, ".map_weights differs: rank 0 has true; rank 1 has false"));
  }
}

TEST_CASE("16-bit weights are mapped as they are, and equal the gathered ones") {
  using Training = distx::DataParallel<distx::ZeRO<3>, distx::Precision<distx::bfloat16>>;
  for (const int ranks : toy::rank_counts)
    toy::on_ranks(ranks, [&](Comm& comm) {
      std::vector<float> results[2];
      for (const bool maps : {false, true}) {
        std::vector<distx::Parameter<distx::bfloat16>> parameters;
        for (std::size_t p = 0; p < toy::sizes.size(); ++p) parameters.emplace_back(stages::name(p), toy::sizes[p]);
        Training training(comm, parameters, distx::AdamW{}, {.bucket_bytes = 4_KiB, .map_weights = maps});
        const std::size_t first = 10 * static_cast<std::size_t>(comm.rank());
        for (std::size_t step = 0; step < 3; ++step) {
          for (std::size_t p = parameters.size(); p-- > 0;) {
            const auto weights = training.unshard(parameters[p]);
            const auto value = training.value(parameters[p]);
            const auto gradient = training.gradient(parameters[p]);
            for (std::size_t i = 0; i < value.size(); ++i)
              gradient[i] =
                  distx::bfloat16(static_cast<float>(value[i]) - static_cast<float>(toy::target(p, i, first + step)));
            training.ready(parameters[p]);
          }
          training.step({.learning_rate = 0.01});
        }
        training.for_each_full_weight([&](const std::string&, distx::Span<const distx::AnyElement> values) {
          for (std::size_t i = 0; i < values.size(); ++i)
            results[maps].push_back(static_cast<float>(static_cast<const distx::bfloat16*>(values.data())[i]));
        });
      }
      CHECK(toy::same_bits(results[0], results[1]));
    });
}

TEST_CASE("weights read before, in and after an evaluation and a release are those of the training") {
  for (const int ranks : {1, 3})
    toy::on_ranks(ranks, [](Comm& comm) {
      const auto parameters = stages::owned();
      float last = 0;
      {
        stages::Training training(comm, parameters, distx::SGD{}, {.stage = 3});
        for (std::size_t step = 0; step < 2; ++step) {
          stages::pass(training, parameters, step);
          training.step({.learning_rate = 0.5});
          const auto evaluation = training.evaluate();
          const auto weights = training.unshard(parameters[2]);
          last = training.value(parameters[2])[19999];
        }
        training.release();
      }
      const auto value = parameters[2].value();
      CHECK(value[19999] == last);
      value[19999] = static_cast<float>(comm.rank());  // memory of this rank
      distx::barrier(comm);
      CHECK(value[19999] == static_cast<float>(comm.rank()));
    });
}

}  // namespace
