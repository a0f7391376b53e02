// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <distx/comm.hpp>
#include <distx/comm/decorators/metered.hpp>
#include <distx/optim/schedule.hpp>
#include <distx/parallel/layers/experts.hpp>
#include <distx/tensor.hpp>
#include <distx/training.hpp>

#include "../data/corpus.hpp"
#include "../models/gpt.hpp"
#include "../models/gpt2_folder.hpp"
#include "../models/gpt_sample.hpp"
#include "../models/mesh_gpt.hpp"
#include "../models/pipelined_gpt.hpp"
#include "backend.hpp"
#include "captured_step.hpp"
#include "checkpoint_flags.hpp"
#include "json_file.hpp"
#include "ledger_json.hpp"
#include "make_training.hpp"
#include "mesh_training.hpp"
#include "progress.hpp"
#include "replay.hpp"
#include "run.hpp"
#include "train_step.hpp"
#include "training_report.hpp"
#include "weights_hash.hpp"

// What train_gpt does on hosts and on GPUs.
namespace examples {

/// The second step of a fake rank.
struct FakeStep {
  distx::observe::MemoryLedger memory;
  distx::observe::Ledger traffic;
  std::size_t weights = 0;
  PredictedStep time{};  ///< with a calibration
};

struct GptSettings {
  Backend backend;
  TrainingFlags training{.usual_rates = {{"adamw", 5e-3}, {"muon", 2e-2}, {"lamb", 2e-2}, {"sgd", 0.1}}};
  MeshFlag mesh;
  bool recompute = false;
  CheckpointFlags checkpoint;
  std::size_t layers = 3;
  std::size_t width = 64;
  std::size_t heads = 4;
  std::optional<std::size_t> context;
  std::size_t batch = 8;
  std::size_t steps = 2000;
  std::uint64_t seed = 1;
  std::vector<std::string> text;
  std::string tokens;
  std::string token_type = "u16";
  bool in_order = false;
  std::string model;
  std::string save_model;
  std::string logits;
  std::size_t sample = 400;
  double temperature = 0.8;
  std::string json;
  std::string device = "cpu";
  bool tf32 = false;
  bool capture = false;
  int fake = 0;
  int rank = 0;
  CLI::Option* bucket_option = nullptr;
  std::string calibration;
  bool plan = false;
  bool plan_meshes = false;
  double memory_limit = std::numeric_limits<double>::infinity();  // MiB
  double replay_seconds = 1;
  Neighbor* neighbor = nullptr;                         // of a fake rank with a calibration
  std::function<void(const FakeStep&)> on_fake_step{};  // of a fake rank

  /// The experts that the flags describe.
  [[nodiscard]] GptExperts experts() const {
    if (mesh.experts == 0) return {};
    auto routers = std::make_shared<distx::layers::RouterSettings>();
    routers->experts_per_token = mesh.experts_per_token;
    if (mesh.capacity) routers->capacity = *mesh.capacity;
    routers->balance = mesh.balance;
    return {mesh.experts, std::move(routers)};
  }
  /// Returns the length of the sequences that are learnt from.
  [[nodiscard]] std::size_t length(const GptShape& shape) const { return context.value_or(shape.context); }
  void describe(CLI::App& app) {
    const CLI::Range count(std::size_t{1}, std::size_t{1000000});
    backend.describe(app);
    training.describe(app);
    bucket_option = app.get_option("--bucket-kib");
    mesh.describe(app);
    app.add_flag("--recompute", recompute,
                 "transformer blocks keep only their inputs, and repeat the forward pass in the backward pass")
        ->needs("--mesh");
    app.add_option("--device", device,
                   "cpu, or cuda, which needs --mesh: this program's name is train_gpt_cuda where it supports GPUs")
        ->check(CLI::IsMember({"cpu", "cuda"}))
        ->capture_default_str();
    app.add_flag("--offload", training.offload,
                 "with --device cuda, keep optimizer states and master weights in host memory");
    app.add_flag("--tf32", tf32, "on GPUs, compute products by tensor cores, from 10 bits of each fraction");
    app.add_flag(
        "--capture", capture,
        "with --device cuda, make the first step, capture the second in a CUDA graph, and replay it from then on");
    checkpoint.describe(app);
    auto* layers_option = app.add_option("--layers", layers, "transformer blocks")->check(count)->capture_default_str();
    auto* width_option = app.add_option("--width", width, "length of the vector that represents a token")
                             ->check(count)
                             ->capture_default_str();
    auto* heads_option = app.add_option("--heads", heads, "attention heads of each block; must divide the width")
                             ->check(count)
                             ->capture_default_str();
    app.add_option("--context", context, "tokens of a sequence [default: 64, or all that --model covers]")
        ->check(count);
    app.add_option("--batch", batch, "sequences per batch and rank")->check(count)->capture_default_str();
    app.add_option("--steps", steps, "training steps")->check(count)->capture_default_str();
    app.add_option("--seed", seed, "seed of the initial weights, the order of the sequences, and the sample")
        ->check(whole_number())
        ->capture_default_str();
    auto* text_option =
        app.add_option("--text", text, "files to train on [default: the headers and pages of this project]");
    auto* tokens_option =
        app.add_option("--tokens", tokens, "file of tokens to train on: unsigned integers, little-endian, no header")
            ->excludes(text_option);
    app.add_option("--token-type", token_type, "of --tokens: u16 or u32")
        ->needs(tokens_option)
        ->check(CLI::IsMember({"u16", "u32"}))
        ->capture_default_str();
    app.add_flag("--in-order", in_order, "learn from the sequences of --tokens in their order instead of a random one")
        ->needs(tokens_option);
    app.add_option("--model", model, "Hugging Face folder of a GPT-2 to start from")
        ->needs(tokens_option)
        ->excludes(layers_option)
        ->excludes(width_option)
        ->excludes(heads_option);
    app.add_option("--save-model", save_model, "folder for the trained model, as transformers loads it");
    app.add_option("--logits", logits,
                   "output file (safetensors) for the logits of the first sequence, before the first step");
    app.add_option("--sample", sample, "tokens to generate at the end")
        ->check(CLI::Range(0, 1000000))
        ->capture_default_str();
    app.add_option("--temperature", temperature, "of the sample; lower values are less random")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--json", json, "output file for losses, times, memory, traffic and the hash of the final weights");
    app.add_flag("--reproducible", training.reproducible,
                 "the same weights on 1, 2, 4 and 8 ranks: a step has 8 micro-batches of --batch sequences");
    auto* fake_option = app.add_option("--fake", fake,
                                       "make one step as a rank of a job of that many ranks, without the others, and "
                                       "print what it holds and sends")
                            ->check(CLI::Range(1, 10000000));
    app.add_option("--rank", rank, "of --fake")->needs(fake_option)->check(whole_number())->capture_default_str();
    auto* calibration_option = app.add_option(
        "--calibration", calibration,
        "file of benchmarks/calibrate: with --fake, predict the time of a step; else, choose the size of the buckets");
    auto* plan_option =
        app.add_flag("--plan", plan,
                     "compare the stages of ZeRO, and sizes of micro-batches and buckets, by prediction")
            ->needs(fake_option)
            ->needs(calibration_option);
    app.add_flag("--plan-meshes", plan_meshes,
                 "compare meshes and recomputation instead, with the same sequences in a step of all ranks")
        ->needs(plan_option);
    app.add_option("--memory-limit", memory_limit, "MiB of a rank's training above which --plan marks a candidate")
        ->needs(plan_option)
        ->check(CLI::PositiveNumber);
  }
};

inline Corpus read_corpus(const GptSettings& settings) {
  if (!settings.tokens.empty()) return Corpus(TokenFile(settings.tokens, settings.token_type == "u16" ? 2 : 4));
  std::vector<std::filesystem::path> files(settings.text.begin(), settings.text.end());
  if (files.empty()) files = headers_and_pages(SOURCE_ROOT);
  if (files.empty())
    throw distx::DataError("the headers and pages of this project are not in " SOURCE_ROOT
                           ": choose files with --text");
  return Corpus(read_text(files));
}

/// The model to be trained, and its data.
struct GptTask {
  Corpus corpus;
  std::optional<Gpt2Folder> folder;  // of --model
  GptShape shape;

  explicit GptTask(const GptSettings& settings) : corpus(read_corpus(settings)) {
    if (!settings.model.empty())
      shape = folder.emplace(settings.model).config().shape();
    else
      shape = {corpus.vocabulary(), settings.context.value_or(64), settings.width, settings.layers, settings.heads};
    (void)checked_shape(shape);
    const std::size_t length = settings.length(shape);
    if (length > shape.context)
      throw distx::InvalidArgument("--context " + std::to_string(length) + " exceeds the " +
                                   std::to_string(shape.context) + " tokens that --model covers: choose a shorter one");
    if (corpus.held_out().size() <= length)
      throw distx::DataError("the text has " + std::to_string(corpus.tokens().size()) + " " + corpus.unit() +
                             ", and the held-out tenth must be longer than a context of " + std::to_string(length) +
                             ": give a longer " + (settings.tokens.empty() ? "--text" : "--tokens") +
                             " or a shorter --context");
  }
};

/// Returns the mean loss of a batch.
template <class Model, class Training>
double loss_of(Model& model, const TextBatch& batch, Training& training) {
  if constexpr (requires { typename Model::Activations; })
    return static_cast<double>(model.forward(batch.tokens, batch.targets, batch.length, training).output);
  else
    return static_cast<double>(model.forward(batch.tokens, batch.targets, batch.length, training));
}

/// Returns the loss on held-out text, of which each rank evaluates its part; every rank runs the model the same number
/// of times. Collective.
template <class Model, class Training>
double held_out_loss(distx::AnyCommunicator<>& comm, Model& model, Training& training, const TokenSpan& text,
                     std::size_t length) {
  constexpr std::size_t at_once = 16;
  const auto scope = training.evaluate();
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
    const auto batch = sequences(text, places, length);
    sum += counted * loss_of(model, batch, training);
  }
  distx::all_reduce(comm, sum, distx::sum);
  return sum / static_cast<double>(count);
}

template <class Model, class Training>
std::string weights_hash(const Model& model, Training& training) {
  const auto scope = training.evaluate();
  WeightsHash hash;
  for_each_whole_weight(model, training, [&](const std::string&, const auto& values) { hash.add(values); });
  return hash.text();
}

/// Of the sequences of each batch, which all stages of a pipeline pass at once. Collective over them and `comm`.
template <class Weight, class Split, bool Recompute, class Training>
double held_out_loss(distx::AnyCommunicator<>& comm, PipelinedGpt<Weight, Split, Recompute, Training>& model,
                     Training& training, const TokenSpan& text, std::size_t length) {
  constexpr std::size_t at_once = 16;
  const auto scope = training.evaluate();
  const std::size_t count = (text.size() - 1) / length;
  const auto ranks = static_cast<std::size_t>(comm.size());
  double sum = 0;
  for (std::size_t begin = 0; begin < count; begin += ranks * at_once) {
    std::vector<std::size_t> places;
    for (std::size_t i = begin + static_cast<std::size_t>(comm.rank()); i < std::min(count, begin + ranks * at_once);
         i += ranks)
      places.push_back(i * length);
    const std::size_t counted = places.size();
    places.resize(at_once);  // the stages expect batches of one size
    sum += model.evaluate(sequences(text, places, length), counted, training);
  }
  distx::all_reduce(comm, sum, distx::sum);
  return sum / static_cast<double>(count);
}

/// At rank 0, which gets the weights stage by stage.
template <class Weight, class Split, bool Recompute, class Training>
std::string weights_hash(PipelinedGpt<Weight, Split, Recompute, Training>& model, Training& training) {
  WeightsHash hash;
  auto& along = model.along();
  std::map<std::string, std::vector<Weight>> own;
  training.for_each_full_weight([&](const std::string& name, const auto& values) {
    const auto* const begin = static_cast<const Weight*>(values.data());
    own[name].assign(begin, begin + values.size());
  });
  for (const auto& stage : model.stages())
    for (int owner = 0; owner < along.size(); ++owner) {
      std::vector<Weight> weights;
      if (owner == along.rank())
        stage.model().for_each_parameter([&](const auto& parameter) {
          const auto& whole = own.at(parameter.name());
          if (!stage.is_copy(parameter)) weights.insert(weights.end(), whole.begin(), whole.end());
        });
      std::uint64_t size = weights.size();
      distx::broadcast(along, size, owner);
      weights.resize(size);
      if (size == 0) continue;
      if (owner > 0 && owner == along.rank()) distx::send(along, weights, 0);
      if (owner > 0 && along.rank() == 0) distx::receive(along, weights, owner);
      if (along.rank() == 0) hash.add(std::span<const Weight>(weights));
    }
  return hash.text();
}

template <class Model, class Training>
std::string write_sample(Model& model, Training& training, const Corpus& corpus, const GptSettings& settings) {
  const auto scope = training.evaluate();
  Generator generator(settings.seed);
  return corpus.to_string(sample(model, training, {corpus.prompt()}, settings.sample, settings.temperature, generator));
}

/// Computes the logits of the corpus' first sequence, which rank 0 writes. Collective.
template <class Model, class Training>
void write_logits(const distx::AnyCommunicator<>& comm, Model& model, Training& training, const Corpus& corpus,
                  std::size_t length, const std::string& path) {
  const auto scope = training.evaluate();
  const std::size_t first = 0;
  const auto batch = corpus.batch(std::span(&first, 1), length);
  const auto& logits = model.logits(batch.tokens, length, training);
  if (comm.rank() == 0)
    distx::checkpoint::write_safetensors(
        path, {{"logits",
                "F32",
                {length, model.shape().vocabulary},
                std::as_bytes(std::span(logits.data(), static_cast<std::size_t>(logits.size())))}});
}

/// Returns the forward and backward pass of one micro-batch, for train_step.
template <class Model, class Training>
auto pass_of(Model& model, Training& training, const GptSettings& settings) {
  return [&](const TextBatch& part, double share) {
    if constexpr (requires { typename Model::Activations; }) {
      auto [loss, kept] = model.forward(part.tokens, part.targets, part.length, training);
      model.backward(std::move(kept), training, static_cast<typename Model::Scalar>(share));
      return loss;
    } else {
      const auto loss = model.forward(part.tokens, part.targets, part.length, training);
      // Reproducible averages micro-batches itself.
      model.backward(training, static_cast<typename Model::Scalar>(settings.training.reproducible ? 1 : share));
      return loss;
    }
  };
}

/// Makes one training step and returns the mean loss of all ranks of `data`. Collective.
template <class Model, class Training>
double make_step(distx::AnyCommunicator<>& data, Model& model, Training& training, const GptSettings& settings,
                 const std::vector<TextBatch>& parts, double rate) {
  return train_step(data, training, parts, rate, pass_of(model, training, settings));
}
template <class Weight, class Split, bool Recompute, class Training>
double make_step(distx::AnyCommunicator<>& data, PipelinedGpt<Weight, Split, Recompute, Training>& model,
                 Training& training, const GptSettings&, const std::vector<TextBatch>& parts, double rate) {
  const std::array whole{0};  // the pipeline divides the step itself
  return train_step(data, training, std::vector(whole.begin(), whole.end()), rate,
                    [&](int, double) { return model.train(parts, training); });
}

/// Returns a function that makes a step from micro-batches and a learning rate, and returns the mean loss of all ranks
/// of `data`. With `--capture`, calls after the first one replay a captured step.
template <class Model, class Training>
auto steps_of(distx::AnyCommunicator<>& data, Model& model, Training& training, const GptSettings& settings) {
  const auto make = [&](const std::vector<TextBatch>& parts, double rate) {
    return make_step(data, model, training, settings, parts, rate);
  };
  if constexpr (CapturingTraining<Training>) {
    return [&, make, first = true, captured = std::optional<CapturedStep<Model, Training>>()](
               const std::vector<TextBatch>& parts, double rate) mutable {
      if (std::exchange(first, false) || !settings.capture) return make(parts, rate);
      if (!captured) captured.emplace(model, training, parts);
      return finite_loss(data, captured->replay(parts, rate));
    };
  } else {
    return make;
  }
}

/// @param data the ranks that batches are split over; a part of the ranks of `comm`
/// @return whether all steps are made
template <class Model, class Training, class Metered>
bool train(distx::AnyCommunicator<>& comm, distx::AnyCommunicator<>& data, const GptSettings& settings,
           const Corpus& corpus, Model& model, Training& training, const WeightCounts& weights,
           const Metered& metered) {
  const auto ranks = static_cast<std::size_t>(data.size());
  const std::size_t length = settings.length(model.shape());
  const distx::DistributedSampler sampler(corpus.sequences(length), data,
                                          {.batch_size = settings.batch,
                                           .shuffle = !settings.in_order,
                                           .seed = settings.seed,
                                           .remainder = distx::Remainder::drop,
                                           .blocks = settings.training.reproducible || settings.mesh.experts > 0});
  const distx::DataLoader loader(sampler,
                                 [&](std::span<const std::size_t> batch) {
                                   return micro_batches(batch, settings.training.accumulate,
                                                        [&](auto numbers) { return corpus.batch(numbers, length); });
                                 },
                                 {.workers = 0});
  if (!settings.logits.empty()) write_logits(comm, model, training, corpus, length, settings.logits);
  const auto sent_at_first = metered.ledger();

  const bool speaks = comm.rank() == 0;
  if (speaks)
    fmt::print("training {} weights on {} {}, {} distinct ones\n", weights.all, corpus.training().size(), corpus.unit(),
               model.shape().vocabulary);
  std::optional<ProgressBar> progress;
  if (speaks)
    progress.emplace(stdout, TrainingPlan{settings.steps, 1, settings.batch * ranks * length, "step", corpus.unit()});
  const std::size_t warm_up = settings.steps / 20;
  const auto rate =
      distx::schedules::warm_up(warm_up, distx::schedules::cosine(settings.training.rate(), settings.steps - warm_up));
  auto step = steps_of(data, model, training, settings);
  std::vector<double> losses;
  auto at = settings.checkpoint.begin(comm, training, sampler);
  while (at.steps < settings.steps) {
    auto epoch = loader.epoch(at.data);
    while (at.steps < settings.steps) {
      const auto parts = epoch.next();
      at.data = epoch.position();
      if (!parts) break;
      losses.push_back(step(*parts, rate(at.steps++)));
      if (progress) progress->step(losses.back());
      if (settings.checkpoint.after_step(comm, training, at.steps, settings.steps, at.data)) {
        progress.reset();
        if (speaks) fmt::print("stopped after step {}: continue with --resume\n", at.steps);
        return false;
      }
    }
  }
  progress.reset();

  const TrainingCost cost(comm, training.times(), std::max<std::size_t>(1, losses.size()), training.memory(),
                          metered.ledger() - sent_at_first);
  const double held_out = held_out_loss(data, model, training, corpus.held_out(), length);
  const auto hash = weights_hash(model, training);
  const auto sample = write_sample(model, training, corpus, settings);
  if (!speaks) return true;
  fmt::print("{}\n", cost.to_string());
  fmt::print("loss on {} held-out {}: {:.4f} nats each (weights {})\n", corpus.held_out().size(), corpus.unit(),
             held_out, hash);
  if (!sample.empty()) fmt::print("---- a sample ----\n{}\n", sample);
  auto report = cost.json(settings.training, weights);
  if (settings.mesh.given()) {
    report["mesh"] = settings.mesh.text;
    report.erase("plan");  // it describes a model that every rank has whole
  }
  if (settings.capture) report.erase("traffic");  // calls of replayed steps are not counted
  report.update({{"vocabulary", model.shape().vocabulary},
                 {"step_losses", losses},
                 {"held_out_loss", held_out},
                 {"weights_hash", hash},
                 {"sample", sample}});
  JsonFile(settings.json).write(report);
  return true;
}

/// Trains a model from the folder of `--model`, and saves it to that of `--save-model`. Collective.
template <class Model, class Training, class Metered>
void train_between_folders(distx::AnyCommunicator<>& comm, distx::AnyCommunicator<>& data, const GptSettings& settings,
                           const GptTask& task, Model& model, Training& training, const WeightCounts& weights,
                           const Metered& metered) {
  if (task.folder) task.folder->load(model, training);
  if (!train(comm, data, settings, task.corpus, model, training, weights, metered)) return;
  const Gpt2Output output(settings.save_model);
  if (task.folder)
    output.write(comm, model, training, task.folder->config(), task.folder->path());
  else
    output.write(comm, model, training, Gpt2Config(task.shape));
}

/// Makes two steps on the first sequences of the text; with a calibration, predicts the time of further ones.
template <class Model, class Training, class Metered>
void make_fake_steps(distx::AnyCommunicator<>& data, const GptSettings& settings, const Corpus& corpus, Model& model,
                     Training& training, const WeightCounts& weights, const Metered& metered) {
  const std::size_t length = settings.length(model.shape());
  std::vector<std::size_t> numbers(settings.batch);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i % corpus.sequences(length);
  const auto parts =
      micro_batches(numbers, settings.training.accumulate, [&](auto some) { return corpus.batch(some, length); });
  const auto step = [&] {
    static_cast<void>(make_step(data, model, training, settings, parts, settings.training.rate()));
  };
  step();
  const auto before = metered.ledger();  // in the second step the order of units is known
  step();
  FakeStep made{training.memory(), metered.ledger() - before, weights.all};
  if (settings.neighbor != nullptr) made.time = settings.neighbor->predict(settings.replay_seconds, step);
  settings.on_fake_step(made);
}

/// A MeshGpt with experts, if an axis shards them.
template <class Weight, class Split, bool Recompute>
struct OfSplit {
  using type = MeshGpt<Weight, Split, Recompute>;
};
template <class Weight, class Split, bool Recompute>
  requires(!std::is_void_v<typename Split::experts>)
struct OfSplit<Weight, Split, Recompute> {
  using type = MeshGpt<Weight, Split, Recompute, distx::layers::ParallelExperts<Weight, Split>>;
};

/// Trains a model that is split over a mesh.
/// @tparam Policies  of the training, with the memory of its weights
/// @param mesh  of the communicator that `metered` is
/// @param data  the ranks that batches are split over, for numbers on the host
template <class Weight, bool Recompute, class... Policies, class MeshT, class Metered>
void train_on_mesh(distx::AnyCommunicator<>& comm, const MeshT& mesh, distx::AnyCommunicator<>& data,
                   const Metered& metered, const GptSettings& settings, const GptTask& task) {
  using Training = std::conditional_t<sizeof(Weight) == 2, MeshTraining<Policies..., distx::Precision<Weight>>,
                                      MeshTraining<Policies...>>;
  constexpr bool has_experts = std::same_as<MeshT, GridOfExperts>;
  using Split = distx::layers::TensorParallel<MeshT, Data, Model, false, typename Training::space, Context,
                                              std::conditional_t<has_experts, Experts, void>>;
  typename OfSplit<Weight, Split, Recompute>::type model(mesh, task.shape, settings.seed,
                                                         {.untied = settings.mesh.untied}, settings.experts());
  distx::TensorParameterList<typename Training::space> parameters;
  WeightCounts weights;
  model.for_each_parameter([&](const auto& parameter) {
    parameters.add(parameter);
    weights.all += distx::volume(parameter.extents());
  });
  auto training = make_mesh_training<Training>(mesh, parameters, settings.training);
  if (settings.fake > 0) return make_fake_steps(data, settings, task.corpus, model, training, weights, metered);
  train_between_folders(comm, data, settings, task, model, training, weights, metered);
}

/// Trains one stage of a pipeline. Collective over all ranks.
/// @param all  the mesh of `comm`
template <class Weight, bool Recompute>
void train_in_pipeline(distx::AnyCommunicator<>& comm, const distx::Mesh<Stages, InStage>& all,
                       const distx::Metered<distx::AnyCommunicator<>>& metered, GptSettings settings,
                       const GptTask& task) {
  using Training = std::conditional_t<sizeof(Weight) == 2, MeshTraining<distx::Precision<Weight>>, MeshTraining<>>;
  using Split = distx::layers::TensorParallel<Grid, Data, Model, false, distx::Host, Context>;
  const auto sizes = settings.mesh.sizes(settings.training);
  auto& along = all.along<Stages>();
  settings.checkpoint.stage = along.rank();
  settings.checkpoint.stages = along.size();
  settings.checkpoint.leads_stage = all.along<InStage>().rank() == 0;
  const Grid mesh(all.along<InStage>(), sizes.grid());
  PipelinedGpt<Weight, Split, Recompute, Training> model(
      along, mesh, task.shape, settings.seed,
      settings.mesh.schedule_of(sizes.pipeline, static_cast<int>(settings.training.accumulate)), settings.mesh.untied);
  distx::TensorParameterList<> parameters;
  model.list(parameters);
  const WeightCounts weights{.all = weights_of(task.shape, settings.mesh.untied)};
  auto training = make_mesh_training<Training>(mesh, parameters, settings.training, &along);
  if (settings.fake > 0)
    return make_fake_steps(mesh.along<Data>(), settings, task.corpus, model, training, weights, metered);
  train(comm, mesh.along<Data>(), settings, task.corpus, model, training, weights, metered);
}

/// Trains a model of experts that is split over a mesh. Collective.
void train_gpt_of_experts(distx::AnyCommunicator<>& comm, const distx::Metered<distx::AnyCommunicator<>>& metered,
                          const GptSettings& settings, const GptTask& task);

/// Calls f<Weight, Recompute>() with what the flags choose.
template <class F>
void with_model(const GptSettings& settings, F&& f) {
  const auto of = [&]<class Weight>() {
    settings.recompute ? f.template operator()<Weight, true>() : f.template operator()<Weight, false>();
  };
  settings.training.short_weights() ? of.template operator()<distx::bfloat16>() : of.template operator()<float>();
}

/// Trains on GPUs, one for each rank: of a launcher, or `--ranks` threads. Collective.
/// @throws ErrorPrinted without a GPU, or in a program that was built without GPUs
void train_gpt_on_gpus(distx::AnyConnector& connector, const GptSettings& settings, const GptTask& task);

}  // namespace examples
