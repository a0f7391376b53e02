// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A perceptron learns handwritten digits on GPUs, data-parallel: every rank has the model and a part of each batch.
//   build/examples/train_mlp_cuda --zero 2                          (one rank for each GPU of this machine, as threads)
//   tools/ranks 2 build/examples/train_mlp_cuda --share-gpu         (processes; to try out, two ranks on one GPU)
//   build/examples/train_mlp_cuda --device cpu --ranks 2            (the same program without a GPU, to compare with)
#include <optional>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <distx/cuda.hpp>
#include <distx/cuda/blas.hpp>
#include <distx/file.hpp>
#include <distx/nccl.hpp>
#include <distx/optim/adamw.hpp>
#include <distx/optim/schedule.hpp>
#include <distx/optim/sgd.hpp>
#include <distx/shm.hpp>
#include <distx/threads.hpp>
#include <distx/training.hpp>

#include "common/json_file.hpp"
#include "common/progress.hpp"
#include "common/run.hpp"
#include "common/weights_hash.hpp"
#include "data/small_digits.hpp"
#include "models/mlp_kernels.hpp"
// After the kernels' declarations, which it calls.
#include "models/mlp.hpp"

namespace {

struct Settings {
  std::string device = "cuda";
  bool share_gpu = false;
  int ranks = 0;
  int zero = 0;
  std::string optimizer = "adamw";
  double learning_rate = 2e-3;
  double clip = std::numeric_limits<double>::infinity();
  std::size_t bucket_kib = 64;
  std::size_t epochs = 4;
  std::size_t batch_size = 32;
  std::size_t hidden = 128;
  std::uint64_t seed = 1;
  std::string digits;
  bool synthetic = false;
  std::string json;

  void describe(CLI::App& app) {
    const CLI::Range count(std::size_t{1}, std::size_t{1000000});
    app.add_option("--device", device, "cuda, or cpu to compare with")
        ->check(CLI::IsMember({"cuda", "cpu"}))
        ->capture_default_str();
    app.add_flag("--share-gpu", share_gpu, "ranks that are processes may use one GPU together");
    app.add_option("--ranks", ranks, "how many ranks, where no launcher starts them [default: one for each GPU]")
        ->check(CLI::Range(1, 1000));
    app.add_option("--zero", zero, "stage of ZeRO: 0 to 3")->check(CLI::IsMember({0, 1, 2, 3}))->capture_default_str();
    app.add_option("--optimizer", optimizer, "adamw or sgd")
        ->check(CLI::IsMember({"adamw", "sgd"}))
        ->capture_default_str();
    app.add_option("--learning-rate", learning_rate, "the highest; falls to zero along a cosine")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    app.add_option("--clip", clip, "the norm of all gradients together is at most this [default: as it is]");
    app.add_option("--bucket-kib", bucket_kib, "gradients that are reduced together; 0: each parameter's alone")
        ->check(CLI::Range(std::size_t{0}, std::size_t{1} << 30))
        ->capture_default_str();
    app.add_option("--epochs", epochs, "passes over the data")->check(count)->capture_default_str();
    app.add_option("--batch-size", batch_size, "digits in a batch of one rank")->check(count)->capture_default_str();
    app.add_option("--hidden", hidden, "outputs of each of the two hidden layers")->check(count)->capture_default_str();
    app.add_option("--seed", seed, "of the initial weights and the digits' order")
        ->check(examples::whole_number())
        ->capture_default_str();
    auto* file = app.add_option("--digits", digits, "scikit-learn's digits.csv.gz [default: the build folder's]");
    app.add_flag("--synthetic", synthetic, "instead: digits that are drawn")->excludes(file);
    app.add_option("--json", json, "file for losses, accuracy and the hash of the final weights");
  }
};

/// Some digits in the memory of one space; their source must not change until the stream has copied it.
template <class Space>
struct DigitsIn {
  distx::Buffer<float, Space> images;
  distx::Buffer<std::uint8_t, Space> labels;

  DigitsIn(const examples::Digits& digits, typename Space::stream on)
      : images(digits.images.size(), distx::uninitialized), labels(digits.labels.size(), distx::uninitialized) {
    copy(on, images.span(), distx::Span<const float>(digits.images));
    copy(on, labels.span(), distx::Span<const std::uint8_t>(digits.labels));
  }
};

/// Returns the mean over the ranks of values of equal number. Collective.
std::vector<double> average(distx::AnyConnector& connector, const std::vector<double>& mine) {
  std::vector<double> all(mine.size() * static_cast<std::size_t>(connector.size()));
  connector.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::vector<double> means(mine.size());
  for (std::size_t i = 0; i < all.size(); ++i) means[i % mine.size()] += all[i] / connector.size();
  return means;
}

/// The training itself, in the memory that the communicator moves. All work is on one stream; the host looks at it once
/// an epoch.
template <class Space>
void train(distx::AnyCommunicator<Space> comm, distx::AnyConnector& connector, typename Space::stream on,
           const Settings& settings, const examples::SplitDigits& digits) {
  using distx::Span;
  const auto& [learnt, held_out] = digits;
  const std::size_t batch = settings.batch_size, classes = 10;
  const distx::DistributedSampler sampler(
      learnt.size(), comm, {.batch_size = batch, .seed = settings.seed, .remainder = distx::Remainder::drop});
  examples::Mlp<Space> model({learnt.pixels(), settings.hidden, settings.hidden, classes},
                             std::max(batch, held_out.size()), settings.seed);
  using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::On<Space>>;
  const distx::DataParallelOptions options{
      .bucket_bytes = settings.bucket_kib << 10, .stage = settings.zero, .clip_norm = settings.clip};
  Training training = settings.optimizer == "sgd"
                          ? Training(comm, model.parameters(), distx::SGD{.momentum = 0.9}, options)
                          : Training(comm, model.parameters(), distx::AdamW{.weight_decay = 0.01}, options);

  const bool speaks = comm.rank() == 0;
  const examples::TrainingPlan plan{settings.epochs, sampler.batches(), batch * static_cast<std::size_t>(comm.size())};
  const auto rate = distx::schedules::cosine(settings.learning_rate, plan.steps());
  std::vector<double> losses, step_losses;  // of the epochs and of the steps
  const distx::Buffer<float, Space> of_epoch(sampler.size());
  for (std::size_t epoch = 0; epoch < settings.epochs; ++epoch) {
    const auto mine = examples::select(learnt, sampler.epoch(epoch));
    const DigitsIn<Space> here(mine, on);
    for (std::size_t b = 0; b < sampler.batches(); ++b) {
      const std::size_t size = batch * mine.pixels();
      model.pass(training, Span<const float, Space>(here.images).subspan(b * size, size),
                 Span<const std::uint8_t, Space>(here.labels).subspan(b * batch, batch),
                 of_epoch.span().subspan(b * batch, batch), on);
      training.step({.learning_rate = rate(epoch * sampler.batches() + b)}, on);
    }
    std::vector<float> of_samples(of_epoch.size());
    copy(on, Span<float>(of_samples), Span<const float, Space>(of_epoch));
    on.synchronize();
    std::vector<double> of_steps(sampler.batches());
    for (std::size_t i = 0; i < of_samples.size(); ++i)
      of_steps[i / batch] += of_samples[i] / static_cast<double>(batch);
    of_steps = average(connector, of_steps);
    double loss = 0;
    for (const double each : of_steps) loss += each / static_cast<double>(of_steps.size());
    if (!std::isfinite(loss))
      throw distx::Error("the loss is not finite any more: choose a lower --learning-rate, or --clip");
    step_losses.insert(step_losses.end(), of_steps.begin(), of_steps.end());
    losses.push_back(loss);
    if (speaks) fmt::print("epoch {}/{}: loss {:.4f}\n", epoch + 1, settings.epochs, loss);
  }

  // Each rank examines all of them: they are few.
  const auto evaluation = training.evaluate();
  const DigitsIn<Space> there(held_out, on);
  std::vector<float> scores(held_out.size() * classes);
  copy(on, Span<float>(scores),
       Span<const float, Space>(model.forward(training, Span<const float, Space>(there.images), held_out.size(), on)));
  on.synchronize();
  std::size_t correct = 0;
  for (std::size_t s = 0; s < held_out.size(); ++s) {
    const auto row = std::span(scores).subspan(s * classes, classes);
    correct += std::ranges::max_element(row) - row.begin() == held_out.labels[s] ? 1 : 0;
  }
  const double accuracy = static_cast<double>(correct) / static_cast<double>(held_out.size());
  examples::WeightsHash hash;
  training.for_each_full_weight(
      [&](const std::string&, Span<const distx::AnyElement, Space> values) {
        std::vector<float> weights(values.size());
        copy(on, Span<float>(weights),
             Span<const float, Space>(static_cast<const float*>(values.data()), values.size()));
        on.synchronize();
        hash.add(std::span(weights));
      },
      on);
  if (!speaks) return;
  fmt::print("accuracy on {} digits that were held out: {:.4f} (weights {})\n", held_out.size(), accuracy, hash.text());
  examples::JsonFile(settings.json)
      .write({{"step_losses", step_losses},
              {"losses", losses},
              {"accuracy", accuracy},
              {"weights_hash", hash.text()},
              {"ranks", comm.size()}});
}

/// One rank's part.
void run_rank(distx::AnyConnector connector, const Settings& settings, const examples::SplitDigits& digits) {
  if (settings.device == "cuda") {
    distx::cuda::pick_device(connector, {.share = settings.share_gpu});
    const distx::CudaStream stream;
    train<distx::Cuda>(distx::AnyCommunicator<distx::Cuda>(distx::NcclCommunicator(connector)), connector, stream,
                       settings, digits);
  } else {
    train<distx::Host>(distx::AnyCommunicator<>(distx::ShmCommunicator(connector)), connector, {}, settings, digits);
  }
}

void run(int argc, char** argv, const Settings& settings) {
  if (settings.device == "cuda")
    if (const auto reason = distx::cuda::why_no_gpu(); !reason.empty())
      throw distx::Error(reason + "; --device cpu trains without one");
  auto connector = distx::connect(argc, argv);
  if (!(settings.clip > 0)) throw distx::Error("--clip must be above 0");
  const auto digits = examples::small_digits(settings.synthetic, settings.digits, argv[0], "--digits or --synthetic");
  examples::JsonFile(settings.json).demand_writable(connector);
  if (connector.size() > 1) return run_rank(std::move(connector), settings, digits);
  const int ranks = settings.ranks > 0 ? settings.ranks : settings.device == "cuda" ? distx::cuda::device_count() : 1;
  distx::spawn(ranks, [&](distx::ThreadConnector& self) { run_rank(std::move(self), settings, digits); });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a perceptron on handwritten digits, on GPUs", "train_mlp_cuda");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&] { run(argc, argv, settings); });
}
