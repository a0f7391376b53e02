// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trains LeNet-5 on processes that may fail: the surviving ranks continue, and from the next epoch on also processes
// that have been started with DISTX_JOIN=1 (not by MPI).
//   distx-run --no-kill -n 3 build/examples/train_elastic
//   mpirun --enable-recovery -np 3 build/examples/train_elastic
//   DISTX_FILE=folder DISTX_RANK=0 DISTX_SIZE=2 build/examples/train_elastic    (and with DISTX_RANK=1)
//   DISTX_FILE=folder DISTX_JOIN=1 build/examples/train_elastic                 (joins them)
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <distx/comm.hpp>
#include <distx/optim/schedule.hpp>
#include <distx/training.hpp>

#include "common/accuracy.hpp"
#include "common/backend.hpp"
#include "common/layer_training.hpp"
#include "common/run.hpp"
#include "common/train_step.hpp"
#include "data/small_digits.hpp"
#include "models/lenet.hpp"

namespace {

struct Settings {
  std::string backend = "auto";
  examples::TrainingFlags training{.optimizer = "sgd", .bucket_kib = 64, .elastic = true};  // elastic: Replicate
  std::size_t epochs = 8;
  std::size_t batch_size = 16;
  std::string digits;
  bool synthetic = false;

  void describe(CLI::App& app) {
    app.add_option("--backend", backend, "auto, shm, mpi or gloo; auto is mpi under mpirun, else shm")
        ->check(CLI::IsMember({"auto", "shm", "mpi", "gloo"}))
        ->capture_default_str();
    app.add_option("--zero", training.zero, "ZeRO stage, 0 to 3")
        ->check(CLI::IsMember({0, 1, 2, 3}))
        ->capture_default_str();
    app.add_option("--epochs", epochs, "passes over the data")->check(CLI::Range(1, 1000000))->capture_default_str();
    app.add_option("--batch-size", batch_size, "digits per batch and rank")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
    app.add_option("--digits", digits, "scikit-learn's digits.csv.gz [default: the one in the build folder's data/]");
    app.add_flag("--synthetic", synthetic, "use generated digits instead of --digits");
  }
};

/// How far the training is, the same on every rank.
struct Progress {
  std::uint64_t steps = 0;
  distx::DistributedSampler::Position data;
};

/// Returns rank 0's progress, which ranks that have joined do not know. Collective.
Progress progress_of_all(distx::AnyCommunicator<>& comm, const Progress& mine) {
  std::array<std::uint64_t, 3> numbers{mine.steps, mine.data.epoch, mine.data.taken};
  distx::broadcast(comm, numbers, 0);
  return {numbers[0], {numbers[1], numbers[2], mine.data.seed, mine.data.samples}};
}

void train(distx::AnyConnector& connector, const Settings& settings, const examples::SplitDigits& digits) {
  const auto& [learnt, held_out] = digits;
  const auto communicate = [&] {  // a call over MPI detects the failure of a rank by this deadline
    return examples::communicator_of_processes(connector, settings.backend, std::chrono::seconds(30));
  };
  auto comm = communicate();
  const auto partition = [&] {
    return distx::DistributedSampler(learnt.size(), comm,
                                     {.batch_size = settings.batch_size, .remainder = distx::Remainder::drop});
  };
  auto sampler = partition();
  examples::LeNet model({1, static_cast<Eigen::Index>(learnt.height), static_cast<Eigen::Index>(learnt.width)}, 1);
  const auto training = examples::make_layer_training(comm.share(), model.layers(), settings.training);
  const auto open = [&](auto& layer) { return training->open(layer); };
  const auto pass = [&](const examples::Digits& part, double) {
    const float loss = model.forward(part.images, part.labels, open);
    model.backward([&](auto& layer) { training->ready(layer, 1); }, open);
    return loss;
  };
  const auto rate = distx::schedules::cosine(0.05, settings.epochs);

  Progress at = progress_of_all(comm, {0, sampler.position(0)}), next = at;  // after the last step, and the present one
  bool lost = false;
  while (lost || at.data.epoch < settings.epochs) try {
      const int ranks = connector.size();
      connector = lost ? connector.shrink() : connector.grow();
      if (lost || connector.size() != ranks) {
        comm = communicate();
        if (training->recover(comm) == next.steps) at = next;  // the step that has thrown counts
        at = progress_of_all(comm, at);
        sampler = partition();
        if (comm.rank() == 0)
          fmt::print("{}: {} continue after step {}\n", lost ? "ranks failed" : "ranks have joined", comm.size(),
                     at.steps);
        lost = false;
        continue;  // to `grow`, which ranks that have joined call next
      }
      const distx::DataLoader loader(sampler, [&](auto batch) { return std::vector{examples::select(learnt, batch)}; });
      auto epoch = loader.epoch(at.data);
      while (const auto parts = epoch.next()) {
        next = {at.steps + 1, epoch.position()};
        const double loss = examples::train_step(comm, *training, *parts, rate(at.data.epoch), pass);
        at = next;
        if (comm.rank() == 0 && at.steps % 50 == 0) fmt::print("step {}: loss {:.4f}\n", at.steps, loss);
        std::fflush(stdout);
      }
    } catch (const distx::Error& error) {
      if (!distx::is_rank_loss(error)) throw;
      lost = true;
    }
  const double accuracy = examples::accuracy(comm, model, *training, held_out);
  const auto hash = examples::common_hash(comm, *training);  // all ranks are here until all are done
  if (comm.rank() == 0)
    fmt::print("accuracy on {} held-out digits: {:.4f} (weights {})\n", held_out.size(), accuracy, hash);
}

void run(int argc, char** argv, const Settings& settings) {
  // First, so that a process without data never joins.
  const auto digits = examples::small_digits(settings.synthetic, settings.digits, argv[0], "--digits or --synthetic");
  auto connector = distx::connect(argc, argv);  // with DISTX_JOIN=1, waits for `grow`
  if (connector.size() == 1)
    throw distx::InvalidArgument("train_elastic needs several processes: start it with distx-run --no-kill -n 3");
  train(connector, settings, digits);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains LeNet-5 on processes that may fail, and that others join", "train_elastic");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&] { run(argc, argv, settings); });
}
