// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trains a GPT on the characters of text files; data-parallel, or tensor-parallel as well.
//   mpirun -np 2 build/examples/train_gpt --zero 3
//   build/examples/train_gpt --backend threads --ranks 2 --precision bf16 --optimizer muon --text book.txt
//   mpirun -np 4 build/examples/train_gpt --mesh data=2,model=2 --zero 1
#include <algorithm>
#include <filesystem>
#include <optional>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <distx/comm/decorators/metered.hpp>
#include <distx/connect/connect.hpp>
#include <distx/data/data_loader.hpp>
#include <distx/data/distributed_sampler.hpp>
#include <distx/optim/schedule.hpp>
#include <distx/tensor/distribute.hpp>

#include "common/backend.hpp"
#include "common/checkpoint_flags.hpp"
#include "common/json_file.hpp"
#include "common/make_training.hpp"
#include "common/mesh_flag.hpp"
#include "common/progress.hpp"
#include "common/run.hpp"
#include "common/train_step.hpp"
#include "common/training_report.hpp"
#include "common/weights_hash.hpp"
#include "data/text.hpp"
#include "models/gpt.hpp"
#include "models/gpt_sample.hpp"
#include "models/mesh_gpt.hpp"

namespace {

struct Settings {
  examples::Backend backend;
  examples::TrainingFlags training{.usual_rates = {{"adamw", 5e-3}, {"muon", 2e-2}, {"lamb", 2e-2}, {"sgd", 0.1}}};
  examples::MeshFlag mesh;
  examples::CheckpointFlags checkpoint;
  std::size_t layers = 3;
  std::size_t width = 64;
  std::size_t heads = 4;
  std::size_t context = 64;
  std::size_t batch = 8;
  std::size_t steps = 2000;
  std::uint64_t seed = 1;
  std::vector<std::string> text;
  std::size_t sample = 400;
  double temperature = 0.8;
  std::string json;

  [[nodiscard]] examples::GptShape shape(const examples::Text& read) const {
    return {read.vocabulary.size(), context, width, layers, heads};
  }
  void describe(CLI::App& app) {
    const CLI::Range count(std::size_t{1}, std::size_t{1000000});
    backend.describe(app);
    training.describe(app);
    mesh.describe(app);
    checkpoint.describe(app);
    app.add_option("--layers", layers, "transformer blocks")->check(count)->capture_default_str();
    app.add_option("--width", width, "length of the vector that represents a character")
        ->check(count)
        ->capture_default_str();
    app.add_option("--heads", heads, "attention heads of each block; must divide the width")
        ->check(count)
        ->capture_default_str();
    app.add_option("--context", context, "characters that attention covers")->check(count)->capture_default_str();
    app.add_option("--batch", batch, "sequences per batch and rank")->check(count)->capture_default_str();
    app.add_option("--steps", steps, "training steps")->check(count)->capture_default_str();
    app.add_option("--seed", seed, "seed of the initial weights, the order of the sequences, and the sample")
        ->check(examples::whole_number())
        ->capture_default_str();
    app.add_option("--text", text, "files to train on [default: the headers and pages of this project]");
    app.add_option("--sample", sample, "characters to generate at the end")
        ->check(CLI::Range(0, 1000000))
        ->capture_default_str();
    app.add_option("--temperature", temperature, "of the sample; lower values are less random")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--json", json, "output file for losses, times, memory, traffic and the hash of the final weights");
  }
};

examples::Text read(const Settings& settings) {
  std::vector<std::filesystem::path> files(settings.text.begin(), settings.text.end());
  if (files.empty()) files = examples::headers_and_pages(SOURCE_ROOT);
  if (files.empty())
    throw distx::DataError("the headers and pages of this project are not in " SOURCE_ROOT
                           ": choose files with --text");
  auto text = examples::read_text(files);
  if (text.held_out().size() <= settings.context)
    throw distx::DataError("the text has " + std::to_string(text.tokens.size()) +
                           " characters, and the held-out tenth must be longer than a context of " +
                           std::to_string(settings.context) + ": give a longer --text or a shorter --context");
  return text;
}

/// Returns the loss on held-out text, of which each rank evaluates its part; every rank runs the model the same number
/// of times. Collective.
template <class Model, class Training>
double held_out_loss(distx::AnyCommunicator<>& comm, Model& model, Training& training,
                     std::span<const std::uint8_t> text) {
  constexpr std::size_t at_once = 16;
  const auto scope = training.evaluate();
  const std::size_t length = model.shape().context;
  const std::size_t count = (text.size() - 1) / length;
  const auto ranks = static_cast<std::size_t>(comm.size());
  double sum = 0;
  for (std::size_t begin = 0, end = 0; begin < count; begin = end) {
    end = begin + ranks * std::clamp((count - begin) / ranks, std::size_t{1}, at_once);
    std::vector<std::size_t> places;
    for (std::size_t i = begin + static_cast<std::size_t>(comm.rank()); i < std::min(count, end); i += ranks)
      places.push_back(i * length);
    const auto counted = static_cast<double>(places.size());
    if (places.empty()) places.push_back(0);
    const auto batch = examples::sequences(text, places, length);
    sum += counted * static_cast<double>(model.forward(batch.tokens, batch.targets, length, training));
  }
  distx::all_reduce(comm, sum, distx::sum);
  return sum / static_cast<double>(count);
}

template <class Weight, class Training>
std::string weights_hash(const examples::BasicGpt<Weight>& model, Training& training) {
  const auto scope = training.evaluate();
  examples::WeightsHash hash;
  for (const auto* parameter : model.parameters()) {
    const auto weights = training.unshard(*parameter);
    hash.add(std::span(parameter->value().data(), parameter->size()));
  }
  return hash.text();
}

/// At rank 0.
template <class Split, class Training>
std::string weights_hash(const examples::MeshGpt<Split>& model, Training& training) {
  const auto scope = training.evaluate();
  examples::WeightsHash hash;
  model.for_each_parameter([&](const auto& parameter) {
    const auto weights = training.unshard(parameter);
    const auto whole = distx::gather(parameter, 0);
    hash.add(std::span(whole.values().data(), whole.values().size()));
  });
  return hash.text();
}

template <class Model, class Training>
std::string write_sample(Model& model, Training& training, const std::string& vocabulary, const Settings& settings) {
  const auto scope = training.evaluate();
  examples::Generator generator(settings.seed);
  const auto line_end = vocabulary.find('\n');
  const auto first = static_cast<std::uint8_t>(line_end == std::string::npos ? 0 : line_end);
  std::string text;
  for (const auto token :
       examples::sample(model, training, {first}, settings.sample, settings.temperature, generator)) {
    text.push_back(vocabulary[token]);
  }
  return text;
}

/// @param data the ranks that batches are split over; a part of the ranks of `comm`
template <class Model, class Training>
void train(distx::AnyCommunicator<>& comm, distx::AnyCommunicator<>& data, const Settings& settings,
           const examples::Text& text, Model& model, Training& training, const examples::WeightCounts& weights,
           const distx::Metered<distx::AnyCommunicator<>>& metered) {
  const auto ranks = static_cast<std::size_t>(data.size());
  const distx::DistributedSampler sampler(
      text.training().size() - settings.context, data,
      {.batch_size = settings.batch, .seed = settings.seed, .remainder = distx::Remainder::drop});
  const distx::DataLoader loader(sampler,
                                 [&](std::span<const std::size_t> batch) {
                                   return examples::micro_batches(
                                       batch, settings.training.accumulate, [&](auto places) {
                                         return examples::sequences(text.training(), places, settings.context);
                                       });
                                 },
                                 {.workers = 0});
  const auto sent_at_first = metered.ledger();

  const bool speaks = comm.rank() == 0;
  if (speaks)
    fmt::print("training {} weights on {} characters, {} distinct ones\n", weights.all, text.training().size(),
               text.vocabulary.size());
  std::optional<examples::ProgressBar> progress;
  if (speaks)
    progress.emplace(stdout, examples::TrainingPlan{settings.steps, 1, settings.batch * ranks * settings.context,
                                                    "step", "characters"});
  const std::size_t warm_up = settings.steps / 20;
  const auto rate =
      distx::schedules::warm_up(warm_up, distx::schedules::cosine(settings.training.rate(), settings.steps - warm_up));
  const auto pass = [&](const examples::TextBatch& part, double share) {
    const auto loss = model.forward(part.tokens, part.targets, part.length, training);
    model.backward(training, static_cast<typename Model::Scalar>(share));
    return loss;
  };
  std::vector<double> losses;
  std::size_t first = 0;  // step of this run
  if constexpr (requires { training.load({}); }) first = settings.checkpoint.begin(training);
  std::size_t step = first / sampler.batches() * sampler.batches();
  for (std::size_t epoch = first / sampler.batches(); step < settings.steps; ++epoch) {
    for (const auto& parts : loader.epoch(epoch)) {
      if (step == settings.steps) break;
      if (step++ < first) continue;
      losses.push_back(examples::train_step(data, training, parts, rate(step - 1), pass));
      if (progress) progress->step(losses.back());
      if constexpr (requires { training.load({}); })
        if (settings.checkpoint.after_step(comm, training, step, settings.steps)) {
          progress.reset();
          if (speaks) fmt::print("stopped after step {}: go on with --resume\n", step);
          return;
        }
    }
  }
  progress.reset();

  const examples::TrainingCost cost(comm, training.times(), std::max<std::size_t>(1, losses.size()), training.memory(),
                                    metered.ledger() - sent_at_first);
  const double held_out = held_out_loss(data, model, training, text.held_out());
  const auto hash = weights_hash(model, training);
  const auto sample = write_sample(model, training, text.vocabulary, settings);
  if (!speaks) return;
  fmt::print("{}\n", cost.to_string());
  fmt::print("loss on {} held-out characters: {:.4f} nats each (weights {})\n", text.held_out().size(), held_out, hash);
  if (!sample.empty()) fmt::print("---- a sample ----\n{}\n", sample);
  auto report = cost.json(settings.training, weights);
  if (settings.mesh.given()) {
    report["mesh"] = settings.mesh.text;
    report.erase("plan");  // it describes a model that every rank has whole
  }
  report.update({{"vocabulary", text.vocabulary.size()},
                 {"step_losses", losses},
                 {"held_out_loss", held_out},
                 {"weights_hash", hash},
                 {"sample", sample}});
  examples::JsonFile(settings.json).write(report);
}

template <class Weight>
void train_alike(distx::AnyCommunicator<>& comm, const Settings& settings, const examples::Text& text) {
  examples::BasicGpt<Weight> model(settings.shape(text), settings.seed);
  const distx::Metered<distx::AnyCommunicator<>> metered(comm.share());
  auto training =
      examples::make_training(distx::AnyCommunicator<>(metered.share()), model.parameters(), settings.training);
  examples::WeightCounts weights;
  for (const auto* parameter : model.parameters()) {
    weights.all += parameter->size();
    if (parameter->options().rows > 0) weights.in_matrices += parameter->size();
  }
  train(comm, comm, settings, text, model, training, weights, metered);
}

void train_on_mesh(distx::AnyCommunicator<>& comm, const Settings& settings, const examples::Text& text) {
  using Grid = examples::Grid;
  distx::Metered<distx::AnyCommunicator<>> metered(comm.share());
  const Grid mesh(metered, settings.mesh.sizes(settings.training));
  examples::MeshGpt<distx::layers::TensorParallel<Grid, examples::Data, examples::Model>> model(
      mesh, settings.shape(text), settings.seed);
  distx::TensorParameterList<> parameters;
  examples::WeightCounts weights;
  model.for_each_parameter([&](const auto& parameter) {
    parameters.add(parameter);
    weights.all += distx::volume(parameter.extents());
  });
  auto training = examples::make_training(mesh, parameters, settings.training);
  train(comm, mesh.along<examples::Data>(), settings, text, model, training, weights, metered);
}

void run(distx::AnyConnector& connector, const Settings& settings) {
  examples::Text text;
  examples::on_every_rank(connector, [&] {
    settings.training.check("--batch", settings.batch);
    if (settings.mesh.given()) (void)settings.mesh.sizes(settings.training);
    if (settings.mesh.given() && !settings.checkpoint.directory.empty())
      throw distx::InvalidArgument("--checkpoint cannot save a model that is split by --mesh: leave one of them out");
    if (connector.rank() == 0) {
      settings.checkpoint.check();
      examples::JsonFile(settings.json).check_writable();
    }
    text = read(settings);
    (void)examples::checked_shape(settings.shape(text));
  });
  settings.backend.run(connector, [&](distx::AnyCommunicator<> comm) {
    if (settings.mesh.given())
      train_on_mesh(comm, settings, text);
    else if (settings.training.short_weights())
      train_alike<distx::bfloat16>(comm, settings, text);
    else
      train_alike<float>(comm, settings, text);
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a GPT on text files, on one rank or many", "train_gpt");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&](distx::AnyConnector& connector) { run(connector, settings); });
}
