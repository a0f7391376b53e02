// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// LeNet-5 learns handwritten digits, data-parallel: every rank has the model and a part of each batch.
//   mpirun -np 2 build/examples/train_lenet --backend mpi
//   build/examples/train_lenet --backend threads --ranks 2
//   build/examples/train_lenet --backend shm --ranks 2 --trace trace.json      (to be opened in ui.perfetto.dev)
#include <filesystem>
#include <optional>

#include <distx/comm/decorators/metered.hpp>
#include <distx/comm/decorators/sum_over_ranks.hpp>
#include <distx/comm/decorators/write_trace.hpp>
#include <distx/distx.hpp>

#include "common/backend.hpp"
#include "common/json_file.hpp"
#include "common/ledger_json.hpp"
#include "common/progress.hpp"
#include "common/run.hpp"
#include "common/weights_hash.hpp"
#include "data/augment.hpp"
#include "data/digits_csv.hpp"
#include "data/mnist.hpp"
#include "data/synthetic_digits.hpp"
#include "models/lenet.hpp"

namespace {

using namespace distx::literals;

struct Settings {
  examples::Backend backend;
  int zero = 0;
  std::size_t epochs = 8;
  std::size_t batch_size = 16;
  std::uint64_t seed = 1;
  double learning_rate = 0.05;
  std::string digits;
  std::string mnist;
  bool synthetic = false;
  std::string json;
  std::string trace;

  void describe(CLI::App& app) {
    backend.describe(app);
    app.add_option("--zero", zero, "stage of ZeRO: 0")->check(CLI::IsMember({0}))->capture_default_str();
    app.add_option("--epochs", epochs, "passes over the data")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
    app.add_option("--batch-size", batch_size, "digits in a batch of one rank")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
    app.add_option("--learning-rate", learning_rate, "of SGD with momentum, falling to zero along a cosine")
        ->capture_default_str();
    app.add_option("--seed", seed, "of the initial weights and the digits' order")->capture_default_str();
    app.add_option("--digits", digits, "scikit-learn's digits.csv.gz [default: the one in the build folder's data/]");
    auto* mnist_option = app.add_option("--mnist", mnist, "instead: the directory of MNIST's four IDX files");
    app.add_flag("--synthetic", synthetic, "instead: digits that are drawn, where no real ones are at hand")
        ->excludes(mnist_option);
    app.add_option("--json", json, "file for losses, accuracy, the hash of the final weights, and the traffic");
    app.add_option("--trace", trace, "file for what every rank did when, which ui.perfetto.dev shows");
  }
};

/// Both decorators that the communicator may have keep its ledger.
template <class C>
distx::Metered<C>& metered(distx::Metered<C>& comm) {
  return comm;
}
template <class C>
C& metered(distx::Traced<C>& comm) {
  return comm.inner();
}

/// Where tools/digits puts the real digits: in the build folder that this program lies in.
std::filesystem::path beside(const char* program) {
  std::error_code without_proc;
  auto path = std::filesystem::read_symlink("/proc/self/exe", without_proc);
  if (without_proc) path = program;
  return (path.parent_path() / "../data/digits.csv.gz").lexically_normal();
}

examples::SplitDigits read_digits(const Settings& settings, const char* program) {
  if (!settings.mnist.empty()) return examples::read_mnist(settings.mnist);
  if (settings.synthetic) {
    auto drawn = examples::split_held_out(examples::synthetic_digits(1797, 1), 0.2, 1);
    return {examples::with_shifted_copies(drawn.training), std::move(drawn.held_out)};
  }
  std::filesystem::path path = settings.digits;
  if (path.empty()) path = beside(program);
  if (settings.digits.empty() && !std::filesystem::exists(path))
    throw distx::DataError(path.string() +
                           " is not there: fetch it with tools/digits, or choose --digits, --mnist or --synthetic");
  // 8 × 8 pixels: enlarged for kernels of 5 × 5, and shifted copies, for there are few.
  auto split = examples::split_held_out(examples::enlarge(examples::read_digits_csv(path), 2), 0.2, 1);
  return {examples::with_shifted_copies(split.training), std::move(split.held_out)};
}

template <distx::Communicator C>
double average_over_ranks(C& comm, double value) {
  distx::all_reduce(comm, value, distx::average);
  return value;
}

/// Where the communicator is traced, so is what the program does between its calls.
template <class C>
auto phase([[maybe_unused]] C& comm, [[maybe_unused]] const char* name) {
  if constexpr (requires { comm.timeline(); }) return comm.timeline().scope(name);
  else return 0;
}

/// The training itself: what a program for one process would have, and the lines that speak of `distx`.
template <distx::Communicator C>
void train(C& comm, const Settings& settings, const examples::SplitDigits& digits) {
  const auto& [learnt, held_out] = digits;
  const distx::DistributedSampler sampler(
      learnt.size(), comm,
      {.batch_size = settings.batch_size, .seed = settings.seed, .remainder = distx::Remainder::drop});
  const distx::DataLoader loader(
      sampler, [&learnt](std::span<const std::size_t> places) { return examples::select(learnt, places); });

  examples::LeNet model({1, static_cast<Eigen::Index>(learnt.height), static_cast<Eigen::Index>(learnt.width)},
                        settings.seed);
  std::vector<distx::ParameterRef<float>> parameters;
  for (auto& layer : model.layers()) {
    parameters.push_back(distx::ref(layer.name + ".weight", layer.weight, layer.weight_gradient));
    parameters.push_back(distx::ref(layer.name + ".bias", layer.bias, layer.bias_gradient));
  }
  distx::DataParallel<distx::ZeRO<0>> training(comm, parameters, distx::SGD{.momentum = 0.9f, .weight_decay = 1e-4f},
                                               {.bucket_bytes = 64_KiB});  // the model has 241 KiB

  const bool speaks = comm.rank() == 0;
  const auto ranks = static_cast<std::size_t>(comm.size());
  const examples::TrainingPlan plan{settings.epochs, sampler.batches(), settings.batch_size * ranks};
  std::optional<examples::ProgressBar> progress;
  if (speaks) progress.emplace(stdout, plan);
  std::vector<double> losses;  // of the epochs
  std::vector<double> step_losses;
  for (std::size_t epoch = 0; epoch < settings.epochs; ++epoch) {
    double epoch_loss = 0;
    for (const auto& batch : loader.epoch(epoch)) {
      double here = 0;
      {
        [[maybe_unused]] const auto timed = phase(comm, "forward");
        here = model.forward(batch.images, batch.labels);
      }
      {
        [[maybe_unused]] const auto timed = phase(comm, "backward");
        model.backward([&](auto& layer) { training.ready(layer.weight, layer.bias); });
      }
      {
        [[maybe_unused]] const auto timed = phase(comm, "step");
        const double done = static_cast<double>(step_losses.size()) / static_cast<double>(plan.steps());
        training.step({.learning_rate = settings.learning_rate * 0.5 * (1 + std::cos(done * 3.14159265358979))});
      }
      const double loss = average_over_ranks(comm, here);
      step_losses.push_back(loss);
      epoch_loss += loss / static_cast<double>(sampler.batches());
      if (progress) progress->step(loss);
    }
    losses.push_back(epoch_loss);
  }
  progress.reset();

  // Each rank examines every size()-th of the digits that were held out.
  std::vector<std::size_t> mine;
  for (auto i = static_cast<std::size_t>(comm.rank()); i < held_out.size(); i += ranks) mine.push_back(i);
  const auto part = examples::select(held_out, mine);
  std::uint64_t correct = mine.empty() ? 0 : model.count_correct(part.images, part.labels);
  distx::all_reduce(comm, correct, distx::sum);
  const double accuracy = static_cast<double>(correct) / static_cast<double>(held_out.size());
  examples::WeightsHash hash;
  std::size_t weights = 0;
  for (const auto& parameter : parameters) {
    hash.add(std::span(parameter.weight.data(), parameter.weight.size()));
    weights += parameter.weight.size();
  }
  const auto traffic = distx::sum_over_ranks(metered(comm).ledger(), comm);
  if (!speaks) return;
  fmt::print("accuracy on {} digits that were held out: {:.4f} (weights {})\n", held_out.size(), accuracy, hash.text());
  examples::JsonFile(settings.json)
      .write({{"ranks", comm.size()},
              {"parameters", weights},
              {"step_losses", step_losses},
              {"losses", losses},
              {"accuracy", accuracy},
              {"weights_hash", hash.text()},
              {"traffic", examples::ledger_json(traffic)}});
}

void run(int argc, char** argv, const Settings& settings) {
  auto connector = distx::connect(argc, argv);
  const auto digits = read_digits(settings, argv[0]);
  examples::JsonFile(settings.json).demand_writable(connector);
  settings.backend.run(connector, [&](auto comm) {
    distx::Metered counted(std::move(comm));
    if (settings.trace.empty()) return train(counted, settings, digits);
    distx::Traced traced(std::move(counted));
    train(traced, settings, digits);
    distx::write_trace(settings.trace, traced);
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains LeNet-5 on handwritten digits, on one rank or many", "train_lenet");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&] { run(argc, argv, settings); });
}
