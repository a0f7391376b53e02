// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/comm/decorators/faulty.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>
#include <distx/parallel/mesh_parallel.hpp>

#include <array>
#include <atomic>
#include <optional>

#include "restarts.hpp"

using namespace std::chrono_literals;
using model::last_step;
using model::Restarts;
using model::WholeState;

namespace recover_mesh {

struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;
constexpr int columns = 2;

template <class T, std::size_t Rank, class... Placements>
using Weight = distx::TensorParameter<T, Rank, Grid, distx::Layout<Placements...>>;
using Rows = distx::Shard<0, Model>;

template <class... Policies>
using Replicated = distx::MeshParallel<Data, distx::ZeRO<distx::Dynamic>, distx::Replicate, Policies...>;

/// The kinds of columns: coordinates on the model axis, along which steps communicate or not, or stages of a pipeline.
/// `crossed`: joined, and of two rows of which one has lost a rank, the other rank of that row continues.
enum class Columns { joined, free, stages, crossed };

distx::DataParallelOptions options_of(int stage, Columns how = Columns::joined) {
  distx::DataParallelOptions options{.bucket_bytes = 300, .stage = stage};
  if (how != Columns::free) options.clip_norm = 3;
  return options;
}

/// A training with weights that the model axis shards, replicates, or gives to one of its coordinates.
template <class Training, class T = float>
class Trainer {
 public:
  /// @param stages  along a pipeline, if this is a stage
  template <class Optimizer>
  Trainer(const Grid& mesh, const Optimizer& optimizer, const distx::DataParallelOptions& options, float offset = 0,
          distx::AnyCommunicator<>* stages = nullptr)
      : mesh_(mesh),
        prefix_(stages == nullptr ? "" : std::to_string(stages->rank()) + "."),
        rows_(prefix_ + "rows", mesh, {41, 7}, first(1, offset), {.rows = 41}),
        same_(prefix_ + "same", mesh, {75}, first(2, offset)),
        tiny_(prefix_ + "tiny", mesh, {1}, first(3, offset)),
        frozen_(prefix_ + "frozen", mesh, {3, 2}, first(4, offset), {.trainable = false}),
        joined_(options.clips()),
        training_(stages == nullptr ? Training(mesh, list(), optimizer, options)
                                    : Training(mesh, list(), optimizer, options, *stages)) {}

  void step(std::uint64_t number) {
    {
      const auto weights = training_.unshard(rows_, same_, tiny_);
      ready(tiny_, number);
      ready(rows_, number);
      if (joined_)
        ready<distx::Partial<Model>>(same_, number);
      else
        ready(same_, number);
    }
    training_.step({.learning_rate = 0.01});
  }
  Training& training() { return training_; }

 private:
  distx::TensorParameterList<> list() const { return distx::TensorParameterList<>().add(rows_, same_, tiny_, frozen_); }
  static auto first(int number, float offset) {
    return [=](const auto& index) {
      return std::sin(static_cast<float>(7 * index.front() + index.back()) + static_cast<float>(number)) + offset;
    };
  }
  template <class More = distx::Partial<Data>, class W>
  void ready(const W& weight, std::uint64_t number) {
    distx::DistTensor<T, W::rank(), Grid, distx::detail::layout_with<typename W::layout_type, More>> gradient(
        mesh_, weight.extents());
    for (std::size_t i = 0; i < gradient.local().size(); ++i)
      gradient.local()[i] =
          static_cast<T>(static_cast<float>(weight.local()[i]) - std::cos(static_cast<float>(i + 3 * number)) +
                         static_cast<float>(mesh_.coordinate<Data>()));
    training_.ready(weight, gradient);
  }

  Grid mesh_;
  std::string prefix_;
  Weight<T, 2, Rows> rows_;
  Weight<T, 1> same_;
  Weight<T, 1, Rows> tiny_;
  Weight<T, 2, Rows> frozen_;
  bool joined_;
  Training training_;
};

/// Makes a training on rows of ranks, or stages of a pipeline.
template <class Training, class T, class Optimizer, class C>
std::unique_ptr<Trainer<Training, T>> make(C& comm, int stage, Columns how, float offset = 0) {
  const auto options = options_of(stage, how);
  const int rows = comm.size() / columns;
  if (how != Columns::stages)
    return std::make_unique<Trainer<Training, T>>(Grid(comm, {rows, columns}), Optimizer{}, options, offset);
  auto column = comm.split(comm.rank() % columns, comm.rank());
  distx::AnyCommunicator<> row(comm.split(comm.rank() / columns, comm.rank()));
  return std::make_unique<Trainer<Training, T>>(Grid(column, {rows, 1}), Optimizer{}, options, offset, &row);
}

/// Trains on a mesh with `rows` rows, and resumes from each step's checkpoint on one with `left` rows.
template <class Training, class T, class Optimizer>
void restart_mesh(Restarts& restarts, int rows, int left, int stage, Columns how = Columns::joined) {
  const model::Folder folder;
  model::on_ranks(rows * columns, [&](distx::ThreadCommunicator& comm) {
    typename Training::replicas copies;
    const auto made = make<Training, T, Optimizer>(comm, stage, how);
    auto& trainer = *made;
    CHECK(trainer.training().recover(copies) == 0);
    for (std::uint64_t step = 0;; trainer.step(step++)) {
      distx::checkpoint::save(folder.path() / (how == Columns::stages ? std::to_string(comm.rank() % columns) : "0"),
                              trainer.training(), {.step = step});
      if (step == last_step) break;
    }
  });
  for (std::uint64_t step = 0; step <= last_step; ++step) {
    auto& loaded = restarts.loaded.emplace_back();
    auto& ended = restarts.ended.emplace_back();
    char name[32];
    std::snprintf(name, sizeof name, "step-%012d", static_cast<int>(step));
    model::on_ranks(left * columns, [&](distx::ThreadCommunicator& comm) {
      typename Training::replicas copies;
      const auto made = make<Training, T, Optimizer>(comm, stage, how, 7);
      auto& trainer = *made;
      CHECK(trainer.training().recover(copies) == 0);
      distx::checkpoint::load(
          folder.path() / (how == Columns::stages ? std::to_string(comm.rank() % columns) : "0") / name,
          trainer.training());
      loaded.add(trainer.training().state());
      for (std::uint64_t next = step; next < last_step; ++next) trainer.step(next);
      ended.add(trainer.training().state());
    });
  }
}

/// Returns the communicator of the rows of which all ranks are left, and whether this rank is in one.
template <class C>
std::pair<C, bool> full_rows(C& comm, int row) {
  std::vector<int> rows(static_cast<std::size_t>(comm.size()));
  distx::all_gather(comm, std::vector{row}, rows);
  const bool full = std::count(rows.begin(), rows.end(), row) == columns;
  return {comm.split(full ? 0 : 1, comm.rank()), full};
}

constexpr std::uint64_t unknown = UINT64_MAX;

/// A rank that ends by an error in its call of that number.
struct Death {
  int rank;
  std::uint64_t call;
};

/// How a training has continued.
struct Ending {
  std::atomic<int> begun{0};                                                  // trainings
  std::array<std::atomic<int>, 3> members{};                                  // of the mesh, by recovery
  std::array<std::atomic<std::uint64_t>, 3> from{unknown, unknown, unknown};  // step
  std::array<WholeState, 3> recovered{};
  std::atomic<int> lost{0};  // ranks whose state was
  std::atomic<bool> same_step{true};
  WholeState ended{};
};

/// Trains like a user's loop, on fewer rows after each death.
template <class Training, class T, class Optimizer>
void train(Ending& ending, int rows, int stage, const std::vector<std::vector<Death>>& deaths,
           Columns how = Columns::joined) {
  const auto faults = [&](std::size_t generation) {
    std::vector<distx::Fault> all;
    if (how == Columns::free) all.push_back({.rank = 1, .duration = 300us});  // its column is later
    if (generation < deaths.size())
      for (const auto& [rank, call] : deaths[generation])
        all.push_back({.kind = distx::Fault::Kind::error, .rank = rank, .first = call});
    return all;
  };
  distx::spawn(distx::threads(rows * columns, 20s), [&](distx::ThreadConnector& connector) {
    const int row = connector.rank() / columns, first_rank = connector.rank();
    std::size_t recoveries = 0;
    std::uint64_t step = 0;
    typename Training::replicas copies;
    for (bool lost = false;;) try {
        if (lost) {
          connector = connector.shrink(20s);
          ++recoveries;
        }
        lost = false;
        distx::ThreadCommunicator whole(connector, 20s);
        auto [rows_left, full] = full_rows(whole, row);
        if (how == Columns::crossed && recoveries > 0) {  // rank 0 is lost: ranks 2 and 1
          full = first_rank < 3;
          rows_left = whole.split(full ? 0 : 1, -first_rank);
        }
        if (!full) return;
        distx::Faulty comm(std::move(rows_left), faults(recoveries));
        const auto made = make<Training, T, Optimizer>(comm, stage, how);
        auto& trainer = *made;
        const auto before = step;
        step = trainer.training().recover(copies);
        ++ending.begun;
        if (step != before && step != before + 1) ending.same_step = false;
        std::uint64_t first = unknown;
        if (!ending.from.at(recoveries).compare_exchange_strong(first, step) && first != step) ending.same_step = false;
        ++ending.members.at(recoveries);
        ending.recovered.at(recoveries).add(trainer.training().state());
        for (; step < last_step; ++step) trainer.step(step);
        distx::barrier(comm);  // a rank that has left would count as lost
        ending.ended.add(trainer.training().state());
        return;
      } catch (const distx::CheckpointError&) {
        ++ending.lost;
        return;
      } catch (const distx::Error& error) {
        if (!distx::is_rank_loss(error)) throw;
        lost = true;
      }
  });
}

using Matrices = distx::Mixed<distx::Muon, distx::AdamW>;
using Half = Replicated<distx::Precision<distx::bfloat16>>;

/// Lets a rank end in each of its calls, or each rank in turn.
template <class Training, class T, class Optimizer>
void check_each_call(int rows, Columns how, const std::optional<int>& rank = {}) {
  for (int stage = 0; stage < 4; ++stage) {
    Restarts restarts;
    restart_mesh<Training, T, Optimizer>(restarts, rows, rows - 1, stage, how);
    for (std::uint64_t call = 0;; ++call) {
      const int victim = rank.value_or(static_cast<int>(call) % (rows * columns));
      INFO(rows, " rows, stage ", stage, ", rank ", victim, " ends in call ", call);
      Ending ending;
      try {
        train<Training, T, Optimizer>(ending, rows, stage, {{{victim, call}}}, how);
        CHECK(call > 30);
        break;
      } catch (const distx::RankFailure& failure) {
        CHECK(failure.failed_rank() == victim);
      }
      REQUIRE(ending.members[1] == (rows - 1) * columns);
      CHECK(ending.same_step);
      CHECK(ending.recovered[1] == restarts.loaded[ending.from[1]]);
      CHECK(ending.ended == restarts.ended[ending.from[1]]);
    }
  }
}

TEST_CASE_TEMPLATE(
    "after a rank of a mesh has ended in any of its calls, training continues like a restart on one row less", Case,
    model::Of<Replicated<>, float, distx::AdamW, 2, 3>, model::Of<Replicated<>, float, Matrices, 2>,
    model::Of<Half, distx::bfloat16, distx::AdamW, 2>) {
  for (const int rows : Case::ranks)
    check_each_call<typename Case::Training, typename Case::T, typename Case::Optimizer>(rows, Columns::joined);
}

TEST_CASE("no column continues from a later step than another, also if steps do not communicate between columns") {
  check_each_call<Replicated<>, float, distx::AdamW>(2, Columns::free, 3);
}

TEST_CASE("a rank whose commit was interrupted has the step that other ranks have committed") {
  check_each_call<Replicated<>, float, distx::AdamW>(2, Columns::crossed, 0);
}

TEST_CASE("the stages of a pipeline continue from the same step") {
  check_each_call<Replicated<>, float, distx::AdamW>(2, Columns::stages, 3);
  check_each_call<Replicated<>, float, distx::AdamW>(2, Columns::stages, 0);
}

TEST_CASE("a rank of a second row may end in any call of the recovery on a mesh and of the steps after it") {
  constexpr int rows = 4;
  for (int stage = 0; stage < 4; ++stage) {
    Restarts restarts;
    restart_mesh<Replicated<>, float, distx::AdamW>(restarts, rows, rows - 2, stage);
    int in_recovery = 0;
    for (std::uint64_t call = 0;; call += 3) {
      INFO("stage ", stage, ", the second rank ends in call ", call);
      Ending ending;
      // Ranks of rows 0 and 2, which do not hold each other's shares.
      CHECK_THROWS_AS(
          (train<Replicated<>, float, distx::AdamW>(ending, rows, stage, {{{0, stage == 0 ? 38U : 52U}}, {{3, call}}})),
          distx::RankFailure);
      CHECK(ending.lost == 0);
      REQUIRE(ending.members[1] + ending.members[2] > 0);
      if (ending.members[2] == 0) break;  // the training has ended before
      REQUIRE(ending.members[2] == (rows - 2) * columns);
      CHECK(ending.same_step);
      if (ending.members[1] > 0 && ending.from[1] != ending.from[2]) continue;  // steps on three rows
      ++in_recovery;
      CHECK(ending.from[2] > 0);
      CHECK(ending.recovered[2] == restarts.loaded[ending.from[2]]);
      CHECK(ending.ended == restarts.ended[ending.from[2]]);
    }
    CHECK(in_recovery > 5);
  }
}

using Training = Replicated<>;

/// Makes one step on a mesh of two columns, and leaves copies.
template <class C>
void leave_copies(C& comm, int stage, Training::replicas& copies, WholeState* state = nullptr) {
  Trainer<Training> trainer(Grid(comm, {comm.size() / columns, columns}), distx::AdamW{}, options_of(stage));
  CHECK(trainer.training().recover(copies) == 0);
  trainer.step(0);
  if (state != nullptr) state->add(trainer.training().state());
}

TEST_CASE("if one column has lost shares, every rank of the mesh throws a CheckpointError, and can begin anew") {
  for (int stage = 1; stage < 4; ++stage) {
    std::atomic<int> own{0}, others{0};
    model::on_ranks(4 * columns, [&](distx::ThreadCommunicator& comm) {
      Training::replicas copies;
      leave_copies(comm, stage, copies);
      // Ranks 0 and 2 of column 0, ranks 0 and 1 of column 1, where nobody has the shares of rank 2.
      const int rank = comm.rank();
      const bool stays = rank == 0 || rank == 4 || rank == 1 || rank == 3;
      auto part = comm.split(stays ? 0 : 1, rank == 3 ? 5 : rank);
      if (!stays) return;
      Trainer<Training> trainer(Grid(part, {2, columns}), distx::AdamW{}, options_of(stage), 3);
      try {
        (void)trainer.training().recover(copies);
      } catch (const distx::CheckpointError& error) {
        const std::string message = error.message();
        INFO(message);
        if (rank % columns == 1 && message.starts_with("the shares of rank 2, which rank 3 held, are lost")) ++own;
        if (rank % columns == 0 && message.starts_with("shares of other parts of the model are lost")) ++others;
      }
      copies = {};
      CHECK(trainer.training().recover(copies) == 0);
      trainer.step(0);
    });
    CHECK(own == 2);
    CHECK(others == 2);
  }
}

TEST_CASE("ranks join a training on a mesh, but cannot stand in for a whole column that is lost") {
  for (int stage = 0; stage < 4; ++stage) {
    WholeState before, after;
    std::atomic<int> thrown{0};
    model::on_ranks(2 * columns, [&](distx::ThreadCommunicator& comm) {
      const int rank = comm.rank();
      Training::replicas copies;
      auto row = comm.split(rank / columns, rank);
      if (rank < columns) leave_copies(row, stage, copies, &before);
      {
        Trainer<Training> trainer(Grid(comm, {2, columns}), distx::AdamW{}, options_of(stage), 3);
        CHECK(trainer.training().recover(copies) == 1);
        after.add(trainer.training().state());
      }
      if (rank > 0) copies = {};
      auto two = comm.split(rank / columns, rank);
      if (rank >= columns) return;
      Trainer<Training> trainer(Grid(two, {1, columns}), distx::AdamW{}, options_of(stage), 3);
      try {
        (void)trainer.training().recover(copies);
      } catch (const distx::CheckpointError& error) {
        INFO(error.message());
        CHECK(error.message().starts_with(rank == 0 ? "shares of other parts" : "no surviving rank has"));
        ++thrown;
      }
    });
    CHECK(before == after);
    CHECK(thrown == columns);
  }
}

TEST_CASE("recover rejects a mesh with another model axis, and other coordinates on it") {
  std::atomic<int> longer{0}, turned{0};
  model::on_ranks(2 * columns, [&](distx::ThreadCommunicator& comm) {
    Training::replicas copies;
    leave_copies(comm, 1, copies);
    const auto check = [&](Grid mesh, const char* expected, std::atomic<int>& count) {
      try {
        Trainer<Training> trainer(mesh, distx::AdamW{}, options_of(1));
        (void)trainer.training().recover(copies);
      } catch (const distx::InvalidArgument& error) {
        INFO(error.message());
        if (error.message().find(expected) != std::string::npos) ++count;
      } catch (const distx::RevokedError& error) {
        INFO(error.message());
        if (error.message().find(expected) != std::string::npos) ++count;
      }
    };
    auto line = comm.split(0, comm.rank());
    check(Grid(line, {2 * columns, 1}),
          "this rank has 'rows' of float32, the part of {41, 7} at {0, 0} of {41, 7}, but copies of 'rows' of float32, "
          "the part of {",
          longer);
    auto other = comm.split(0, -comm.rank());
    check(Grid(other, {2, columns}), "the lengths of the other axes and this rank's coordinates on them", turned);
  });
  CHECK(longer == 2 * columns);
  CHECK(turned == 2 * columns);
}

TEST_CASE("a step on a mesh throws InvalidState until recover has begun to keep copies") {
  model::on_ranks(columns, [&](distx::ThreadCommunicator& comm) {
    Trainer<Training> trainer(Grid(comm, {1, columns}), distx::AdamW{}, options_of(1));
    CHECK_THROWS_AS(trainer.step(0), distx::InvalidState);
  });
}

TEST_CASE("weights in memory that ranks share continue like a restart") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    Restarts restarts;
    restart_mesh<Replicated<>, float, distx::AdamW>(restarts, 3, 2, stage);
    WholeState recovered, ended;
    std::atomic<std::uint64_t> from{unknown};
    auto options = options_of(stage);
    options.share_weights = stage < 3;  // at stage 3 they are mapped
    const auto train = [&] {
      distx::spawn(distx::threads(3 * columns, 20s), [&](distx::ThreadConnector& connector) {
        const int row = connector.rank() / columns, first_rank = connector.rank();
        Replicated<>::replicas copies;
        for (bool lost = false;;) try {
            if (lost) connector = connector.shrink(20s);
            distx::ThreadCommunicator whole(connector, 20s);
            auto [comm, full] = full_rows(whole, row);
            if (!full) return;
            Trainer<Replicated<>> trainer(Grid(comm, {comm.size() / columns, columns}), distx::AdamW{}, options);
            std::uint64_t step = trainer.training().recover(copies);
            if (lost) from = step;
            if (lost) recovered.add(trainer.training().state());
            for (; step < last_step; ++step) {
              if (!lost && first_rank == 3 && step == 2) throw std::runtime_error("this rank is lost");
              trainer.step(step);
            }
            distx::barrier(comm);
            ended.add(trainer.training().state());
            return;
          } catch (const distx::Error& error) {
            if (!distx::is_rank_loss(error)) throw;
            lost = true;
          }
      });
    };
    CHECK_THROWS_AS(train(), distx::RankFailure);
    REQUIRE(from == 2);
    CHECK(recovered == restarts.loaded[2]);
    CHECK(ended == restarts.ended[2]);
  }
}

}  // namespace recover_mesh
