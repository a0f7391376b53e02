// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trains LeNet-5 on handwritten digits, data-parallel: every rank has the model and a part of each batch.
//   mpirun -np 2 build/examples/train_lenet --backend mpi
//   tools/ranks 2 build/examples/train_lenet
//   build/examples/train_lenet --backend threads --ranks 2
//   build/examples/train_lenet --ranks 2 --checkpoint run --every 100 --resume  (again after it was stopped)
//   build/examples/train_lenet --backend shm --ranks 2 --trace trace.json      (open the trace in ui.perfetto.dev)
//   DISTX_JOIN=1 DISTX_FILE=folder build/examples/train_lenet --elastic        (joins the ranks that meet in the
//   folder)
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <distx/comm.hpp>
#include <distx/comm/decorators/metered.hpp>
#include <distx/comm/decorators/sum_over_ranks.hpp>
#include <distx/comm/decorators/write_trace.hpp>
#include <distx/optim/schedule.hpp>
#include <distx/shm.hpp>
#include <distx/training.hpp>

#include "common/backend.hpp"
#include "common/checkpoint_flags.hpp"
#include "common/json_file.hpp"
#include "common/layer_training.hpp"
#include "common/ledger_json.hpp"
#include "common/progress.hpp"
#include "common/run.hpp"
#include "common/train_step.hpp"
#include "common/training_report.hpp"
#include "common/weights_hash.hpp"
#include "data/mnist.hpp"
#include "data/small_digits.hpp"
#include "models/lenet.hpp"

namespace {

struct Settings {
  examples::Backend backend;
  examples::TrainingFlags training{.optimizer = "sgd",
                                   .bucket_kib = 64,  // the model has 241
                                   .usual_rates = {{"sgd", 0.05}, {"adamw", 2e-3}, {"muon", 2e-2}, {"lamb", 2e-2}}};
  examples::CheckpointFlags checkpoint;
  std::size_t epochs = 8;
  std::size_t batch_size = 16;
  std::uint64_t seed = 1;
  std::string digits;
  std::string mnist;
  bool synthetic = false;
  std::string json;
  std::string trace;

  void describe(CLI::App& app) {
    backend.describe(app);
    training.describe(app);
    checkpoint.describe(app);
    app.add_flag(
        "--elastic", training.elastic,
        "continue on the remaining ranks if processes that a launcher has started are lost, and, at the next "
        "epoch, with processes that have been started with DISTX_JOIN=1 (not by MPI); with --backend shm, gloo "
        "or mpi");
    app.add_flag("--reproducible", training.reproducible,
                 "the same weights on 1, 2, 4 and 8 ranks: a step has 8 micro-batches of --batch-size digits");
    app.add_option("--epochs", epochs, "passes over the data")->check(CLI::Range(1, 1000000))->capture_default_str();
    app.add_option("--batch-size", batch_size, "digits per batch and rank")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
    app.add_option("--seed", seed, "seed of the initial weights and the order of the digits")
        ->check(examples::whole_number())
        ->capture_default_str();
    app.add_option("--digits", digits, "scikit-learn's digits.csv.gz [default: the one in the build folder's data/]");
    auto* mnist_option =
        app.add_option("--mnist", mnist, "directory of the four IDX files of MNIST, instead of --digits");
    app.add_flag("--synthetic", synthetic, "use generated digits instead of --digits")->excludes(mnist_option);
    app.add_option("--json", json,
                   "output file for losses, accuracy, memory, traffic and the hash of the final weights");
    app.add_option("--trace", trace, "output file for a timeline of all ranks, which ui.perfetto.dev displays");
  }
};

examples::SplitDigits read_digits(const Settings& settings, const char* program) {
  if (!settings.mnist.empty()) return examples::read_mnist(settings.mnist);
  return examples::small_digits(settings.synthetic, settings.digits, program, "--digits, --mnist or --synthetic");
}

/// Records the phases of a step in the timeline, if there is one.
class Phases {
 public:
  explicit Phases(distx::observe::Timeline* timeline) : timeline_(timeline) {}
  [[nodiscard]] auto operator()(const char* name) const {
    using Scope = distx::observe::Timeline::Scope;  // not movable
    return std::unique_ptr<Scope>(timeline_ == nullptr ? nullptr : new Scope(timeline_->scope(name)));
  }

 private:
  distx::observe::Timeline* timeline_;
};

using Metered = distx::Metered<distx::AnyCommunicator<>>;

/// Returns a communicator of the surviving ranks, if some are lost, and else of these and those that join; null if
/// none does.
using Regroup = std::function<std::optional<distx::AnyCommunicator<>>(bool lost)>;

/// Trains and evaluates the model. `counted` is the wrapper inside `comm` that counts the traffic.
void train(distx::AnyCommunicator<> comm, const Metered& counted, const Phases& phase, const Settings& settings,
           const examples::SplitDigits& digits, const Regroup& regroup) {
  const auto& [learnt, held_out] = digits;
  auto flags = settings.training;
  if (flags.reproducible) flags.accumulate = static_cast<std::size_t>(std::max(1, flags.virtual_ranks / comm.size()));
  const auto partition = [&] {
    return distx::DistributedSampler(learnt.size(), comm,
                                     {.batch_size = settings.batch_size * (flags.reproducible ? flags.accumulate : 1),
                                      .seed = settings.seed,
                                      .remainder = distx::Remainder::drop,
                                      .blocks = flags.reproducible});
  };
  distx::DistributedSampler sampler = partition();
  const auto load = [&](std::span<const std::size_t> batch) {
    return examples::micro_batches(batch, flags.accumulate,
                                   [&](auto places) { return examples::select(learnt, places); });
  };

  examples::LeNet model({1, static_cast<Eigen::Index>(learnt.height), static_cast<Eigen::Index>(learnt.width)},
                        settings.seed);
  examples::WeightCounts weights;
  for (const auto& layer : model.layers()) {
    weights.all += static_cast<std::size_t>(layer.weight.size() + layer.bias.size());
    weights.in_matrices += static_cast<std::size_t>(layer.weight.size());
  }
  const auto training = examples::make_layer_training(comm.share(), model.layers(), flags);
  const auto at_start = counted.ledger();
  const auto open = [&](auto& layer) { return training->open(layer); };
  const auto pass = [&](const examples::Digits& part, double share) {
    float loss = 0;
    {
      const auto timed = phase("forward");
      loss = model.forward(part.images, part.labels, open);
    }
    const auto timed = phase("backward");
    const float scale = flags.reproducible ? 1 : static_cast<float>(share);  // averages micro-batches by itself
    model.backward([&](auto& layer) { training->ready(layer, scale); }, open);
    return loss;
  };

  auto at = settings.checkpoint.begin(comm, *training, sampler),
       next = at;                // after the last step, and after the present one
  auto steps_before = at.steps;  // this program
  // Ranks that join, which are the last ones, continue where the others are.
  const auto agree = [&] {
    if (!settings.training.elastic) return;
    std::array<std::uint64_t, 4> numbers{at.steps, at.data.epoch, at.data.taken, steps_before};
    distx::broadcast(comm, numbers, 0);
    at = {numbers[0], {numbers[1], numbers[2], at.data.seed, at.data.samples}};
    steps_before = numbers[3];
  };
  agree();
  bool speaks = false;
  std::size_t ranks = 0, steps = 0;
  std::optional<examples::ProgressBar> progress;
  const auto begin = [&] {
    speaks = comm.rank() == 0;
    ranks = static_cast<std::size_t>(comm.size());
    // On another number of ranks than it began, an epoch has another number of steps.
    steps = at.data.epoch < settings.epochs ? at.steps + sampler.epoch(at.data).size() / sampler.batch_size() +
                                                  (settings.epochs - at.data.epoch - 1) * sampler.batches()
                                            : at.steps;
    const examples::TrainingPlan plan{settings.epochs, sampler.batches(), sampler.batch_size() * ranks};
    if (speaks) progress.emplace(stdout, plan);
  };
  begin();
  std::vector<double> losses;  // of the epochs
  std::vector<double> step_losses;
  bool lost = false;
  while (lost || at.data.epoch < settings.epochs) try {
      if (auto regrouped = regroup(lost)) {
        progress.reset();
        comm = std::move(*regrouped);
        const bool has_stepped = steps_before + training->recover(comm) == next.steps;
        if (has_stepped) at = next;
        agree();
        sampler = partition();
        begin();
        if (speaks)
          fmt::print("{}: {} continue after step {}\n", lost ? "ranks are lost" : "ranks have joined", ranks, at.steps);
        lost = false;
        continue;
      }
      double epoch_loss = 0;
      const distx::DataLoader loader(sampler, load);
      auto epoch = loader.epoch(at.data);
      const auto rate = distx::schedules::cosine(settings.training.rate(), steps);
      while (const auto parts = epoch.next()) {
        next = {at.steps + 1, epoch.position()};
        step_losses.push_back(
            examples::train_step(comm, *training, *parts, rate(at.steps), pass, [&] { return phase("step"); }));
        at = next;
        epoch_loss += step_losses.back() / static_cast<double>(sampler.batches());
        if (progress) progress->step(step_losses.back());
        if (settings.checkpoint.after_step(comm, *training, at.steps, steps, at.data)) {
          progress.reset();
          if (speaks) fmt::print("stopped after step {}: continue with --resume\n", at.steps);
          return;
        }
      }
      losses.push_back(epoch_loss);
    } catch (const distx::Error& error) {
      if (!settings.training.elastic || !distx::is_rank_loss(error)) throw;
      lost = true;
    }
  progress.reset();

  // Each rank evaluates every size()-th held-out digit; all ranks evaluate the same number.
  const auto evaluation = training->evaluate();
  std::vector<std::size_t> mine;
  for (std::size_t i = 0; i < held_out.size(); i += ranks) mine.push_back(i + static_cast<std::size_t>(comm.rank()));
  const bool one_more = mine.back() >= held_out.size();
  if (one_more) mine.back() = 0;
  const auto part = examples::select(held_out, mine);
  const auto predicted = model.predict(part.images, open);
  std::uint64_t correct = 0;
  for (std::size_t i = 0; i + (one_more ? 1 : 0) < mine.size(); ++i) correct += predicted[i] == part.labels[i] ? 1 : 0;
  distx::all_reduce(comm, correct, distx::sum);
  const double accuracy = static_cast<double>(correct) / static_cast<double>(held_out.size());
  const auto traffic = counted.ledger() - at_start;
  examples::WeightsHash hash;
  training->add_to(hash);
  std::uint32_t least = hash.value(), greatest = hash.value();
  distx::all_reduce(comm, least, distx::min);
  distx::all_reduce(comm, greatest, distx::max);
  if (least != greatest) throw std::runtime_error("the ranks have different weights");
  const examples::TrainingCost cost(comm, training->times(), std::max<std::size_t>(1, step_losses.size()),
                                    training->memory(), traffic);
  const auto traffic_at_start = distx::sum_over_ranks(at_start, comm);
  if (!speaks) return;
  fmt::print("{}\n", cost.to_string());
  fmt::print("accuracy on {} held-out digits: {:.4f} (weights {})\n", held_out.size(), accuracy, hash.text());
  auto report = cost.json(settings.training, weights);
  report.update({{"step_losses", step_losses},
                 {"losses", losses},
                 {"accuracy", accuracy},
                 {"weights_hash", hash.text()},
                 {"traffic_at_start", examples::ledger_json(traffic_at_start)}});
  examples::JsonFile(settings.json).write(report);
}

void run(distx::AnyConnector& connector, const char* program, const Settings& settings) {
  examples::SplitDigits digits;
  examples::on_every_rank(connector, [&] {
    settings.training.check("--batch-size", settings.batch_size);
    const auto& backend = settings.backend.name;
    if (settings.training.elastic &&
        (connector.size() == 1 || (backend != "auto" && backend != "shm" && backend != "gloo" && backend != "mpi")))
      throw distx::InvalidArgument(
          "--elastic needs --backend shm, gloo or mpi, and processes that a launcher has started");
    if (settings.checkpoint.resume && examples::has_joined())
      throw distx::InvalidArgument("--resume is for the processes that begin a job: omit it with DISTX_JOIN=1");
    if (connector.rank() == 0) {
      settings.checkpoint.check();
      examples::JsonFile(settings.json).check_writable();
      examples::OutputFile("--trace", settings.trace).check_writable();
    }
    digits = read_digits(settings, program);
  });
  examples::Backend backend = settings.backend;
  if (settings.training.elastic)
    backend.deadline = std::chrono::seconds(30);  // the failure of a rank is detected by then
  backend.run(connector, [&](distx::AnyCommunicator<> comm) {
    Metered counted(std::move(comm));
    const auto regroup = [&](bool lost) -> std::optional<distx::AnyCommunicator<>> {
      if (!settings.training.elastic) return std::nullopt;
      const int before = connector.size();
      connector = lost ? connector.shrink() : connector.grow();
      if (!lost && connector.size() == before) return std::nullopt;
      return backend.of_processes(connector);
    };
    if (settings.trace.empty()) {
      train(distx::AnyCommunicator<>(counted.share()), counted, Phases(nullptr), settings, digits, regroup);
      return;
    }
    distx::Traced traced(counted.share());
    train(distx::AnyCommunicator<>(traced.share()), counted, Phases(&traced.timeline()), settings, digits, regroup);
    distx::observe::write_trace(settings.trace, traced);
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains LeNet-5 on handwritten digits, on one rank or many", "train_lenet");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&](distx::AnyConnector& connector) { run(connector, argv[0], settings); });
}
