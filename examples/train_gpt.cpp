// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trains a GPT on the characters of text files or on tokens; data-parallel, or tensor-parallel as well.
//   mpirun -np 2 build/examples/train_gpt --zero 3
//   build/examples/train_gpt --backend threads --ranks 2 --precision bf16 --optimizer muon --text book.txt
//   build/examples/train_gpt --backend threads --ranks 2 --compress powersgd
//   mpirun -np 4 build/examples/train_gpt --mesh data=2,model=2 --zero 1
//   build/examples/train_gpt --fake 16384 --rank 7123 --zero 3
//   build/examples/train_gpt --fake 2 --calibration gloo.json --plan
//   mpirun -np 2 build/examples/train_gpt --model gpt2 --tokens train.bin --context 256 --save-model tuned
#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <set>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <distx/comm.hpp>
#include <distx/comm/decorators/metered.hpp>
#include <distx/fake.hpp>
#include <distx/optim/schedule.hpp>
#include <distx/tensor.hpp>
#include <distx/training.hpp>

#include "common/backend.hpp"
#include "common/checkpoint_flags.hpp"
#include "common/json_file.hpp"
#include "common/ledger_json.hpp"
#include "common/make_training.hpp"
#include "common/mesh_flag.hpp"
#include "common/progress.hpp"
#include "common/replay.hpp"
#include "common/run.hpp"
#include "common/train_step.hpp"
#include "common/training_report.hpp"
#include "common/weights_hash.hpp"
#include "data/corpus.hpp"
#include "models/gpt.hpp"
#include "models/gpt2_folder.hpp"
#include "models/gpt_sample.hpp"
#include "models/mesh_gpt.hpp"

namespace {

/// The second step of a fake rank.
struct FakeStep {
  distx::observe::MemoryLedger memory;
  distx::observe::Ledger traffic;
  std::size_t weights = 0;
  examples::PredictedStep time{};  ///< with a calibration
};

struct Settings {
  examples::Backend backend;
  examples::TrainingFlags training{.usual_rates = {{"adamw", 5e-3}, {"muon", 2e-2}, {"lamb", 2e-2}, {"sgd", 0.1}}};
  examples::MeshFlag mesh;
  bool recompute = false;
  examples::CheckpointFlags checkpoint;
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
  int fake = 0;
  int rank = 0;
  CLI::Option* bucket_option = nullptr;
  std::string calibration;
  bool plan = false;
  double memory_limit = std::numeric_limits<double>::infinity();  // MiB
  double replay_seconds = 1;
  examples::Neighbor* neighbor = nullptr;               // of a fake rank with a calibration
  std::function<void(const FakeStep&)> on_fake_step{};  // of a fake rank

  /// Returns the length of the sequences that are learnt from.
  [[nodiscard]] std::size_t length(const examples::GptShape& shape) const { return context.value_or(shape.context); }
  void describe(CLI::App& app) {
    const CLI::Range count(std::size_t{1}, std::size_t{1000000});
    backend.describe(app);
    training.describe(app);
    bucket_option = app.get_option("--bucket-kib");
    mesh.describe(app);
    app.add_flag("--recompute", recompute,
                 "transformer blocks keep only their inputs, and repeat the forward pass in the backward pass")
        ->needs("--mesh");
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
        ->check(examples::whole_number())
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
    app.add_option("--rank", rank, "of --fake")
        ->needs(fake_option)
        ->check(examples::whole_number())
        ->capture_default_str();
    auto* calibration_option = app.add_option(
        "--calibration", calibration,
        "file of benchmarks/calibrate: with --fake, predict the time of a step; else, choose the size of the buckets");
    auto* plan_option =
        app.add_flag("--plan", plan,
                     "compare the stages of ZeRO, and sizes of micro-batches and buckets, by prediction")
            ->needs(fake_option)
            ->needs(calibration_option);
    app.add_option("--memory-limit", memory_limit, "MiB of a rank's training above which --plan marks a candidate")
        ->needs(plan_option)
        ->check(CLI::PositiveNumber);
  }
};

examples::Corpus read(const Settings& settings) {
  if (!settings.tokens.empty())
    return examples::Corpus(examples::TokenFile(settings.tokens, settings.token_type == "u16" ? 2 : 4));
  std::vector<std::filesystem::path> files(settings.text.begin(), settings.text.end());
  if (files.empty()) files = examples::headers_and_pages(SOURCE_ROOT);
  if (files.empty())
    throw distx::DataError("the headers and pages of this project are not in " SOURCE_ROOT
                           ": choose files with --text");
  return examples::Corpus(examples::read_text(files));
}

/// The model to be trained, and its data.
struct Task {
  examples::Corpus corpus;
  std::optional<examples::Gpt2Folder> folder;  // of --model
  examples::GptShape shape;

  explicit Task(const Settings& settings) : corpus(read(settings)) {
    if (!settings.model.empty())
      shape = folder.emplace(settings.model).config().shape();
    else
      shape = {corpus.vocabulary(), settings.context.value_or(64), settings.width, settings.layers, settings.heads};
    (void)examples::checked_shape(shape);
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
double loss_of(Model& model, const examples::TextBatch& batch, Training& training) {
  if constexpr (requires { typename Model::Activations; })
    return static_cast<double>(model.forward(batch.tokens, batch.targets, batch.length, training).output);
  else
    return static_cast<double>(model.forward(batch.tokens, batch.targets, batch.length, training));
}

/// Returns the loss on held-out text, of which each rank evaluates its part; every rank runs the model the same number
/// of times. Collective.
template <class Model, class Training>
double held_out_loss(distx::AnyCommunicator<>& comm, Model& model, Training& training, const examples::TokenSpan& text,
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
    const auto batch = examples::sequences(text, places, length);
    sum += counted * loss_of(model, batch, training);
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
template <class Weight, class Split, bool Recompute, class Training>
std::string weights_hash(const examples::MeshGpt<Weight, Split, Recompute>& model, Training& training) {
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
std::string write_sample(Model& model, Training& training, const examples::Corpus& corpus, const Settings& settings) {
  const auto scope = training.evaluate();
  examples::Generator generator(settings.seed);
  return corpus.to_string(
      examples::sample(model, training, {corpus.prompt()}, settings.sample, settings.temperature, generator));
}

/// Computes the logits of the corpus' first sequence, which rank 0 writes. Collective.
template <class Model, class Training>
void write_logits(const distx::AnyCommunicator<>& comm, Model& model, Training& training,
                  const examples::Corpus& corpus, std::size_t length, const std::string& path) {
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

/// Returns the forward and backward pass of one micro-batch, for examples::train_step.
template <class Model, class Training>
auto pass_of(Model& model, Training& training, const Settings& settings) {
  return [&](const examples::TextBatch& part, double share) {
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

/// @param data the ranks that batches are split over; a part of the ranks of `comm`
/// @return whether all steps are made
template <class Model, class Training>
bool train(distx::AnyCommunicator<>& comm, distx::AnyCommunicator<>& data, const Settings& settings,
           const examples::Corpus& corpus, Model& model, Training& training, const examples::WeightCounts& weights,
           const distx::Metered<distx::AnyCommunicator<>>& metered) {
  const auto ranks = static_cast<std::size_t>(data.size());
  const std::size_t length = settings.length(model.shape());
  const distx::DistributedSampler sampler(corpus.sequences(length), data,
                                          {.batch_size = settings.batch,
                                           .shuffle = !settings.in_order,
                                           .seed = settings.seed,
                                           .remainder = distx::Remainder::drop,
                                           .blocks = settings.training.reproducible});
  const distx::DataLoader loader(sampler,
                                 [&](std::span<const std::size_t> batch) {
                                   return examples::micro_batches(
                                       batch, settings.training.accumulate,
                                       [&](auto numbers) { return corpus.batch(numbers, length); });
                                 },
                                 {.workers = 0});
  if (!settings.logits.empty()) write_logits(comm, model, training, corpus, length, settings.logits);
  const auto sent_at_first = metered.ledger();

  const bool speaks = comm.rank() == 0;
  if (speaks)
    fmt::print("training {} weights on {} {}, {} distinct ones\n", weights.all, corpus.training().size(), corpus.unit(),
               model.shape().vocabulary);
  std::optional<examples::ProgressBar> progress;
  if (speaks)
    progress.emplace(stdout,
                     examples::TrainingPlan{settings.steps, 1, settings.batch * ranks * length, "step", corpus.unit()});
  const std::size_t warm_up = settings.steps / 20;
  const auto rate =
      distx::schedules::warm_up(warm_up, distx::schedules::cosine(settings.training.rate(), settings.steps - warm_up));
  const auto pass = pass_of(model, training, settings);
  std::vector<double> losses;
  auto at = settings.checkpoint.begin(training, sampler);
  while (at.steps < settings.steps) {
    auto epoch = loader.epoch(at.data);
    while (at.steps < settings.steps) {
      const auto parts = epoch.next();
      at.data = epoch.position();
      if (!parts) break;
      losses.push_back(examples::train_step(data, training, *parts, rate(at.steps++), pass));
      if (progress) progress->step(losses.back());
      if (settings.checkpoint.after_step(comm, training, at.steps, settings.steps, at.data)) {
        progress.reset();
        if (speaks) fmt::print("stopped after step {}: continue with --resume\n", at.steps);
        return false;
      }
    }
  }
  progress.reset();

  const examples::TrainingCost cost(comm, training.times(), std::max<std::size_t>(1, losses.size()), training.memory(),
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
  report.update({{"vocabulary", model.shape().vocabulary},
                 {"step_losses", losses},
                 {"held_out_loss", held_out},
                 {"weights_hash", hash},
                 {"sample", sample}});
  examples::JsonFile(settings.json).write(report);
  return true;
}

/// Makes two steps on the first sequences of the text; with a calibration, predicts the time of further ones.
template <class Model, class Training>
void make_fake_steps(distx::AnyCommunicator<>& data, const Settings& settings, const examples::Corpus& corpus,
                     Model& model, Training& training, const examples::WeightCounts& weights,
                     const distx::Metered<distx::AnyCommunicator<>>& metered) {
  const std::size_t length = settings.length(model.shape());
  std::vector<std::size_t> numbers(settings.batch);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i % corpus.sequences(length);
  const auto parts = examples::micro_batches(numbers, settings.training.accumulate,
                                             [&](auto some) { return corpus.batch(some, length); });
  const auto pass = pass_of(model, training, settings);
  const auto step = [&] {
    static_cast<void>(examples::train_step(data, training, parts, settings.training.rate(), pass));
  };
  step();
  const auto before = metered.ledger();  // in the second step the order of units is known
  step();
  FakeStep made{training.memory(), metered.ledger() - before, weights.all};
  if (settings.neighbor != nullptr) made.time = settings.neighbor->predict(settings.replay_seconds, step);
  settings.on_fake_step(made);
}

template <class Weight>
void train_alike(distx::AnyCommunicator<>& comm, const Settings& settings, const Task& task) {
  examples::BasicGpt<Weight> model(task.shape, settings.seed);
  const distx::Metered<distx::AnyCommunicator<>> metered(comm.share());
  auto training =
      examples::make_training(distx::AnyCommunicator<>(metered.share()), model.parameters(), settings.training);
  examples::WeightCounts weights;
  for (const auto* parameter : model.parameters()) {
    weights.all += parameter->size();
    if (parameter->options().rows > 0) weights.in_matrices += parameter->size();
  }
  if (settings.fake > 0) return make_fake_steps(comm, settings, task.corpus, model, training, weights, metered);
  if (task.folder) task.folder->load(training);
  if (!train(comm, comm, settings, task.corpus, model, training, weights, metered)) return;
  const examples::Gpt2Output output(settings.save_model);
  if (task.folder)
    output.write(comm, model, training, task.folder->config(), task.folder->path());
  else
    output.write(comm, model, training, examples::Gpt2Config(task.shape));
}

template <class Weight, bool Recompute>
void train_on_mesh(distx::AnyCommunicator<>& comm, const Settings& settings, const Task& task) {
  using Grid = examples::Grid;
  distx::Metered<distx::AnyCommunicator<>> metered(comm.share());
  const Grid mesh(metered, settings.mesh.sizes(settings.training));
  using Split = distx::layers::TensorParallel<Grid, examples::Data, examples::Model>;
  examples::MeshGpt<Weight, Split, Recompute> model(mesh, task.shape, settings.seed);
  distx::TensorParameterList<> parameters;
  examples::WeightCounts weights;
  model.for_each_parameter([&](const auto& parameter) {
    parameters.add(parameter);
    weights.all += distx::volume(parameter.extents());
  });
  auto training = [&] {
    if constexpr (sizeof(Weight) == 2)
      return examples::make_mesh_training<distx::Precision<Weight>>(mesh, parameters, settings.training);
    else
      return examples::make_mesh_training<>(mesh, parameters, settings.training);
  }();
  auto& data = mesh.along<examples::Data>();
  if (settings.fake > 0) return make_fake_steps(data, settings, task.corpus, model, training, weights, metered);
  train(comm, data, settings, task.corpus, model, training, weights, metered);
}

void train_rank(distx::AnyCommunicator<> comm, Settings own, const Task& task) {
  if (own.training.reproducible) {
    own.training.accumulate = static_cast<std::size_t>(std::max(1, own.training.virtual_ranks / comm.size()));
    own.batch *= own.training.accumulate;
  }
  const auto with_weights = [&]<class Weight>(std::type_identity<Weight>) {
    if (!own.mesh.given())
      train_alike<Weight>(comm, own, task);
    else if (own.recompute)
      train_on_mesh<Weight, true>(comm, own, task);
    else
      train_on_mesh<Weight, false>(comm, own, task);
  };
  if (own.training.short_weights())
    with_weights(std::type_identity<distx::bfloat16>());
  else
    with_weights(std::type_identity<float>());
}

/// Returns the step of a fake rank; with a calibration, the step of the rank that takes longest.
FakeStep fake_step(const Settings& settings, const Task& task,
                   const std::optional<examples::Calibration>& calibration) {
  FakeStep result;
  Settings own = settings;
  own.on_fake_step = [&](const FakeStep& step) { result = step; };
  if (!calibration) {
    train_rank(distx::AnyCommunicator<>(distx::FakeCommunicator(settings.rank, settings.fake)), own, task);
    return result;
  }
  examples::replay_neighbors(settings.rank, settings.fake, *calibration, [&](examples::Neighbor& neighbor) {
    Settings each = own;
    each.neighbor = &neighbor;
    if (neighbor.all.rank() > 0) each.on_fake_step = [](const FakeStep&) {};
    train_rank(distx::AnyCommunicator<>(neighbor.replay.share()), each, task);
  });
  return result;
}

void print_fake_step(const Settings& settings, const FakeStep& step) {
  const auto megabytes = [](std::uint64_t bytes) { return 1e-6 * static_cast<double>(bytes); };
  fmt::print("rank {} of {}, {} weights in all\n", settings.rank, settings.fake, step.weights);
  const auto& memory = step.memory;
  for (const auto& [name, use] : {std::pair("weights", memory.weights),
                                  {"gradients", memory.gradients},
                                  {"optimizer", memory.optimizer},
                                  {"in flight", memory.in_flight},
                                  {"activations", memory.activations},
                                  {"in all", memory.total}})
    fmt::print("memory: {:<11} {:>11.3f} MB, at most {:.3f} MB\n", name, megabytes(use.held), megabytes(use.peak));
  for (const auto& [operation, moved] : step.traffic.entries())
    if (moved.calls > 0)
      fmt::print("a step: {:<14} {:>8} calls, {:.3f} MB sent, {:.3f} MB received\n", operation, moved.calls,
                 megabytes(moved.sent_bytes), megabytes(moved.received_bytes));
  nlohmann::json report{{"rank", settings.rank},
                        {"ranks", settings.fake},
                        {"memory", examples::ledger_json(memory)},
                        {"traffic", examples::ledger_json(step.traffic)}};
  if (step.time.all > 0) {
    fmt::print("a step takes {:.3f} ms, of which {:.3f} ms are exposed communication\n", 1e3 * step.time.all,
               1e3 * step.time.exposed());
    report["seconds_per_step"] = {{"all", step.time.all}, {"exposed_communication", step.time.exposed()}};
  }
  examples::JsonFile(settings.json).write(report);
}

/// Predicts the steps of candidates, and prints them by their time.
void print_plan(const Settings& settings, const Task& task, const examples::Calibration& calibration) {
  struct Candidate {
    examples::TrainingFlags flags;
    FakeStep step;
  };
  std::vector<Candidate> candidates;
  for (int stage = 0; stage <= 3; ++stage)
    for (const std::size_t parts : {1, 2, 4})
      for (const std::size_t kib : std::set<std::size_t>{64, 1024, 25600, calibration.bucket_bytes() >> 10}) {
        Settings own = settings;
        own.training.zero = stage;
        own.training.accumulate = parts;
        own.training.bucket_kib = kib;
        own.replay_seconds = 0.2;
        if (settings.batch % parts == 0) candidates.push_back({own.training, fake_step(own, task, calibration)});
      }
  std::ranges::stable_sort(candidates, {}, [](const Candidate& each) { return each.step.time.all; });
  fmt::print("{} ranks, {}: {} sequences a step on each\n", settings.fake, calibration.backend, settings.batch);
  fmt::print("{:>5} {:>13} {:>13} {:>10} {:>12} {:>10}\n", "stage", "micro-batches", "bucket KiB", "step ms",
             "exposed ms", "MiB");
  auto rows = nlohmann::json::array();
  for (const auto& [flags, step] : candidates) {
    const double mebibytes = static_cast<double>(step.memory.total.peak) / 0x1p20;
    const bool fits = mebibytes <= settings.memory_limit;
    fmt::print("{:>5} {:>13} {:>13} {:>10.3f} {:>12.3f} {:>10.1f}{}\n", flags.zero, flags.accumulate, flags.bucket_kib,
               1e3 * step.time.all, 1e3 * step.time.exposed(), mebibytes, fits ? "" : "  over the limit");
    rows.push_back({{"stage", flags.zero},
                    {"micro_batches", flags.accumulate},
                    {"bucket_bytes", flags.bucket_kib << 10},
                    {"seconds", step.time.all},
                    {"exposed_communication", step.time.exposed()},
                    {"peak_bytes", step.memory.total.peak},
                    {"fits", fits}});
  }
  examples::JsonFile(settings.json).write({{"ranks", settings.fake}, {"candidates", rows}});
}

/// @throws distx::CheckpointError if the file that --logits names exists, or cannot be written
void check_absent(const std::string& logits) {
  std::error_code ignored;
  if (!logits.empty() && std::filesystem::exists(logits, ignored))
    throw distx::CheckpointError("'" + logits + "' exists: give --logits another name");
  examples::OutputFile("--logits", logits).check_writable();
}

void run(distx::AnyConnector& connector, const Settings& settings) {
  std::optional<Task> task;
  examples::on_every_rank(connector, [&] {
    if (settings.fake > 0 && settings.rank >= settings.fake)
      throw distx::InvalidArgument("--rank " + std::to_string(settings.rank) + " is not one of the " +
                                   std::to_string(settings.fake) + " ranks of --fake");
    for (const auto& [flag, value] :
         {std::pair("--checkpoint", settings.checkpoint.directory), std::pair("--logits", settings.logits),
          std::pair("--save-model", settings.save_model)})
      if (settings.fake > 0 && !value.empty())
        throw distx::InvalidArgument("--fake trains no weights to save: leave out " + std::string(flag));
    if (settings.fake > 0 && connector.size() > 1)
      throw distx::InvalidArgument("--fake is one rank without the others: start the program without a launcher");
    if (settings.plan && (settings.mesh.given() || settings.training.reproducible))
      throw distx::InvalidArgument("--plan supports neither --mesh nor --reproducible: omit them");
    settings.training.check("--batch", settings.batch);
    if (settings.mesh.given()) (void)settings.mesh.sizes(settings.training);
    for (const auto& [flag, value] :
         {std::pair("--model", settings.model), std::pair("--save-model", settings.save_model)})
      if (settings.mesh.given() && !value.empty())
        throw distx::InvalidArgument(std::string(flag) +
                                     " is not for a model that is split by --mesh: leave one of them out");
    if (connector.rank() == 0) {
      settings.checkpoint.check();
      examples::JsonFile(settings.json).check_writable();
    }
    task.emplace(settings);
    if (connector.rank() != 0) return;
    task->corpus.check(task->shape.vocabulary);
    check_absent(settings.logits);
    examples::Gpt2Output(settings.save_model).prepare();
  });
  std::optional<examples::Calibration> calibration;
  examples::on_every_rank(connector, [&] {
    if (!settings.calibration.empty()) calibration = examples::Calibration::read(settings.calibration);
  });
  Settings own = settings;
  if (calibration && settings.bucket_option->count() == 0) own.training.bucket_kib = calibration->bucket_bytes() >> 10;
  if (settings.plan)
    print_plan(own, *task, *calibration);
  else if (settings.fake > 0)
    print_fake_step(own, fake_step(own, *task, calibration));
  else
    settings.backend.run(connector, [&](distx::AnyCommunicator<> comm) { train_rank(std::move(comm), own, *task); });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a GPT on text files, on one rank or many", "train_gpt");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&](distx::AnyConnector& connector) { run(connector, settings); });
}
