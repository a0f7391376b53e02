// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A GPT learns to write as the given files do, character by character, data-parallel.
//   mpirun -np 2 build/examples/train_gpt
//   build/examples/train_gpt --backend threads --ranks 2 --text book.txt
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>

#include <fmt/core.h>
#include <distx/comm/decorators/metered.hpp>
#include <distx/comm/decorators/sum_over_ranks.hpp>

#include "common/backend.hpp"
#include "common/json_file.hpp"
#include "common/ledger_json.hpp"
#include "common/progress.hpp"
#include "common/run.hpp"
#include "common/timed_training.hpp"
#include "common/weights_hash.hpp"
#include "data/text.hpp"
#include "models/gpt.hpp"
#include "models/gpt_sample.hpp"

namespace {

struct Settings {
  examples::Backend backend;
  int zero = 0;
  std::string precision = "f32";
  std::string optimizer = "adamw";
  std::size_t accumulate = 1;
  std::optional<double> clip;
  std::size_t layers = 3;
  std::size_t width = 64;
  std::size_t heads = 4;
  std::size_t context = 64;
  std::size_t batch = 8;
  std::size_t steps = 2000;
  std::optional<double> learning_rate;
  std::uint64_t seed = 1;
  std::vector<std::string> text;
  std::size_t sample = 400;
  double temperature = 0.8;
  std::string json;

  void describe(CLI::App& app) {
    const CLI::Range count(std::size_t{1}, std::size_t{1000000});
    backend.describe(app);
    app.add_option("--zero", zero, "stage of ZeRO: 0 to 3")->check(CLI::IsMember({0, 1, 2, 3}))->capture_default_str();
    app.add_option("--precision", precision, "of the weights: f32 or bf16")
        ->check(CLI::IsMember({"f32", "bf16"}))
        ->capture_default_str();
    app.add_option("--optimizer", optimizer, "adamw, muon, lamb or sgd")
        ->check(CLI::IsMember({"adamw", "muon", "lamb", "sgd"}))
        ->capture_default_str();
    app.add_option("--accumulate", accumulate, "micro-batches that a rank's batch is cut into")
        ->check(count)
        ->capture_default_str();
    app.add_option("--clip", clip, "the gradients' norm is at most this [default: as it is]")
        ->check(CLI::PositiveNumber);
    app.add_option("--layers", layers, "transformer blocks")->check(count)->capture_default_str();
    app.add_option("--width", width, "numbers that describe a character")->check(count)->capture_default_str();
    app.add_option("--heads", heads, "of each block's attention; must divide the width")
        ->check(count)
        ->capture_default_str();
    app.add_option("--context", context, "characters that are looked at")->check(count)->capture_default_str();
    app.add_option("--batch", batch, "sequences in a batch of one rank")->check(count)->capture_default_str();
    app.add_option("--steps", steps, "how often the weights are updated")->check(count)->capture_default_str();
    app.add_option("--learning-rate", learning_rate,
                   "after a warm-up; falls to zero along a cosine [default: by optimizer]");
    app.add_option("--seed", seed, "of the initial weights, the sequences' order and the sample")
        ->capture_default_str();
    app.add_option("--text", text, "files to learn from [default: this project's own headers and pages]");
    app.add_option("--sample", sample, "characters to write at the end")
        ->check(CLI::Range(0, 1000000))
        ->capture_default_str();
    app.add_option("--temperature", temperature, "of the sample: the lower, the less daring")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--json", json, "file for losses, times, traffic and the hash of the final weights");
  }
};

examples::Text read(const Settings& settings) {
  std::vector<std::filesystem::path> files(settings.text.begin(), settings.text.end());
  if (files.empty()) files = examples::headers_and_pages(SOURCE_ROOT);
  if (files.empty())
    throw distx::DataError("this project's headers and pages are no longer in " SOURCE_ROOT
                           ": choose files with --text");
  auto text = examples::read_text(files);
  if (text.held_out().size() <= settings.context)
    throw distx::DataError("the text has " + std::to_string(text.tokens.size()) +
                           " characters, and the tenth that is held out must be longer than a context of " +
                           std::to_string(settings.context) + ": give a longer --text or a shorter --context");
  return text;
}

// ---- What depends on the stage, the precision and the optimizer ----

template <class Weight>
using Training = examples::TimedTraining<Weight>;

/// Calls f(optimizer) with the one that is chosen.
template <class F>
auto with_optimizer(const Settings& settings, F&& f) {
  if (settings.optimizer == "sgd") return f(distx::SGD{.momentum = 0.9});
  return f(distx::AdamW{.beta2 = 0.99, .weight_decay = 0.01});
}

template <class Weight, distx::Communicator C>
Training<Weight> make_training(C& comm, const examples::BasicGpt<Weight>& model, const Settings& settings) {
  return with_optimizer(settings, [&](const auto& optimizer) {
    return Training<Weight>(distx::DataParallel<distx::ZeRO<0>>(comm, model.parameters(), optimizer));
  });
}

void refuse_what_is_missing(const Settings& settings) {
  const auto refuse = [](const std::string& words) { throw distx::Error("this version has no " + words); };
  if (settings.zero != 0) refuse("stage " + std::to_string(settings.zero) + " of ZeRO: use --zero 0");
  if (settings.precision != "f32") refuse("master weights for bf16: use --precision f32");
  if (settings.optimizer == "muon" || settings.optimizer == "lamb")
    refuse("optimizer " + settings.optimizer + ": use --optimizer adamw or sgd");
  if (settings.clip) refuse("clipping of gradients: leave --clip out");
}

double learning_rate(const Settings& settings, std::size_t step) {
  static const std::map<std::string, double> usual{{"adamw", 5e-3}, {"muon", 2e-2}, {"lamb", 1e-2}, {"sgd", 0.1}};
  const double warm_up = 1 + static_cast<double>(settings.steps) / 20;
  const auto now = static_cast<double>(step);
  const double done = now / static_cast<double>(settings.steps);
  return settings.learning_rate.value_or(usual.at(settings.optimizer)) * std::min(1.0, (now + 1) / warm_up) * 0.5 *
         (1 + std::cos(done * 3.14159265358979));
}

// ---- The training ----

/// The mean over the ranks; each has one value.
double average_over_ranks(distx::AnyCommunicator<>& comm, double value) {
  distx::all_reduce(comm, value, distx::average);
  return value;
}

/// The loss on text that was not learnt from, of which each rank reads its part. Every rank runs the model as often.
template <class Weight>
double held_out_loss(distx::AnyCommunicator<>& comm, examples::BasicGpt<Weight>& model, Training<Weight>& training,
                     std::span<const std::uint8_t> text) {
  constexpr std::size_t at_once = 16;
  const auto scope = training.evaluate();
  const std::size_t length = model.shape().context;
  const std::size_t count = (text.size() - 1) / length;
  const auto ranks = static_cast<std::size_t>(comm.size());
  double sum = 0;
  for (std::size_t round = 0; round < count; round += at_once * ranks) {
    std::vector<std::size_t> places;
    for (std::size_t i = round + static_cast<std::size_t>(comm.rank()); i < std::min(count, round + at_once * ranks);
         i += ranks) {
      places.push_back(i * length);
    }
    const auto counted = static_cast<double>(places.size());
    if (places.empty()) places.push_back(0);
    const auto batch = examples::sequences(text, places, length);
    sum += counted * static_cast<double>(model.forward(batch.tokens, batch.targets, length, training));
  }
  distx::all_reduce(comm, sum, distx::sum);
  return sum / static_cast<double>(count);
}

template <class Weight>
std::string weights_hash(const examples::BasicGpt<Weight>& model, Training<Weight>& training) {
  const auto scope = training.evaluate();
  examples::WeightsHash hash;
  for (const auto* parameter : model.parameters()) {
    const auto weights = training.unshard(*parameter);
    hash.add(std::span(parameter->value().data(), parameter->size()));
  }
  return hash.text();
}

template <class Weight>
std::string write_sample(examples::BasicGpt<Weight>& model, Training<Weight>& training, const std::string& vocabulary,
                         const Settings& settings) {
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

template <class Weight>
void train(distx::AnyCommunicator<>& comm, const Settings& settings, const examples::Text& text) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  const distx::DistributedSampler sampler(
      text.training().size() - settings.context, comm,
      {.batch_size = settings.batch, .seed = settings.seed, .remainder = distx::Remainder::drop});
  const distx::DataLoader loader(
      sampler,
      [&](std::span<const std::size_t> places) {
        std::vector<examples::TextBatch> parts;
        for (const std::size_t share = places.size() / settings.accumulate; !places.empty();
             places = places.subspan(share)) {
          parts.push_back(examples::sequences(text.training(), places.first(share), settings.context));
        }
        return parts;
      },
      {.workers = 0});

  examples::BasicGpt<Weight> model(
      {text.vocabulary.size(), settings.context, settings.width, settings.layers, settings.heads}, settings.seed);
  distx::Metered<distx::AnyCommunicator<>> metered(comm.share());
  auto training = make_training(metered, model, settings);
  const auto sent_at_first = metered.ledger();

  const bool speaks = comm.rank() == 0;
  if (speaks) {
    std::size_t weights = 0;
    for (const auto* parameter : model.parameters()) weights += parameter->size();
    fmt::print("{} weights learn from {} characters, {} different ones\n", weights, text.training().size(),
               text.vocabulary.size());
  }
  std::optional<examples::ProgressBar> progress;
  if (speaks)
    progress.emplace(stdout, examples::TrainingPlan{settings.steps, 1, settings.batch * ranks * settings.context,
                                                    "step", "characters"});
  std::vector<double> losses;
  for (std::size_t epoch = 0; losses.size() < settings.steps; ++epoch) {
    for (const auto& parts : loader.epoch(epoch)) {
      const double share = 1.0 / static_cast<double>(parts.size());
      double loss = 0;
      training.begin_step();
      for (const auto& part : parts) {
        const auto scope = training.micro_batch(&part == &parts.back());
        loss += share * static_cast<double>(model.forward(part.tokens, part.targets, part.length, training));
        model.backward(training, static_cast<typename examples::BasicGpt<Weight>::Scalar>(share));
      }
      training.step({.learning_rate = learning_rate(settings, losses.size())});
      loss = average_over_ranks(comm, loss);
      if (!std::isfinite(loss))
        throw distx::Error("the loss of step " + std::to_string(losses.size() + 1) +
                           " is no finite number: choose a lower --learning-rate");
      losses.push_back(loss);
      if (progress) progress->step(loss);
      if (losses.size() == settings.steps) break;
    }
  }
  progress.reset();

  const auto traffic = distx::sum_over_ranks(metered.ledger() - sent_at_first, comm);
  const double held_out = held_out_loss(comm, model, training, text.held_out());
  const auto hash = weights_hash(model, training);
  const auto sample = write_sample(model, training, text.vocabulary, settings);
  const auto seconds = [&](double sum) { return average_over_ranks(comm, sum) / static_cast<double>(settings.steps); };
  const double compute = seconds(training.times().compute);
  const double communication = seconds(training.times().communication);
  const double update = seconds(training.times().update);
  if (!speaks) return;
  fmt::print("a step of {:.1f} ms: {:.1f} compute, {:.1f} exposed communication, {:.1f} update\n",
             1e3 * (compute + communication + update), 1e3 * compute, 1e3 * communication, 1e3 * update);
  fmt::print("loss on {} characters that were held out: {:.4f} nats each (weights {})\n", text.held_out().size(),
             held_out, hash);
  if (!sample.empty()) fmt::print("---- a sample ----\n{}\n", sample);
  examples::JsonFile(settings.json)
      .write(
          {{"step_losses", losses},
           {"held_out_loss", held_out},
           {"weights_hash", hash},
           {"sample", sample},
           {"seconds_per_step", {{"compute", compute}, {"exposed_communication", communication}, {"update", update}}},
           {"traffic", examples::ledger_json(traffic)}});
}

void run(int argc, char** argv, const Settings& settings) {
  auto connector = distx::connect(argc, argv);
  refuse_what_is_missing(settings);
  if (settings.batch % settings.accumulate != 0)
    throw distx::DataError("--batch " + std::to_string(settings.batch) + " cannot be cut into " +
                           std::to_string(settings.accumulate) + " equal micro-batches: choose a multiple of that");
  const auto text = read(settings);
  examples::JsonFile(settings.json).demand_writable(connector);
  settings.backend.run(connector, [&](auto comm) { train<float>(comm, settings, text); });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a GPT to write as the given files do, on one rank or many", "train_gpt");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&] { run(argc, argv, settings); });
}
