// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trains LeNet-5 on handwritten digits, data-parallel: every rank has the model and a part of each batch.
//   mpirun -np 2 build/examples/train_lenet --backend mpi
//   tools/ranks 2 build/examples/train_lenet
//   build/examples/train_lenet --backend threads --ranks 2
//   build/examples/train_lenet --ranks 2 --checkpoint run --every 100 --resume  (again after it was stopped)
//   build/examples/train_lenet --backend shm --ranks 2 --trace trace.json      (open the trace in ui.perfetto.dev)
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <distx/comm.hpp>
#include <distx/comm/decorators/metered.hpp>
#include <distx/comm/decorators/sum_over_ranks.hpp>
#include <distx/comm/decorators/write_trace.hpp>
#include <distx/optim/schedule.hpp>
#include <distx/training.hpp>

#include "common/accuracy.hpp"
#include "common/backend.hpp"
#include "common/checkpoint_flags.hpp"
#include "common/json_file.hpp"
#include "common/layer_training.hpp"
#include "common/ledger_json.hpp"
#include "common/progress.hpp"
#include "common/run.hpp"
#include "common/train_step.hpp"
#include "common/training_report.hpp"
#include "data/mnist.hpp"
#include "data/small_digits.hpp"
#include "models/lenet.hpp"

namespace {

using examples::Digits;
using Metered = distx::Metered<distx::AnyCommunicator<>>;
using Timeline = distx::observe::Timeline;

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

/// One rank's model, which all ranks train together.
class Trainer {
 public:
  /// @param timeline  records the phases of steps, unless it is null
  Trainer(distx::AnyCommunicator<>& comm, const Digits& digits, const Settings& settings, Timeline* timeline)
      : model({1, static_cast<Eigen::Index>(digits.height), static_cast<Eigen::Index>(digits.width)}, settings.seed),
        weights(examples::count_weights(model.layers())),
        training(examples::make_layer_training(comm.share(), model.layers(), settings.training)),
        averages_(settings.training.reproducible),
        timeline_(timeline) {}

  /// Makes a step from micro-batches, and returns this rank's mean loss. Collective.
  double step(const std::vector<Digits>& parts, double rate) {
    const double share = 1.0 / static_cast<double>(parts.size());
    double loss = 0;
    training->begin_step();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto micro_batch = training->micro_batch({.index = i, .count = parts.size()});
      loss += share * static_cast<double>(forward(parts[i]));
      backward(averages_ ? 1 : static_cast<float>(share));
    }
    const auto timed = phase("step");
    training->step({.learning_rate = rate});
    return loss;
  }

  examples::LeNet model;
  examples::WeightCounts weights;
  std::unique_ptr<examples::LayerTraining> training;

 private:
  float forward(const Digits& part) {
    const auto timed = phase("forward");
    return model.forward(part.images, part.labels, [&](auto& layer) { return training->open(layer); });
  }
  /// Computes the gradients of `share` times the loss. Each layer's are reduced while those before it are computed.
  void backward(float share) {
    const auto timed = phase("backward");
    model.backward([&](auto& layer) { training->ready(layer, share); },
                   [&](auto& layer) { return training->open(layer); });
  }
  [[nodiscard]] std::unique_ptr<Timeline::Scope> phase(const char* name) const {
    return std::unique_ptr<Timeline::Scope>(timeline_ == nullptr ? nullptr
                                                                 : new Timeline::Scope(timeline_->scope(name)));
  }

  bool averages_;  // the training averages micro-batches itself
  Timeline* timeline_;
};

/// Returns the number of steps of the whole training, of which some were made before. An epoch that was begun on
/// another number of ranks has another number of steps.
std::size_t all_steps(const examples::CheckpointFlags::Start& at, const distx::DistributedSampler& sampler,
                      std::size_t epochs) {
  if (at.data.epoch >= epochs) return at.steps;
  return at.steps + sampler.epoch(at.data).size() / sampler.batch_size() +
         (epochs - at.data.epoch - 1) * sampler.batches();
}

/// The losses and the traffic of a training.
struct Outcome {
  std::vector<double> losses, step_losses;  ///< of epochs and of steps
  distx::observe::Ledger at_start;          ///< this rank's traffic before the first step
  distx::observe::Ledger traffic;           ///< and in the steps
};

/// Evaluates the model, and prints and writes what the training has cost. Collective.
void report(distx::AnyCommunicator<>& comm, const Settings& settings, const Digits& held_out, Trainer& trainer,
            const Outcome& outcome) {
  auto& training = *trainer.training;
  const double accuracy = examples::accuracy(comm, trainer.model, training, held_out);
  const auto hash = examples::common_hash(comm, training);
  const examples::TrainingCost cost(comm, training.times(), std::max<std::size_t>(1, outcome.step_losses.size()),
                                    training.memory(), outcome.traffic);
  const auto at_start = distx::sum_over_ranks(outcome.at_start, comm);
  if (comm.rank() != 0) return;
  fmt::print("{}\n", cost.to_string());
  fmt::print("accuracy on {} held-out digits: {:.4f} (weights {})\n", held_out.size(), accuracy, hash);
  auto content = cost.json(settings.training, trainer.weights);
  content.update({{"step_losses", outcome.step_losses},
                  {"losses", outcome.losses},
                  {"accuracy", accuracy},
                  {"weights_hash", hash},
                  {"traffic_at_start", examples::ledger_json(at_start)}});
  examples::JsonFile(settings.json).write(content);
}

/// Trains and evaluates the model.
/// @param counted  the wrapper inside `comm` that counts the traffic
void train(distx::AnyCommunicator<> comm, const Metered& counted, Timeline* timeline, Settings settings,
           const examples::SplitDigits& digits) {
  settings.training.split_step(comm.size(), settings.batch_size);
  const distx::DistributedSampler sampler(digits.training.size(), comm,
                                          {.batch_size = settings.batch_size,
                                           .seed = settings.seed,
                                           .remainder = distx::Remainder::drop,
                                           .blocks = settings.training.reproducible});
  const distx::DataLoader loader(sampler, [&](std::span<const std::size_t> batch) {
    return examples::micro_batches(batch, settings.training.accumulate,
                                   [&](auto places) { return examples::select(digits.training, places); });
  });
  Trainer trainer(comm, digits.training, settings, timeline);
  auto at = settings.checkpoint.begin(comm, *trainer.training, sampler);
  const std::size_t steps = all_steps(at, sampler, settings.epochs);
  const auto rate = distx::schedules::cosine(settings.training.rate(), steps);

  std::optional<examples::ProgressBar> progress;
  if (comm.rank() == 0)
    progress.emplace(stdout, examples::TrainingPlan{settings.epochs, sampler.batches(),
                                                    sampler.batch_size() * static_cast<std::size_t>(comm.size())});
  Outcome outcome;
  outcome.at_start = counted.ledger();
  while (at.data.epoch < settings.epochs) {
    double& epoch_loss = outcome.losses.emplace_back(0);
    auto epoch = loader.epoch(at.data);
    while (const auto parts = epoch.next()) {
      const double loss = examples::finite_loss(comm, trainer.step(*parts, rate(at.steps)));
      at = {at.steps + 1, epoch.position()};
      outcome.step_losses.push_back(loss);
      epoch_loss += loss / static_cast<double>(sampler.batches());
      if (progress) progress->step(loss);
      if (settings.checkpoint.after_step(comm, *trainer.training, at.steps, steps, at.data)) {
        progress.reset();
        if (comm.rank() == 0) fmt::print("stopped after step {}: continue with --resume\n", at.steps);
        return;
      }
    }
  }
  progress.reset();
  outcome.traffic = counted.ledger() - outcome.at_start;
  report(comm, settings, digits.held_out, trainer, outcome);
}

/// Checks the flags and reads the digits, then trains on every rank.
void run(distx::AnyConnector& connector, const char* program, const Settings& settings) {
  examples::SplitDigits digits;
  examples::on_every_rank(connector, [&] {
    settings.training.check("--batch-size", settings.batch_size);
    if (connector.rank() == 0) {
      settings.checkpoint.check();
      examples::JsonFile(settings.json).check_writable();
      examples::OutputFile("--trace", settings.trace).check_writable();
    }
    digits = read_digits(settings, program);
  });
  settings.backend.run(connector, [&](distx::AnyCommunicator<> comm) {
    Metered counted(std::move(comm));
    if (settings.trace.empty())
      return train(distx::AnyCommunicator<>(counted.share()), counted, nullptr, settings, digits);
    distx::Traced traced(counted.share());
    train(distx::AnyCommunicator<>(traced.share()), counted, &traced.timeline(), settings, digits);
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
