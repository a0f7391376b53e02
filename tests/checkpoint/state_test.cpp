// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <random>
#include <sstream>

#include "model.hpp"

using model::Any;
using model::Folder;
using model::on_ranks;
using model::Trainer;
using model::WholeState;

// The state that a training needs besides weights and the arrays of its optimizer.
namespace {

using Notes = std::map<std::string, std::string>;

/// A training with two averages, made after the first step.
template <class Training, class T>
class Averaged {
 public:
  template <class C>
  Averaged(C& comm, const distx::DataParallelOptions& options, float offset)
      : trainer_(comm, distx::AdamW{}, options, offset),
        first_(trainer_.training().ema(0.9)),
        second_(trainer_.training().ema(0.5)) {}
  void step(std::uint64_t number) {
    trainer_.step(number);
    first_.update();
    if (number % 2 == 0) second_.update();
  }
  [[nodiscard]] Training& training() { return trainer_.training(); }

 private:
  Trainer<Training, T> trainer_;
  distx::ExponentialAverage<distx::Host> first_, second_;
};

template <class Training, class T>
void save_and_load_averages(distx::ElementType type) {
  for (int stage = 0; stage < 4; ++stage) {
    CAPTURE(stage);
    const Folder folder;
    WholeState saved, loaded, uninterrupted, resumed;
    on_ranks(3, [&](distx::ThreadCommunicator& comm) {
      Averaged<Training, T> training(comm, {.bucket_bytes = 300, .stage = stage}, 0);
      for (std::uint64_t step = 0; step < 5; ++step) {
        if (step == 3) {
          const auto state = training.training().state();
          std::size_t averages = 0;
          for (const auto& array : state.arrays)
            if (array.name.find(".exponential_average") != std::string::npos) {
              ++averages;
              CHECK(array.values.type() == type);
            }
          CHECK(averages == 2 * 6);
          saved.add(state);
          distx::checkpoint::save(folder.path(), training.training(), {.step = step});
        }
        training.step(step);
      }
      uninterrupted.add(training.training().state());
    });
    const auto checkpoint = *distx::checkpoint::latest(folder.path());
    on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      Averaged<Training, T> training(comm, {.bucket_bytes = 1000, .stage = 3 - stage}, 2);
      distx::checkpoint::load(checkpoint, training.training());
      loaded.add(training.training().state());
    });
    CHECK(saved == loaded);
    on_ranks(3, [&](distx::ThreadCommunicator& comm) {
      Averaged<Training, T> training(comm, {.bucket_bytes = 300, .stage = stage}, 2);
      training.step(9);
      for (auto step = distx::checkpoint::load(checkpoint, training.training()).step; step < 5; ++step)
        training.step(step);
      resumed.add(training.training().state());
    });
    CHECK(uninterrupted == resumed);
  }
}

/// Returns what this call of save or load throws as an `Error`; empty if it throws none.
template <class Error, class F>
std::string thrown(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

}  // namespace

TEST_CASE("moving averages are saved, loaded on any ranks at any stage, and resumed to the bit") {
  save_and_load_averages<Any, float>(distx::ElementType::f32);
  using Half = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Precision<distx::bfloat16>>;
  save_and_load_averages<Half, distx::bfloat16>(distx::ElementType::f32);
}

TEST_CASE("an average belongs to the state while it exists, and is loaded where it was saved only") {
  const Folder folder;
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 1});
    const auto arrays = trainer.training().state().arrays.size();
    {
      auto average = trainer.training().ema(0.5);
      const auto moved = std::move(average);
      CHECK(trainer.training().state().arrays.size() == arrays + 6);
      distx::checkpoint::save(folder.path(), trainer.training(), {.step = 1});
    }
    CHECK(trainer.training().state().arrays.size() == arrays);
    const auto message = thrown<distx::CheckpointError>(
        [&] { distx::checkpoint::load(*distx::checkpoint::latest(folder.path()), trainer.training()); });
    CHECK(message.find("'optim.state.a.bias.exponential_average' is not in the training") != std::string::npos);
  });
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 1});
    std::optional<distx::ExponentialAverage<distx::Host>> average;
    if (comm.rank() == 1) average.emplace(trainer.training().ema(0.5));
    CHECK_THROWS_AS(distx::checkpoint::save(folder.path(), trainer.training(), {.step = 2}), distx::MismatchError);
  });
}

TEST_CASE("an average is loaded as the weights") {
  const Folder folder;
  WholeState expected, loaded;
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    auto average = trainer.training().ema(0.5);
    trainer.step(0);
    average.update();
    distx::checkpoint::save(folder.path(), trainer.training(), {.step = 1});
    std::map<std::string, std::vector<std::byte>> averaged;
    {
      const auto scope = average.swap_in();
      trainer.training().for_each_full_weight([&](const std::string& name, auto values) {
        averaged[name].assign(values.bytes(), values.bytes() + values.size_bytes());
      });
    }
    Trainer<> other(comm, distx::AdamW{}, {.stage = 0}, 1);
    distx::checkpoint::load_weights(*distx::checkpoint::latest(folder.path()), other.training(),
                                    {.rename =
                                         [](const std::string& name) {
                                           const bool trained = name != "b.frozen" && name != "mean";
                                           return trained ? "optim.state." + name + ".exponential_average" : name;
                                         },
                                     .ignore_others = true});
    other.training().for_each_full_weight([&](const std::string& name, auto values) {
      CAPTURE(name);
      CHECK(std::equal(averaged[name].begin(), averaged[name].end(), values.bytes(),
                       values.bytes() + values.size_bytes()));
    });
  });
}

TEST_CASE("a state with gradients of an unfinished step is neither saved nor loaded, with an error that says when") {
  const Folder folder;
  using Accumulating = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Accumulate<distx::Sharded>>;
  const auto refuses = [&](int stage, const char* words, auto&& begin) {
    CAPTURE(stage);
    on_ranks(1, [&](distx::ThreadCommunicator& comm) {
      std::vector<distx::Parameter<float>> parameters;
      parameters.emplace_back("weight", 7);
      Accumulating training(comm, parameters, distx::AdamW{}, {.stage = stage});
      distx::checkpoint::save(folder.path(), training, {.step = static_cast<std::uint64_t>(stage) + 1});
      const auto newest = *distx::checkpoint::latest(folder.path());
      begin(training, parameters[0]);
      const auto message = thrown<distx::InvalidState>([&] { distx::checkpoint::load(newest, training); });
      CAPTURE(message);
      CHECK(message.find(words) != std::string::npos);
      CHECK_THROWS_AS(distx::checkpoint::save(folder.path(), training, {.step = 9}), distx::InvalidState);
    });
    std::filesystem::remove_all(folder.path() / ("step-00000000000" + std::to_string(stage + 1)));
  };
  const char* const words = "call this after step or gather_weights";
  for (int stage = 0; stage < 4; ++stage) {
    refuses(stage, words, [](auto& training, auto& parameter) { training.gradient(parameter)[0] = 1; });
    refuses(stage, words, [](auto& training, auto& parameter) {
      training.gradient(parameter)[0] = 1;
      training.ready(parameter);
    });
    refuses(stage, words, [](auto& training, auto& parameter) {
      {
        const auto micro_batch = training.micro_batch({.index = 0, .count = 2});
        training.gradient(parameter)[0] = 1;
        training.ready(parameter);
      }
      const auto micro_batch = training.micro_batch({.index = 1, .count = 2});
    });
  }
}

TEST_CASE("a micro-batch loop saves between its steps, and resumes to the bit") {
  using Accumulating = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::Accumulate<distx::Sharded>>;
  for (int stage = 0; stage < 4; ++stage) {
    CAPTURE(stage);
    const Folder folder;
    WholeState uninterrupted, resumed;
    for (const bool resume : {false, true})
      on_ranks(2, [&](distx::ThreadCommunicator& comm) {
        std::vector<distx::Parameter<float>> parameters;
        parameters.emplace_back("weight", 13, distx::ParameterOptions{.rows = 1});
        Accumulating training(comm, parameters, distx::AdamW{}, {.stage = stage});
        std::uint64_t step = 0;
        if (resume) step = distx::checkpoint::load(*distx::checkpoint::latest(folder.path()), training).step;
        for (; step < 4; ++step) {
          for (int batch = 0; batch < 3; ++batch) {
            const auto micro_batch = training.micro_batch({.index = static_cast<std::size_t>(batch), .count = 3});
            const auto whole = training.unshard(parameters[0]);
            const auto gradient = training.gradient(parameters[0]);
            for (std::size_t i = 0; i < gradient.size(); ++i)
              gradient[i] += std::cos(static_cast<float>(step + i) + static_cast<float>(batch + comm.rank()));
            training.ready(parameters[0]);
          }
          training.step({.learning_rate = 0.01});
          if (step == 1 && !resume) distx::checkpoint::save(folder.path(), training, {.step = 2});
        }
        (resume ? resumed : uninterrupted).add(training.state());
      });
    CHECK(uninterrupted == resumed);
  }
}

TEST_CASE("notes of rank 0 and of each rank are loaded, such as a generator's state") {
  const Folder folder;
  std::array<std::uint64_t, 3> next{};
  on_ranks(3, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 1});
    std::mt19937_64 generator(static_cast<std::uint64_t>(comm.rank()));
    generator.discard(5);
    std::ostringstream text;
    text << generator;
    distx::checkpoint::save(
        folder.path(), trainer.training(),
        {.step = 1, .notes = {{"batch", std::to_string(7 + comm.rank())}}, .rank_notes = {{"random", text.str()}}});
    next[static_cast<std::size_t>(comm.rank())] = generator();
    auto pending =
        distx::checkpoint::save_async(folder.path(), trainer.training(),
                                      {.step = 2, .rank_notes = comm.rank() == 2 ? Notes{{"é\n", "\"é\""}} : Notes{}});
    pending.finish();
    distx::checkpoint::save(folder.path(), trainer.training(), {.step = 3});
  });
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 3});
    const auto loaded = distx::checkpoint::load(folder.path() / "step-000000000001", trainer.training());
    CHECK(loaded.notes.at("batch") == "7");
    CHECK(loaded.ranks == 3);
    REQUIRE(loaded.rank_notes.size() == 3);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      std::mt19937_64 generator;
      std::istringstream(loaded.rank_notes[rank].at("random")) >> generator;
      CHECK(generator() == next[rank]);
    }
    const auto second = distx::checkpoint::load(folder.path() / "step-000000000002", trainer.training());
    CHECK(second.rank_notes == std::vector<Notes>{{}, {}, {{"é\n", "\"é\""}}});
    CHECK(distx::checkpoint::load(folder.path() / "step-000000000003", trainer.training()).rank_notes.empty());
  });
}

TEST_CASE("notes that are not UTF-8 are CheckpointErrors on every rank, and the training continues") {
  const Folder folder;
  on_ranks(2, [&](distx::ThreadCommunicator& comm) {
    Trainer<> trainer(comm, distx::AdamW{}, {.stage = 1});
    const Notes bad = comm.rank() == 1 ? Notes{{"random", "\xff"}} : Notes{};
    const auto note = thrown<distx::CheckpointError>(
        [&] { distx::checkpoint::save(folder.path(), trainer.training(), {.step = 1, .rank_notes = bad}); });
    CHECK(note.find("a note is not UTF-8") != std::string::npos);
    CHECK_THROWS_AS(distx::checkpoint::save(folder.path(), trainer.training(), {.step = 1, .notes = {{"\xff", ""}}}),
                    distx::CheckpointError);
    trainer.step(1);
    distx::checkpoint::save(folder.path(), trainer.training(), {.step = 1});
  });
}
