// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cstring>
#include <map>

#include <doctest/doctest.h>
#include <distx/optim/lamb.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>
#include <distx/parallel/mesh_parallel.hpp>
#include <distx/tensor.hpp>

#include "toy.hpp"

// Whole weights, their norms and their averages on meshes.
namespace mesh_weights_test {

namespace {

struct Data {};
struct Model {};
struct Third {};
using Grid = distx::Mesh<Data, Model, Third>;
template <std::size_t Dim, class Axis>
using Shard = distx::Shard<Dim, Axis>;
using Values = std::map<std::string, std::vector<float>>;

constexpr std::array<int, 3> shapes[] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 3},
                                         {2, 2, 1}, {1, 2, 2}, {2, 2, 2}, {1, 5, 1}};

template <std::size_t Rank>
std::size_t number(const distx::Extents<Rank>& index, const distx::Extents<Rank>& extents) {
  std::size_t at = 0;
  for (std::size_t d = 0; d < Rank; ++d) at = at * extents[d] + index[d];
  return at;
}
/// The rows of the weights that are matrices.
const std::map<std::string, std::size_t> rows{{"rows", 5}, {"both", 7}, {"cube", 12}};
distx::ParameterOptions options(const std::string& name) { return {.rows = rows.contains(name) ? rows.at(name) : 0}; }
float first(std::size_t i) { return std::sin(0.7F * static_cast<float>(i + 1)); }

template <std::size_t Rank, class T, class... Ps>
struct Weight : distx::TensorParameter<T, Rank, Grid, distx::Layout<Ps...>> {
  Weight(const char* name, const Grid& mesh, const distx::Extents<Rank>& extents,
         const distx::ParameterOptions& options = {})
      : distx::TensorParameter<T, Rank, Grid, distx::Layout<Ps...>>(
            name, mesh, extents, [extents](const auto& index) { return first(number(index, extents)); }, options) {}
};

template <class... Policies>
constexpr int ranks_of_groups = 0;
template <>
constexpr int ranks_of_groups<distx::Hybrid> = 2;

/// A model of weights that are sharded in all ways, some of them with empty parts, and its training.
template <class T, class... Policies>
class Trainer {
 public:
  template <class Optimizer>
  Trainer(const Grid& mesh, const Optimizer& optimizer, int stage,
          double clip_norm = distx::DataParallelOptions().clip_norm)
      : mesh_(mesh),
        training(mesh, list(), optimizer,
                 {.bucket_bytes = 100,
                  .stage = stage,
                  .clip_norm = clip_norm,
                  .group_ranks = ranks_of_groups<Policies...>}) {}

  /// @param by_phases  whether the step is made by its three phases
  void step(int number_of_step, bool by_phases = false) {
    const auto one = [&]<std::size_t Rank, class... Ps>(const Weight<Rank, T, Ps...>& weight) {
      const auto scope = training.unshard(weight);
      distx::DistTensor<T, Rank, Grid, distx::Layout<Ps..., distx::Partial<Data>>> gradient(mesh_, weight.extents());
      const auto slope = distx::generate<T, Ps...>(mesh_, weight.extents(), [&](const auto& index) {
        return slope_of(number(index, weight.extents()), number_of_step, mesh_.coordinate<Data>());
      });
      for (std::size_t i = 0; i < gradient.local().size(); ++i)
        gradient.local()[i] =
            static_cast<T>(static_cast<float>(weight.local()[i]) / 4 + static_cast<float>(slope.local()[i]));
      training.ready(weight, gradient);
    };
    one(rows_), one(both_), one(cube_), one(same_), one(tiny_);
    if (!by_phases) return training.step({.learning_rate = 0.05});
    training.reduce_gradients();
    training.update_weights({.learning_rate = 0.05});
    training.gather_weights();
  }
  static float slope_of(std::size_t i, int step, int data) {
    return std::cos(0.3F * static_cast<float>(i) + static_cast<float>(step + data));
  }
  /// Returns all weights; checks that they are listed in order.
  Values full() {
    Values all;
    std::string names;
    training.for_each_full_weight([&](const std::string& name, distx::Span<const distx::AnyElement> values) {
      names += name + " ";
      const auto* const begin = static_cast<const T*>(values.data());
      auto& floats = all[name];
      for (std::size_t i = 0; i < values.size(); ++i) floats.push_back(static_cast<float>(begin[i]));
    });
    CHECK(names == "rows both cube same tiny frozen ");
    return all;
  }

 private:
  distx::TensorParameterList<> list() {
    return distx::TensorParameterList<>().add(rows_, both_, cube_, same_, tiny_, frozen_);
  }

  Grid mesh_;
  Weight<2, T, Shard<0, Model>> rows_{"rows", mesh_, {5, 3}, options("rows")};
  Weight<2, T, Shard<1, Model>, Shard<0, Third>> both_{"both", mesh_, {7, 6}, options("both")};
  Weight<3, T, Shard<1, Model>> cube_{"cube", mesh_, {3, 4, 5}, options("cube")};
  Weight<1, T> same_{"same", mesh_, {6}};
  Weight<1, T, Shard<0, Model>> tiny_{"tiny", mesh_, {1}};
  Weight<2, T, Shard<0, Third>> frozen_{"frozen", mesh_, {3, 2}, {.trainable = false}};

 public:
  distx::MeshParallel<Data, distx::ZeRO<distx::Dynamic>, Policies...> training;
};

const std::map<std::string, std::size_t> sizes{{"rows", 15}, {"both", 42}, {"cube", 60},
                                               {"same", 6},  {"tiny", 1},  {"frozen", 6}};

template <class F>
void on_meshes(F&& f) {
  for (const auto& shape : shapes)
    for (int stage = 0; stage < 4; ++stage) {
      INFO(shape[0], " x ", shape[1], " x ", shape[2], ", stage ", stage);
      toy::on_ranks(shape[0] * shape[1] * shape[2],
                    [&](distx::ThreadCommunicator& comm) { f(Grid(comm, shape), stage, shape[0]); });
    }
}

/// The weights of a DataParallel after some steps, in which each gradient is the mean over coordinates of the data
/// axis, shared evenly by the ranks.
template <class T, class... Policies, class Optimizer>
Values alone(const Optimizer& optimizer, int steps, int data, double clip_norm = distx::DataParallelOptions().clip_norm,
             int ranks = 1, int stage = 0) {
  Values all;
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    std::vector<distx::Parameter<T>> parameters;
    for (const char* name : {"rows", "both", "cube", "same", "tiny"})
      parameters.emplace_back(
          name, sizes.at(name),
          [](distx::Span<T> values) {
            for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(first(i));
          },
          options(name));
    distx::DataParallel<distx::ZeRO<distx::Dynamic>, Policies...> training(comm, parameters, optimizer,
                                                                           {.stage = stage, .clip_norm = clip_norm});
    const int count = data / ranks;
    for (int step = 0; step < steps; ++step) {
      for (const auto& each : parameters) {
        const auto scope = training.unshard(each);
        const auto gradient = training.gradient(each);
        for (std::size_t i = 0; i < each.size(); ++i) {
          float sum = 0;
          for (int d = count * comm.rank(); d < count * (comm.rank() + 1); ++d)
            sum += static_cast<float>(
                static_cast<T>(static_cast<float>(each.value()[i]) / 4 +
                               static_cast<float>(static_cast<T>(Trainer<T>::slope_of(i, step, d)))));
          gradient[i] = static_cast<T>(sum / static_cast<float>(count));
        }
        training.ready(each);
      }
      training.step({.learning_rate = 0.05});
    }
    training.for_each_full_weight([&](const std::string& name, distx::Span<const distx::AnyElement> values) {
      const auto* const begin = static_cast<const T*>(values.data());
      if (comm.rank() == 0) all[name] = std::vector<float>(begin, begin + values.size());
    });
  });
  return all;
}

const distx::Mixed mixture{distx::Muon{}, distx::AdamW{}};

/// In contrast to LAMB's, its ratio would change if replicated parts were counted twice.
struct OtherTrust : distx::LAMB {
  static double trust(double weight_norm, double direction_norm) { return weight_norm / (1 + direction_norm); }
};

void check_close(const Values& expected, const Values& got, float bound) {
  for (const auto& [name, values] : expected) {
    INFO(name);
    REQUIRE(got.at(name).size() == values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      CHECK(std::abs(got.at(name)[i] - values[i]) <= bound * std::max(1.0F, std::abs(values[i])));
  }
}

}  // namespace

TEST_CASE("for_each_full_weight on a mesh passes every weight whole, in the order of the list, at every stage") {
  on_meshes([](const Grid& mesh, int stage, int) {
    const auto check = [&]<class T>(T) {
      Trainer<T> trainer(mesh, distx::SGD{}, stage);
      const auto full = trainer.full();
      for (const auto& [name, size] : sizes) {
        INFO(name);
        REQUIRE(full.at(name).size() == size);
        for (std::size_t i = 0; i < size; ++i) CHECK(full.at(name)[i] == static_cast<float>(static_cast<T>(first(i))));
      }
    };
    check(float{});
    check(distx::bfloat16{});  // an odd number of bytes in words
  });
}

TEST_CASE("LAMB on a mesh gives the weights of one process, whose norms are those of whole weights") {
  const auto check = []<class Optimizer>(const Optimizer& optimizer) {
    const auto expected = std::array{alone<float>(optimizer, 4, 1), alone<float>(optimizer, 4, 2)};
    on_meshes([&](const Grid& mesh, int stage, int data) {
      Trainer<float> trainer(mesh, optimizer, stage);
      for (int step = 0; step < 4; ++step) trainer.step(step);
      check_close(expected[static_cast<std::size_t>(data - 1)], trainer.full(), data == 1 ? 0 : 1e-6F);
    });
  };
  check(distx::LAMB{});
  check(OtherTrust{});
}

TEST_CASE(
    "LAMB and Muon on a mesh update 16-bit weights by master weights, with the bits of one process and each stage") {
  using Precision = distx::Precision<distx::bfloat16>;
  const auto check = [](const auto& optimizer) {
    const auto expected = alone<distx::bfloat16, Precision>(optimizer, 4, 1);
    Values of_stage_0;
    on_meshes([&](const Grid& mesh, int stage, int data) {
      Trainer<distx::bfloat16, Precision> trainer(mesh, optimizer, stage);
      for (int step = 0; step < 4; ++step) trainer.step(step);
      const auto full = trainer.full();
      if (data == 1) check_close(expected, full, 0);
      if (stage > 0)
        check_close(of_stage_0, full, 0);
      else if (mesh.rank() == 0)
        of_stage_0 = full;
    });
  };
  check(distx::LAMB{});
  check(mixture);
}

TEST_CASE("LAMB on a mesh by phases has the bits of whole steps, also with clipped gradients") {
  constexpr double clip_norm = 0.5;
  const auto expected =
      std::array{alone<float>(OtherTrust{}, 4, 1, clip_norm), alone<float>(OtherTrust{}, 4, 2, clip_norm)};
  CHECK(expected[0] != alone<float>(OtherTrust{}, 4, 1));
  on_meshes([&](const Grid& mesh, int stage, int data) {
    Trainer<float> trainer(mesh, OtherTrust{}, stage, clip_norm), phases(mesh, OtherTrust{}, stage, clip_norm);
    for (int step = 0; step < 4; ++step) trainer.step(step), phases.step(step, true);
    check_close(expected[static_cast<std::size_t>(data - 1)], trainer.full(), 2e-6F);
    check_close(trainer.full(), phases.full(), 0);
  });
}

TEST_CASE("Muon on a mesh gives the weights of one process, whose matrices are whole") {
  const auto expected = std::array{alone<float>(mixture, 4, 1), alone<float>(mixture, 4, 2)};
  CHECK(expected[0] != alone<float>(distx::AdamW{}, 4, 1));
  on_meshes([&](const Grid& mesh, int stage, int data) {
    Trainer<float> trainer(mesh, mixture, stage);
    for (int step = 0; step < 4; ++step) trainer.step(step);
    check_close(expected[static_cast<std::size_t>(data - 1)], trainer.full(), data == 1 ? 0 : 1e-6F);
  });
}

TEST_CASE("Muon on a mesh by phases has the bits of whole steps, also with clipped gradients of double") {
  constexpr double clip_norm = 0.5;
  on_meshes([&](const Grid& mesh, int stage, int data) {
    Trainer<double> trainer(mesh, mixture, stage, clip_norm), phases(mesh, mixture, stage, clip_norm);
    for (int step = 0; step < 4; ++step) trainer.step(step), phases.step(step, true);
    check_close(alone<double>(mixture, 4, data, clip_norm), trainer.full(), 1e-6F);
    check_close(trainer.full(), phases.full(), 0);
  });
}

TEST_CASE("Muon on a mesh that shards no weight has the bits of a DataParallel of each stage") {
  for (int stage = 0; stage < 4; ++stage) {
    CAPTURE(stage);
    const auto expected = alone<float>(mixture, 4, 2, 1, 2, stage);
    toy::on_ranks(2, [&](distx::ThreadCommunicator& comm) {
      Trainer<float> trainer(Grid(comm, {2, 1, 1}), mixture, stage, 1);
      for (int step = 0; step < 4; ++step) trainer.step(step);
      check_close(expected, trainer.full(), 0);
    });
  }
}

TEST_CASE("Muon on a mesh shards among groups of ranks along the data axis") {
  const auto expected = alone<float>(mixture, 4, 4);
  for (int stage = 1; stage < 4; ++stage) {
    CAPTURE(stage);
    toy::on_ranks(8, [&](distx::ThreadCommunicator& comm) {
      Trainer<float, distx::Hybrid> trainer(Grid(comm, {4, 2, 1}), mixture, stage);
      for (int step = 0; step < 4; ++step) trainer.step(step);
      check_close(expected, trainer.full(), 1e-6F);
    });
  }
}

TEST_CASE("a failed allocation for whole matrices of a mesh is a MemoryError on every rank") {
  struct Greedy : distx::Muon {
    static std::size_t scratch(distx::MatrixShape shape) { return shape.rows > 1 ? std::size_t{1} << 56 : 0; }
  };
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, {1, 2, 1});
    const Weight<2, float, Shard<0, Model>> weight("weight", mesh, {5, 3}, {.rows = 5});
    CHECK_THROWS_WITH_AS(distx::MeshParallel<Data>(mesh, distx::TensorParameterList<>().add(weight), Greedy{}),
                         doctest::Contains("this rank holds weights "), distx::MemoryError);
  });
}

TEST_CASE("Muon on a mesh of the data axis alone updates whole matrices as a DataParallel does") {
  using Line = distx::Mesh<Data>;
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    for (int stage = 0; stage < 4; ++stage) {
      CAPTURE(stage);
      const Line mesh(comm, {2});
      distx::TensorParameter<float, 2, Line> weight(
          "rows", mesh, {5, 3}, [](const auto& index) { return first(3 * index[0] + index[1]); }, {.rows = 5});
      std::vector<distx::Parameter<float>> whole;
      const auto& same = whole.emplace_back(
          "rows", 15,
          [](distx::Span<float> values) {
            for (std::size_t i = 0; i < 15; ++i) values[i] = first(i);
          },
          distx::ParameterOptions{.rows = 5});
      distx::MeshParallel<Data, distx::ZeRO<distx::Dynamic>> training(mesh, distx::TensorParameterList<>().add(weight),
                                                                      distx::Muon{}, {.stage = stage});
      distx::DataParallel<distx::ZeRO<distx::Dynamic>> alike(comm, whole, distx::Muon{}, {.stage = stage});
      for (int step = 0; step < 3; ++step) {
        distx::DistTensor<float, 2, Line, distx::Layout<distx::Partial<Data>>> gradient(mesh, {5, 3});
        for (std::size_t i = 0; i < 15; ++i)
          gradient.local()[i] = alike.gradient(same)[i] = Trainer<float>::slope_of(i, step, comm.rank());
        training.ready(weight, gradient);
        alike.ready(same);
        training.step({.learning_rate = 0.05});
        alike.step({.learning_rate = 0.05});
      }
      std::vector<float> weights[2];
      const auto copy_to = [](std::vector<float>& to) {
        return [&](const std::string&, distx::Span<const distx::AnyElement> values) {
          to.assign(static_cast<const float*>(values.data()), static_cast<const float*>(values.data()) + values.size());
        };
      };
      training.for_each_full_weight(copy_to(weights[0]));
      alike.for_each_full_weight(copy_to(weights[1]));
      CHECK(weights[0] == weights[1]);
    }
  });
}

TEST_CASE("the rows of a weight on a mesh are those of the whole weight") {
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    const Grid mesh(comm, {1, 2, 1});
    using Rows = Weight<2, float, Shard<0, Model>>;
    const Rows valid("valid", mesh, {5, 3}, {.rows = 5});
    CHECK_THROWS_WITH_AS(Rows("odd", mesh, {5, 3}, {.rows = 4}),
                         doctest::Contains("invalid .rows = 4 of 'odd': must divide its 15 elements"),
                         distx::InvalidArgument);
    const Rows vector("vector", mesh, {5, 3});
    distx::TensorParameterList<> list;
    list.add(valid, vector);
    CHECK_THROWS_AS(distx::MeshParallel<Data>(mesh, list, distx::Muon{}), distx::InvalidArgument);
  });
}

TEST_CASE("Muon on a mesh keeps a value for each element of the parts, and whole directions in flight") {
  for (int stage = 0; stage < 4; ++stage) {
    CAPTURE(stage);
    toy::on_ranks(4, [&](distx::ThreadCommunicator& comm) {
      const Grid mesh(comm, {2, 2, 1});
      constexpr std::size_t side = 32, size = side * side;
      const auto zero = [](const auto&) { return 0.0F; };
      using Rows = distx::TensorParameter<float, 2, Grid, distx::Layout<Shard<0, Model>>>;
      const auto memory = [&](const auto& optimizer) {
        const Rows a("a", mesh, {side, side}, zero, {.rows = side}), b("b", mesh, {side, side}, zero, {.rows = side});
        return distx::MeshParallel<Data, distx::ZeRO<distx::Dynamic>>(
                   mesh, distx::TensorParameterList<>().add(a, b), optimizer,
                   {.stage = stage, .map_weights = false, .share_weights = false})
            .memory();
      };
      const auto muon = memory(distx::Muon{}), sgd = memory(distx::SGD{});
      const auto plan = distx::plan(size, 2, stage, distx::full_precision<distx::Muon>);
      CHECK(muon.optimizer.held == plan.optimizer);
      CHECK(muon.weights.held == plan.weights);
      CHECK(muon.gradients.held == plan.gradients);
      // Two directions with a factor each, in whole lines; the scratch memory of one; the engine's for a part.
      const std::size_t whole = 4 * size + 64, scratch = 4 * distx::Muon::scratch({side, side});
      CHECK(muon.in_flight.held - sgd.in_flight.held == 2 * whole + scratch + 4 * distx::Muon::scratch({1, size / 2}));
    });
  }
}

TEST_CASE("a moving average on a mesh is that of the whole weights, and swap_in restores the weights") {
  on_meshes([](const Grid& mesh, int stage, int) {
    Trainer<float> trainer(mesh, distx::SGD{}, stage);
    auto average = trainer.training.ema(0.5);
    auto expected = trainer.full();
    for (int step = 0; step < 3; ++step) {
      trainer.step(step);
      average.update();
      for (auto& [name, values] : trainer.full())
        for (std::size_t i = 0; i < values.size(); ++i) expected[name][i] += 0.5F * (values[i] - expected[name][i]);
    }
    const auto before = trainer.full();
    {
      const auto scope = average.swap_in();
      CHECK(trainer.full() == expected);
    }
    CHECK(trainer.full() == before);
    CHECK(before.at("rows") != expected.at("rows"));
  });
}

}  // namespace mesh_weights_test
