// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <distx/comm/decorators/faulty.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>
#include <distx/parallel/mesh_parallel.hpp>

#include <array>
#include <atomic>

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

distx::DataParallelOptions options_of(int stage) { return {.bucket_bytes = 60, .stage = stage, .clip_norm = 3}; }

/// A training with weights that the model axis shards, replicates, or gives to one of its coordinates.
template <class Training, class T = float>
class Trainer {
 public:
  template <class Optimizer>
  Trainer(const Grid& mesh, const Optimizer& optimizer, const distx::DataParallelOptions& options, float offset = 0)
      : mesh_(mesh),
        rows_("rows", mesh, {5, 3}, first(1, offset), {.rows = 5}),
        same_("same", mesh, {6}, first(2, offset)),
        tiny_("tiny", mesh, {1}, first(3, offset)),
        frozen_("frozen", mesh, {3, 2}, first(4, offset), {.trainable = false}),
        training_(mesh, distx::TensorParameterList<>().add(rows_, same_, tiny_, frozen_), optimizer, options) {}

  void step(std::uint64_t number) {
    {
      const auto weights = training_.unshard(rows_, same_, tiny_);
      ready(tiny_, number);
      ready(rows_, number);
      ready<distx::Partial<Model>>(same_, number);
    }
    training_.step({.learning_rate = 0.01});
  }
  Training& training() { return training_; }

 private:
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
  Weight<T, 2, Rows> rows_;
  Weight<T, 1> same_;
  Weight<T, 1, Rows> tiny_;
  Weight<T, 2, Rows> frozen_;
  Training training_;
};

/// Trains on a mesh with `rows` rows, and resumes from each step's checkpoint on one with `left` rows.
template <class Training, class T, class Optimizer>
void restart_mesh(Restarts& restarts, int rows, int left, int stage) {
  const model::Folder folder;
  model::on_ranks(rows * columns, [&](distx::ThreadCommunicator& comm) {
    typename Training::replicas copies;
    Trainer<Training, T> trainer(Grid(comm, {rows, columns}), Optimizer{}, options_of(stage));
    CHECK(trainer.training().recover(copies) == 0);
    for (std::uint64_t step = 0;; trainer.step(step++)) {
      distx::checkpoint::save(folder.path(), trainer.training(), {.step = step});
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
      Trainer<Training, T> trainer(Grid(comm, {left, columns}), Optimizer{}, options_of(stage), 7);
      CHECK(trainer.training().recover(copies) == 0);
      distx::checkpoint::load(folder.path() / name, trainer.training());
      loaded.add(trainer.training().state());
      for (std::uint64_t next = step; next < last_step; ++next) trainer.step(next);
      ended.add(trainer.training().state());
    });
  }
}

/// Returns the communicator of the ranks that fill rows, one of each column, for a mesh; nothing on the others.
template <class C>
std::optional<C> full_rows(C& comm, int column) {
  std::vector<int> all(static_cast<std::size_t>(comm.size()));
  distx::all_gather(comm, std::vector{column}, all);
  int row = 0, rows = comm.size();
  for (int i = 0; i < columns; ++i) rows = std::min(rows, static_cast<int>(std::count(all.begin(), all.end(), i)));
  for (int i = 0; i < comm.rank(); ++i) row += all[static_cast<std::size_t>(i)] == column ? 1 : 0;
  auto part = comm.split(row < rows ? 0 : 1, row * columns + column);
  if (row >= rows) return std::nullopt;
  return part;
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
void train(Ending& ending, int rows, int stage, const std::vector<std::vector<Death>>& deaths) {
  const auto faults = [&](std::size_t generation) {
    std::vector<distx::Fault> all;
    if (generation < deaths.size())
      for (const auto& [rank, call] : deaths[generation])
        all.push_back({.kind = distx::Fault::Kind::error, .rank = rank, .first = call});
    return all;
  };
  distx::spawn(distx::threads(rows * columns, 20s), [&](distx::ThreadConnector& connector) {
    const int column = connector.rank() % columns;
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
        auto part = full_rows(whole, column);
        if (!part) return;
        distx::Faulty comm(std::move(*part), faults(recoveries));
        Trainer<Training, T> trainer(Grid(comm, {comm.size() / columns, columns}), Optimizer{}, options_of(stage));
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
      } catch (const distx::CheckpointError& error) {
        MESSAGE(error.what());
        ++ending.lost;
        return;
      } catch (const distx::Error& error) {
        if (!distx::is_rank_loss(error)) throw;
        if (recoveries) MESSAGE(error.what());
        lost = true;
      }
  });
}

using Matrices = distx::Mixed<distx::Muon, distx::AdamW>;
using Half = Replicated<distx::Precision<distx::bfloat16>>;

}  // namespace recover_mesh

using namespace recover_mesh;

TEST_CASE_TEMPLATE(
    "after a rank of a mesh has ended in any of its calls, training continues like a restart on one row less", Case,
    model::Of<Replicated<>, float, distx::AdamW, 2, 3>, model::Of<Replicated<>, float, Matrices, 2>,
    model::Of<Half, distx::bfloat16, distx::AdamW, 2>) {
  using Training = typename Case::Training;
  using T = typename Case::T;
  using Optimizer = typename Case::Optimizer;
  for (const int rows : Case::ranks)
    for (int stage = 0; stage < 4; ++stage) {
      Restarts restarts;
      restart_mesh<Training, T, Optimizer>(restarts, rows, rows - 1, stage);
      for (std::uint64_t call = 0;; ++call) {
        const int victim = static_cast<int>(call) % (rows * columns);
        INFO(rows, " rows, stage ", stage, ", rank ", victim, " ends in call ", call);
        Ending ending;
        try {
          train<Training, T, Optimizer>(ending, rows, stage, {{{victim, call}}});
          CHECK(call > 40);
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
