// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/parallel/layers/recomputed.hpp>
#include <distx/parallel/layers/transformer_block.hpp>
#include <distx/parallel/mesh_parallel.hpp>
#include <distx/parallel/pipeline/deferred_weights.hpp>
#include <distx/parallel/pipeline/pipeline.hpp>
#include <distx/parallel/pipeline/tied_weight.hpp>
#include <distx/tensor.hpp>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <stdexcept>

#include "message_thrown.hpp"
#include "toy.hpp"

namespace pipeline_test {

namespace {

struct Pipe {};
struct Rest {};
struct Data {};
struct Model {};
using Grid = distx::Mesh<Pipe, Rest>;
using Mesh = distx::Mesh<Data, Model>;
using Split = distx::layers::TensorParallel<Mesh, Data, Model>;
using Plain = distx::layers::TransformerBlock<float, Split>;
using Recomputed = distx::layers::Recomputed<Plain>;
using Edge = Split::tensor<float, 3, Split::residual>;

constexpr std::size_t batch = 4, length = 3, heads = 2, width = 8;
constexpr int layers = 4, micro_batches = 4, steps = 3;

struct At {
  double seed;
  template <std::size_t Rank>
  float operator()(const std::array<std::size_t, Rank>& index) const {
    double at = seed;
    for (const auto i : index) at = 1.7 * at + static_cast<double>(i);
    return static_cast<float>(0.4 * std::sin(at));
  }
};
struct Initial {
  double layer;
  At projections{1 + layer}, output{2 + layer}, wide{3 + layer}, narrow{4 + layer};
};
Edge made(const Mesh& mesh, double seed) {
  return distx::generate<float, Split::residual>(mesh, {batch, length, width}, At{seed});
}

/// Consecutive layers of the model, which learns to map inputs to targets by half the squared distance.
template <class Block, class Training>
struct Stage {
  using edge = Edge;
  using block_activations =
      decltype(std::declval<const Block&>().forward(std::declval<Edge>(), std::declval<Training&>()).activations);
  struct activations {
    std::vector<block_activations> blocks;
    std::optional<Edge> loss_gradient;
  };
  using weight_work = distx::pipeline::WeightWork<Training>;

  Stage(const Mesh& on, int index, int count) : mesh(on), first(index == 0), last(index + 1 == count) {
    for (int i = layers * index / count; i < layers * (index + 1) / count; ++i)
      blocks.emplace_back("block" + std::to_string(i), mesh, width, heads, Initial{0.1 * i});
  }
  void list(distx::TensorParameterList<>& weights, int times) const {
    for (const auto& block : blocks)
      block.for_each_parameter([&](const auto& each) { weights.add(each, {.micro_batches = times}); });
  }

  [[nodiscard]] Edge::spec_type edge_spec() const { return {mesh, {batch, length, width}}; }
  [[nodiscard]] distx::layers::Forward<std::optional<Edge>, activations> forward(std::optional<Edge> input,
                                                                                 int micro_batch,
                                                                                 Training& training) const {
    Edge x = first ? made(mesh, 5 + step + 10 * micro_batch) : std::move(*input);
    if (on_forward) on_forward(micro_batch);
    activations kept;
    for (const auto& block : blocks) {
      auto [output, of_block] = block.forward(std::move(x), training);
      x = std::move(output);
      kept.blocks.push_back(std::move(of_block));
    }
    if (!last) return {std::move(x), std::move(kept)};
    kept.loss_gradient = distx::ops::subtract(x, made(mesh, 7 + step + 20 * micro_batch));
    return {std::nullopt, std::move(kept)};
  }
  template <class AnyTraining>
  [[nodiscard]] std::optional<Edge> back(activations kept, std::optional<Edge> gradient, AnyTraining& training) const {
    Edge slope = last ? std::move(*kept.loss_gradient) : std::move(*gradient);
    for (std::size_t i = blocks.size(); i-- > 0;)
      slope = blocks[i].backward(std::move(kept.blocks[i]), slope, training);
    if (first) return std::nullopt;
    return slope;
  }
  [[nodiscard]] std::optional<Edge> backward(activations kept, std::optional<Edge> gradient, int micro_batch,
                                             Training& training) const {
    if (on_backward) on_backward(micro_batch);
    return back(std::move(kept), std::move(gradient), training);
  }
  [[nodiscard]] std::pair<std::optional<Edge>, weight_work> backward_input(activations kept,
                                                                           std::optional<Edge> gradient, int,
                                                                           Training& training) const {
    distx::pipeline::DeferredWeights later(training);
    auto slope = back(std::move(kept), std::move(gradient), later);
    return {std::move(slope), later.take()};
  }
  void backward_weight(weight_work work, int, Training& training) const {
    distx::pipeline::compute(std::move(work), training);
  }

  Mesh mesh;
  bool first, last;
  std::vector<Block> blocks;
  double step = 0;
  std::function<void(int)> on_forward{}, on_backward{};
};

using Words = std::vector<float>;
struct Run {
  int ranks = 1, data = 1, model = 1;
  double clip = std::numeric_limits<double>::infinity();
};
struct Result {
  std::vector<Words> weights;  // of each layer
  double norm = 0;
};

/// Trains for a few steps and returns the weights, by their layer.
template <class Block, int Zero, class Schedule>
Result train(const Run& run, const Schedule& schedule) {
  using Training = distx::MeshParallel<Data, distx::ZeRO<Zero>>;
  Result result;
  result.weights.resize(layers);
  std::mutex mutex;
  toy::on_ranks(run.ranks * run.data * run.model, [&](distx::ThreadCommunicator& comm) {
    const Grid grid(comm, {run.ranks, run.data * run.model});
    const Mesh mesh(grid.along<Rest>(), {run.data, run.model});
    std::vector<Stage<Block, Training>> stages;
    distx::TensorParameterList<> weights;
    const int chunks = plain(schedule).shape().chunks;
    for (int chunk = 0; chunk < chunks; ++chunk)
      stages.emplace_back(mesh, chunk * run.ranks + grid.template coordinate<Pipe>(), chunks * run.ranks)
          .list(weights, micro_batches);
    Training training(mesh, weights, distx::AdamW{}, {.bucket_bytes = 2048, .clip_norm = run.clip}, grid.along<Pipe>());
    distx::pipeline::Pipeline pipeline(grid.along<Pipe>(), schedule, std::span<const Stage<Block, Training>>(stages),
                                       training);
    for (int step = 0; step < steps; ++step) {
      for (auto& stage : stages) stage.step = step;
      pipeline.run();
      training.step({.learning_rate = 1e-2});
    }
    training.for_each_full_weight([&](const std::string& name, const auto& whole) {
      if (mesh.rank() != 0) return;
      const std::scoped_lock lock(mutex);
      auto& into = result.weights[static_cast<std::size_t>(name[5] - '0')];
      const auto* const values = static_cast<const float*>(whole.data());
      into.insert(into.end(), values, values + whole.size());
      result.norm = training.gradient_norm();
    });
  });
  return result;
}

template <class Block, int Zero>
void check_same(const Run& run) {
  using namespace distx::pipeline;
  CAPTURE(run.ranks);
  CAPTURE(run.data);
  CAPTURE(run.model);
  CAPTURE(Zero);
  const auto alone =
      train<Plain, Zero>({.data = run.data, .model = run.model, .clip = run.clip}, gpipe(1, micro_batches));
  REQUIRE(alone.weights[layers - 1].size() > 500);
  REQUIRE((run.clip > 1e9 || alone.norm > run.clip));
  const auto same = [&](const Result& found) {
    bool all = found.norm == alone.norm;
    for (std::size_t i = 0; i < layers; ++i) all = all && toy::same_bits(found.weights[i], alone.weights[i]);
    return all;
  };
  CHECK(same(train<Block, Zero>(run, gpipe(run.ranks, micro_batches))));
  CHECK(same(train<Block, Zero>(run, one_forward_one_backward(run.ranks, micro_batches))));
  CHECK(same(train<Block, Zero>(run, zero_bubble(run.ranks, micro_batches))));
  if (run.ranks <= layers / 2) CHECK(same(train<Block, Zero>(run, interleaved(run.ranks, micro_batches, 2))));
}

TEST_CASE("Pipeline: every schedule trains to the bits of one stage, at every stage of ZeRO") {
  check_same<Plain, 0>({.ranks = 1});
  check_same<Plain, 0>({.ranks = 2});
  check_same<Plain, 0>({.ranks = 4});
  check_same<Plain, 1>({.ranks = 2, .data = 2});
  check_same<Plain, 2>({.ranks = 2, .data = 2});
  check_same<Plain, 3>({.ranks = 2, .data = 2});
}
TEST_CASE("Pipeline: with recomputation and tensor parallelism") {
  check_same<Recomputed, 0>({.ranks = 2, .model = 2});
  check_same<Recomputed, 3>({.ranks = 2, .data = 2, .model = 2});
}
TEST_CASE("Pipeline: the norm that clips gradients is that of all stages") {
  check_same<Plain, 0>({.ranks = 2, .clip = 0.5});
  check_same<Plain, 1>({.ranks = 2, .data = 2, .model = 2, .clip = 0.5});
}

/// Makes a pipeline of 1F1B on each of two or more ranks and calls f(comm, stage, training, pipeline).
template <class F>
void on_stages(int ranks, int data, F&& f) {
  using Training = distx::MeshParallel<Data, distx::ZeRO<1>>;
  toy::on_ranks(ranks * data, [&](distx::ThreadCommunicator& comm) {
    const Grid grid(comm, {ranks, data});
    const Mesh mesh(grid.along<Rest>(), {data, 1});
    Stage<Plain, Training> stage(mesh, grid.coordinate<Pipe>(), ranks);
    distx::TensorParameterList<> weights;
    stage.list(weights, micro_batches);
    Training training(mesh, weights, distx::SGD{}, {}, grid.along<Pipe>());
    f(comm, grid, stage, training);
  });
}
const auto f1b1 = [](int ranks) { return distx::pipeline::one_forward_one_backward(ranks, micro_batches); };

TEST_CASE("Pipeline: an exception at any micro-batch of any stage ends the step on every rank with its words") {
  for (const bool backward : {false, true})
    for (const int failing : {0, 1, 2, 3})
      for (const int micro_batch : {0, 3}) {
        CAPTURE(backward);
        CAPTURE(failing);
        CAPTURE(micro_batch);
        std::atomic<int> told = 0, own = 0;
        on_stages(2, 2, [&](auto& comm, auto& grid, auto& stage, auto& training) {
          if (comm.rank() == failing)
            (backward ? stage.on_backward : stage.on_forward) = [&](int at) {
              if (at == micro_batch) throw std::runtime_error("no data");
            };
          distx::pipeline::Pipeline pipeline(grid.template along<Pipe>(), f1b1(2), stage, training);
          try {
            for (int step = 0; step < 2; ++step) {  // the last stage may have made all of the first step
              pipeline.run();
              training.step({.learning_rate = 1e-3});
            }
          } catch (const distx::Error& error) {
            told += std::string(error.what()).find("no data") != std::string::npos ? 1 : 0;
          } catch (const std::runtime_error&) {
            ++own;
          }
        });
        CHECK(own == 1);
        CHECK(told == 3);
      }
}

TEST_CASE("Pipeline: ranks with different schedules, or tensors, get an error that names the difference") {
  on_stages(2, 1, [&](auto& comm, auto& grid, auto& stage, auto& training) {
    const auto mine = comm.rank() == 0 ? f1b1(2) : distx::pipeline::gpipe(2, micro_batches);
    const auto text = test::message_thrown<distx::MismatchError>(
        [&] { distx::pipeline::Pipeline pipeline(grid.template along<Pipe>(), mine, stage, training); });
    CHECK(text.find(
              "the schedule differs: rank 0 has 1F1B of 4 micro-batches, 1 stages on each rank; rank 1 has GPipe") !=
          std::string::npos);
  });
  on_stages(2, 1, [&](auto& comm, auto& grid, auto& stage, auto& training) {
    const auto valid = f1b1(2);
    distx::pipeline::Steps lists{valid.steps(0), valid.steps(1)};
    if (comm.rank() == 1) std::swap(lists[0][1], lists[0][2]);  // sends later, which is valid
    const distx::pipeline::Schedule mine("mine", valid.shape(), std::move(lists));
    const auto text = test::message_thrown<distx::MismatchError>(
        [&] { distx::pipeline::Pipeline pipeline(grid.template along<Pipe>(), mine, stage, training); });
    CHECK(
        text.find("step 1 of rank 0 differs: rank 0 has send output of micro-batch 0 in chunk 0; rank 1 has forward") !=
        std::string::npos);
  });
}

TEST_CASE("Pipeline: a schedule for other ranks or stages is refused, and so is one that splits without saying so") {
  const auto refused = [](const distx::pipeline::Schedule& schedule, const std::string& words) {
    on_stages(2, 1, [&](auto&, auto& grid, auto& stage, auto& training) {
      const auto text = test::message_thrown<distx::InvalidArgument>(
          [&] { distx::pipeline::Pipeline pipeline(grid.template along<Pipe>(), schedule, stage, training); });
      CHECK(text.find(words) != std::string::npos);
    });
  };
  refused(f1b1(3), "schedule '1F1B' is for 3 ranks with 1 stages each, and this rank has 1 of 2 ranks");
  refused(distx::pipeline::interleaved(2, 4, 2), "is for 2 ranks with 2 stages each");
  refused(distx::pipeline::zero_bubble(2, 4).schedule(), "splits backward passes: make a SplitSchedule of it");
  // Split on one rank only.
  const auto whole = distx::pipeline::gpipe(2, 1);
  auto halves = whole.steps(1);
  for (std::size_t i = 0; i < halves.size(); ++i)
    if (halves[i].action == distx::pipeline::Action::backward) {
      halves[i].action = distx::pipeline::Action::backward_input;
      halves.insert(halves.begin() + static_cast<std::ptrdiff_t>(i) + 1, {distx::pipeline::Action::backward_weight});
    }
  refused({"mine", {2, 1}, {whole.steps(0), halves}}, "splits backward passes");
}

TEST_CASE("Pipeline: an error of one rank in a constructor ends those of the other stages at once") {
  const auto ends = [](const std::string& words, auto&& f) {
    on_stages(2, 1, [&](auto& comm, auto& grid, auto& stage, auto& training) {
      if (comm.rank() == 0) {
        const auto text = test::message_thrown<distx::RevokedError>([&] { f(0, grid, stage, training); });
        CHECK(text.find(words) != std::string::npos);
      } else {
        CHECK(test::message_thrown<distx::InvalidArgument>([&] { f(1, grid, stage, training); }).find(words) !=
              std::string::npos);
      }
    });
  };
  ends("is for 3 ranks", [](int rank, auto& grid, auto& stage, auto& training) {
    distx::pipeline::Pipeline pipeline(grid.template along<Pipe>(), f1b1(rank == 0 ? 2 : 3), stage, training);
  });
  ends("has no stage", [](int rank, auto& grid, auto& stage, auto& training) {
    using StageT = std::remove_reference_t<decltype(stage)>;
    const std::span<const StageT> stages(&stage, rank == 0 ? 1 : 0);
    distx::pipeline::Pipeline pipeline(grid.template along<Pipe>(), f1b1(2), stages, training);
  });
  ends("momentum", [](int rank, auto& grid, auto& stage, auto&) {
    const distx::TensorParameter<float, 1, Mesh> weight("weight", stage.mesh, {3}, [](const auto&) { return 1.0F; });
    distx::TensorParameterList<> weights;
    weights.add(weight);
    const distx::SGD optimizer{.momentum = rank == 0 ? 0.9 : 2.0};
    distx::MeshParallel<Data> other(stage.mesh, weights, optimizer, {}, grid.template along<Pipe>());
  });
}

TEST_CASE("MeshParallel: options that concern all stages are compared") {
  on_stages(2, 1, [](auto& comm, auto& grid, auto&, auto&) {
    const Mesh mesh(grid.template along<Rest>(), {1, 1});
    const distx::TensorParameter<float, 1, Mesh> weight("weight", mesh, {3}, [](const auto&) { return 1.0F; });
    distx::TensorParameterList<> weights;
    weights.add(weight);
    const distx::DataParallelOptions options{.clip_norm = comm.rank() == 0 ? 1.0 : 2.0};
    const auto text = test::message_thrown<distx::MismatchError>(
        [&] { distx::MeshParallel<Data> training(mesh, weights, distx::SGD{}, options, grid.template along<Pipe>()); });
    CHECK(text.find(".clip_norm of the stages differs: rank 0 has 1; rank 1 has 2") != std::string::npos);
  });
}

/// A stage that passes on a large tensor, which is not sent before it is received.
struct Large {
  using edge = distx::DistTensor<float, 1, Mesh, distx::Layout<>>;
  struct activations {};
  struct NoTraining {};

  [[nodiscard]] edge::spec_type edge_spec() const { return {mesh, {1U << 20}}; }
  [[nodiscard]] distx::layers::Forward<std::optional<edge>, activations> forward(std::optional<edge>, int,
                                                                                 NoTraining&) const {
    if (last) throw std::runtime_error("no data");
    return {edge(edge_spec()), {}};
  }
  [[nodiscard]] std::optional<edge> backward(activations, std::optional<edge>, int, NoTraining&) const { return {}; }

  Mesh mesh;
  bool last;
};

TEST_CASE("Pipeline: the step whose last message is not received throws") {
  toy::on_ranks(2, [](distx::ThreadCommunicator& comm) {
    const Grid grid(comm, {2, 1});
    const Large stage{Mesh(grid.along<Rest>(), {1, 1}), comm.rank() == 1};
    Large::NoTraining training;
    distx::pipeline::Pipeline pipeline(grid.along<Pipe>(), distx::pipeline::gpipe(2, 2), stage, training);
    if (comm.rank() == 0)
      CHECK(test::message_thrown<distx::RevokedError>([&] { pipeline.run_forward(); }).find("no data") !=
            std::string::npos);
    else
      CHECK_THROWS_AS(pipeline.run_forward(), std::runtime_error);
  });
}

TEST_CASE("TiedWeight: a stage without a gradient ends the other holders") {
  on_stages(2, 1, [](auto& comm, auto& grid, auto& stage, auto&) {
    const distx::TensorParameter<float, 1, Mesh> table("table", stage.mesh, {3}, [](const auto&) { return 1.0F; });
    distx::TensorParameterList<> weights;
    weights.add(table, distx::pipeline::StageUse{.counted = comm.rank() == 0});
    distx::MeshParallel<Data> training(stage.mesh, weights, distx::SGD{}, {.clip_norm = 1e6},
                                       grid.template along<Pipe>());
    distx::pipeline::TiedWeight<Data, distx::TensorParameter<float, 1, Mesh>> tied(table, grid.template along<Pipe>());
    distx::pipeline::TiedTraining collecting(training, tied);
    const auto gradient =
        distx::from_local<distx::Partial<Data>>(stage.mesh, {3}, std::vector<float>(3, comm.rank() == 0 ? 3.0F : 1.0F));
    collecting.ready(table, gradient);
    collecting.ready(table, gradient);
    tied.ready(training);
    training.step({.learning_rate = 0.125});
    CHECK(training.gradient_norm() == doctest::Approx(8 * std::sqrt(3.0)));  // once, of both stages
    for (const float each : table.local()) CHECK(each == 0);
    if (comm.rank() == 1) {
      CHECK(test::message_thrown<distx::InvalidState>([&] { tied.ready(training); }).find("'table' has no gradient") !=
            std::string::npos);
    } else {
      collecting.ready(table, gradient);
      CHECK(test::message_thrown<distx::RevokedError>([&] { tied.ready(training); }).find("'table' has no gradient") !=
            std::string::npos);
    }
  });
}

TEST_CASE("Pipeline: the micro-batches that keep activations at once are those of the schedule") {
  for (const int ranks : {2, 4})
    on_stages(ranks, 1, [&](auto&, auto& grid, auto& stage, auto& training) {
      const auto bytes_of_one = [&] {
        auto [output, kept] = stage.forward(std::nullopt, 0, training);
        std::size_t bytes = 0;
        for (const auto& block : kept.blocks) bytes += block.bytes();
        return bytes;
      };
      const bool first = stage.first;
      stage.first = true;  // so that it makes an input
      const std::size_t one = bytes_of_one();
      stage.first = first;
      REQUIRE(training.memory().activations.peak == one);
      const auto schedule = f1b1(ranks);
      distx::pipeline::Pipeline pipeline(grid.template along<Pipe>(), schedule, stage, training);
      pipeline.run();
      CHECK(training.memory().activations.peak ==
            one * static_cast<std::size_t>(schedule.peak_alive(grid.template coordinate<Pipe>())));
      CHECK(training.memory().activations.held == 0);
      training.step({.learning_rate = 1e-3});
      pipeline.run_forward();
      const auto timeline = pipeline.timeline();  // of `run`
      REQUIRE(timeline.size() == static_cast<std::size_t>(ranks));
      for (int rank = 0; rank < ranks; ++rank) {
        const auto& made = timeline[static_cast<std::size_t>(rank)];
        CHECK(std::ranges::equal(made, schedule.steps(rank), {}, &distx::pipeline::Interval::step));
        CHECK(std::ranges::is_sorted(made, {}, &distx::pipeline::Interval::end));
        CHECK(made.front().end > 0);
      }
      CHECK(training.memory().activations.held == 0);
    });
}

}  // namespace

}  // namespace pipeline_test
