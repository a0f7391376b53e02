// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trains until something ends it, and prints what: `trainee shm|mpi|mpi-vendor|gloo STAGE DEADLINE_IN_SECONDS
// [stay FILE|inside|elastic FILE|join FILE N]`. A STAGE such as 2p trains a pipeline of two stages. With `stay` it
// exits once FILE exists, because mpirun ends all ranks when one exits without MPI_Finalize. With `inside` rank 1 stops
// itself while it reads the other ranks' memory. With `elastic` the training continues on the surviving ranks, and
// each checks at the end that the weights are those of an undisturbed one. With `join` it continues on these and on
// those that join, and does not end on fewer than N. Both end once FILE exists, which means that the attack is over: a
// fast machine would be done before it. See attack.py.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/parallel/mesh_parallel.hpp>
#include <distx/parallel/pipeline/pipeline.hpp>
#include <distx/tensor/ops/arithmetic.hpp>
#include <distx/tensor/ops/matmul.hpp>
#ifdef TRAINEE_WITH_GLOO
#include <distx/gloo.hpp>
#endif
#include <distx/mpi.hpp>
#include <distx/shm.hpp>
#include <distx/tcp.hpp>

namespace {

int rank = -1;

/// Writes a line in one piece, because other ranks write too.
void say(const std::string& words) {
  const std::string line = "rank " + std::to_string(rank) + " " + words + "\n";
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

/// The greater of two; stops this process once if asked to.
struct GreaterOrStop {
  static constexpr bool commutative = true;
  static inline bool stops = false;
  float operator()(float a, float b) const {
    if (std::exchange(stops, false)) std::raise(SIGSTOP);
    return a < b ? b : a;
  }
};
bool stops_inside = false;

/// Prints how long the call took that a TimeoutError ended. An asynchronous call may have begun earlier in the step.
struct Clock {
  using Time = std::chrono::steady_clock::time_point;
  Time step{}, begin{};
  void begin_step() { step = begin = std::chrono::steady_clock::now(); }
  void restart() { begin = std::chrono::steady_clock::now(); }
  void say_time_out() const {
    const auto since = [now = std::chrono::steady_clock::now()](Time then) {
      return std::to_string(std::chrono::duration<double>(now - then).count()) + " s";
    };
    say("waited " + since(begin) + ", " + since(step) + " after the step began");
  }
};

template <int Stage, class C>
[[noreturn]] void train(C& comm) {
  constexpr std::size_t width = 1000;
  std::vector<distx::Parameter<float>> parameters;
  for (const char* name : {"first", "second", "third"}) parameters.emplace_back(name, width * width / 4);
  distx::DataParallel<distx::ZeRO<Stage>> training(comm, parameters, distx::AdamW{},
                                                   {.bucket_bytes = std::size_t{1} << 18});
  static std::vector<float> large(std::size_t{1} << 20, 1.0f);  // MPI's own collectives may keep it
  Clock clock;
  for (int step = 0;; ++step) try {
      clock.begin_step();
      for (auto& parameter : parameters) {
        clock.restart();
        const auto weights = training.unshard(parameter);
        const auto value = training.value(parameter);
        const auto gradient = training.gradient(parameter);
        for (std::size_t i = 0; i < gradient.size(); ++i)
          gradient.data()[i] = value.data()[i] * static_cast<float>(rank + 1);
        clock.restart();
        training.ready(parameter);
      }
      clock.restart();
      training.step({.learning_rate = 1e-4});
      clock.restart();
      float loss = 1;
      distx::all_reduce(comm, loss, distx::sum);
      clock.restart();
      GreaterOrStop::stops = stops_inside && rank == 1 && step == 5;
      distx::all_reduce(comm, large, GreaterOrStop{});
      clock.restart();
      distx::broadcast(comm, large, step % comm.size());
      if (step == 3) say("trains");
    } catch (const distx::TimeoutError&) {
      clock.say_time_out();
      throw;
    }
}

struct Pipe {};
struct Rest {};
struct Data {};
using Grid = distx::Mesh<Data>;

/// A linear layer, which learns to output zeros.
template <class Training>
struct Linear {
  static constexpr std::size_t rows = 64, width = 200;
  using edge = distx::DistTensor<float, 2, Grid, distx::Layout<distx::Shard<0, Data>>>;
  struct activations {
    edge input, output;
  };

  [[nodiscard]] edge::spec_type edge_spec() const { return {mesh, {rows, width}}; }
  [[nodiscard]] distx::layers::Forward<std::optional<edge>, activations> forward(std::optional<edge> input, int,
                                                                                 Training& training) const {
    edge x = first ? distx::full<float, distx::Shard<0, Data>>(mesh, {rows, width}, 1) : std::move(*input);
    const auto weights = training.unshard(weight);
    edge y = distx::ops::matmul(x, weight);
    if (first) return {std::move(y), {std::move(x), edge(edge_spec())}};
    return {std::nullopt, {std::move(x), std::move(y)}};
  }
  [[nodiscard]] std::optional<edge> backward(activations kept, std::optional<edge> gradient, int,
                                             Training& training) const {
    const edge slope = first ? std::move(*gradient) : std::move(kept.output);
    const auto weights = training.unshard(weight);
    training.ready(weight, distx::ops::matmul(distx::ops::transposed(kept.input), slope));
    if (first) return std::nullopt;
    return distx::ops::matmul(slope, distx::ops::transposed(weight));
  }

  Grid mesh;
  bool first;
  distx::TensorParameter<float, 2, Grid, distx::Layout<>> weight{
      "weight", mesh, {width, width}, [](const auto&) { return 1e-3F; }};
};

/// Trains a pipeline of two stages, each on half of the ranks.
template <int Stage, class C>
[[noreturn]] void train_pipeline(C& comm) {
  constexpr int micro_batches = 4;
  using Training = distx::MeshParallel<Data, distx::ZeRO<Stage>>;
  const distx::Mesh<Pipe, Rest> all(comm, {2, comm.size() / 2});
  auto& along = all.template along<Pipe>();
  const Linear<Training> stage{Grid(all.template along<Rest>(), {comm.size() / 2}), along.rank() == 0};
  distx::TensorParameterList<> parameters;
  parameters.add(stage.weight, {.micro_batches = micro_batches});
  Training training(stage.mesh, parameters, distx::AdamW{}, {.clip_norm = 1}, along);
  distx::pipeline::Pipeline pipeline(along, distx::pipeline::one_forward_one_backward(2, micro_batches), stage,
                                     training);
  Clock clock;
  for (int step = 0;; ++step) try {
      clock.begin_step();
      pipeline.run();
      clock.restart();
      training.step({.learning_rate = 1e-4});
      if (step == 3) say("trains");
    } catch (const distx::TimeoutError&) {
      clock.say_time_out();
      throw;
    }
}

std::vector<distx::Parameter<float>> small_model() {
  std::vector<distx::Parameter<float>> parameters;
  for (const char* name : {"first", "second", "third", "fourth"})
    parameters.emplace_back(name, std::size_t{20011}, [](distx::Span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 13);
    });
  return parameters;
}
/// Makes a step whose averaged gradients have the same bits on any number of ranks: they are small integers.
template <class Training>
void make_step(Training& training, std::vector<distx::Parameter<float>>& parameters, std::uint64_t step) {
  for (auto& parameter : parameters) {
    const auto weights = training.unshard(parameter);
    const auto gradient = training.gradient(parameter);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>((i * (step + 3)) % 9) - 4;
    training.ready(parameter);
  }
  training.step({.learning_rate = 1e-2});
}
template <class Training>
std::vector<float> all_weights(Training& training) {
  std::vector<float> all;
  training.for_each_full_weight([&](const std::string&, distx::Span<const distx::AnyElement, distx::Host> values) {
    const auto* begin = static_cast<const float*>(values.data());
    all.insert(all.end(), begin, begin + values.size());
  });
  return all;
}

/// Trains for a number of steps, if need be on fewer ranks.
/// @param attacked  a file that exists once the attack is over
/// @param ranks  with which it ends, once others have joined; if 0, none may join
/// @param make  returns a communicator of a connector's ranks
template <int Stage, class Make>
void train_elastic(distx::AnyConnector& connector, const std::string& attacked, int ranks,
                   std::chrono::seconds deadline, Make&& make) {
  // Over MPI, a step takes less time.
  const std::uint64_t steps = connector.target<distx::MpiConnector>() != nullptr ? 2000 : 400, round = 10;
  const auto expected = [&] {
    auto parameters = small_model();
    distx::SelfConnector self;
    distx::SerialCommunicator alone(self);
    distx::DataParallel<distx::ZeRO<0>> training(alone, parameters, distx::AdamW{});
    for (std::uint64_t step = 0; step < steps; ++step) make_step(training, parameters, step);
    return all_weights(training);
  }();
  auto parameters = small_model();
  auto comm = make(connector);
  distx::DataParallel<distx::ZeRO<Stage>, distx::Replicate> training(comm, parameters, distx::AdamW{},
                                                                     {.bucket_bytes = std::size_t{1} << 16});
  std::vector<float> weights;
  std::uint64_t step = 0;
  if (ranks > 0) distx::broadcast(comm, step, 0);
  std::optional<distx::Deadline> patience;
  const auto waits = [&] {
    if (!patience) patience.emplace(std::chrono::seconds(60));
    const bool over = access(attacked.c_str(), F_OK) == 0 && comm.size() >= ranks;
    int wait = over || patience->expired() ? 0 : 1;
    distx::broadcast(comm, wait, 0);
    return wait != 0;
  };
  for (bool lost = false; weights.empty();) try {
      const int before = connector.size();
      if (lost)
        connector = connector.shrink(10 * deadline);  // the others may wait in a call for one deadline
      else if (ranks > 0)
        connector = connector.grow();
      if (lost || connector.size() != before) {
        comm = make(connector);
        step = training.recover(comm);
        if (ranks > 0) distx::broadcast(comm, step, 0);
        lost = false;
        say("continues from step " + std::to_string(step) + " as rank " + std::to_string(comm.rank()) + " of " +
            std::to_string(comm.size()));
        continue;
      }
      const std::uint64_t end = ranks > 0 ? std::min(steps, (step / round + 1) * round) : steps;
      for (; step < end; ++step) {
        make_step(training, parameters, step);
        if (step == 3) say("trains");
      }
      if (step < steps || waits()) continue;
      weights = all_weights(training);
      distx::barrier(comm);  // no rank leaves before all are done
    } catch (const distx::Error& error) {
      if (!distx::is_rank_loss(error)) throw;
      weights.clear();
      lost = true;
    }
  say(weights == expected ? "ended right" : "ended with wrong weights");
}

template <class Make>
void train_elastic_at(int stage, distx::AnyConnector& connector, const std::string& attacked, int ranks,
                      std::chrono::seconds deadline, Make&& make) {
  if (stage == 0) return train_elastic<0>(connector, attacked, ranks, deadline, make);
  if (stage == 1) return train_elastic<1>(connector, attacked, ranks, deadline, make);
  if (stage == 2) return train_elastic<2>(connector, attacked, ranks, deadline, make);
  train_elastic<3>(connector, attacked, ranks, deadline, make);
}

template <class C>
[[noreturn]] void train_at(C&& comm, int stage, bool pipelined) {
  if (pipelined) {
    if (stage == 0) train_pipeline<0>(comm);
    if (stage == 1) train_pipeline<1>(comm);
    if (stage == 2) train_pipeline<2>(comm);
    train_pipeline<3>(comm);
  }
  if (stage == 0) train<0>(comm);
  if (stage == 1) train<1>(comm);
  if (stage == 2) train<2>(comm);
  train<3>(comm);
}

void run(int argc, char** argv) {
  const std::string_view backend = argv[1];
  const int stage = std::atoi(argv[2]);
  const bool pipelined = std::string_view(argv[2]).ends_with('p');
  const std::chrono::seconds deadline(std::atoi(argv[3]));
  stops_inside = argc > 4 && std::string_view(argv[4]) == "inside";
  auto connector = distx::connect(argc, argv);
  rank = connector.rank();
  say("is process " + std::to_string(getpid()));
  const int ranks = argc > 6 && std::string_view(argv[4]) == "join" ? std::atoi(argv[6]) : 0;
  const bool elastic = ranks > 0 || (argc > 5 && std::string_view(argv[4]) == "elastic");
  const std::string attacked = elastic ? argv[5] : "";
  const auto shm = [&](auto& from) { return distx::ShmCommunicator(from, deadline); };
  if (backend == "shm" && elastic) return train_elastic_at(stage, connector, attacked, ranks, deadline, shm);
  if (backend == "shm") train_at(shm(connector), stage, pipelined);
#ifdef TRAINEE_WITH_GLOO
  const auto gloo = [&](auto& from) { return distx::GlooCommunicator(from, {.deadline = deadline}); };
  if (backend == "gloo" && elastic) return train_elastic_at(stage, connector, attacked, ranks, deadline, gloo);
  if (backend == "gloo") train_at(gloo(connector), stage, pipelined);
#endif
  const auto mpi = [&](auto& from) {
    using distx::MpiCollectives;
    const auto collectives = backend == "mpi-vendor" ? MpiCollectives::vendor : MpiCollectives::by_size;
    return distx::MpiCommunicator(from, {.deadline = deadline, .collectives = collectives});
  };
  if (elastic) return train_elastic_at(stage, connector, attacked, ranks, deadline, mpi);
  train_at(mpi(connector), stage, pipelined);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
    return 0;
  } catch (const distx::TimeoutError& error) {
    say(std::string("ended by TimeoutError: ") + error.what());
  } catch (const distx::RankFailure& error) {
    say(std::string("ended by RankFailure: ") + error.what());
  } catch (const distx::RevokedError& error) {
    say(std::string("ended by RevokedError: ") + error.what());
  } catch (const distx::ConnectError& error) {
    say(std::string("ended by ConnectError: ") + error.what());
  } catch (const distx::CheckpointError& error) {
    say(std::string("ended by CheckpointError: ") + error.what());
  } catch (const std::exception& error) {
    say(std::string("ended by something else: ") + error.what());
  }
  if (argc > 5 && std::string_view(argv[4]) == "stay")
    while (access(argv[5], F_OK) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return 3;
}
