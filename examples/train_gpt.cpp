// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Trains a GPT on the characters of text files or on tokens; data-parallel, or tensor- and pipeline-parallel as well.
//   mpirun -np 2 build/examples/train_gpt --zero 3
//   build/examples/train_gpt --backend threads --ranks 2 --precision bf16 --optimizer muon --text book.txt
//   build/examples/train_gpt --backend threads --ranks 2 --compress powersgd
//   mpirun -np 4 build/examples/train_gpt --mesh data=2,model=2 --zero 1
//   build/examples/train_gpt_cuda --device cuda --ranks 2 --mesh data=2,model=1 --zero 3
//   mpirun -np 4 build/examples/train_gpt --mesh pipeline=2,data=2,model=1 --accumulate 4 --schedule zb-h1
//   mpirun -np 4 build/examples/train_gpt --mesh data=2,experts=2,model=1 --experts 8
//   build/examples/train_gpt --fake 16384 --rank 7123 --zero 3
//   build/examples/train_gpt --fake 2 --calibration gloo.json --plan
//   mpirun -np 2 build/examples/train_gpt --model gpt2 --tokens train.bin --context 256 --save-model tuned
#include <set>

#include <distx/fake.hpp>

#include "common/gpt_training.hpp"

namespace {

using examples::FakeStep;
using examples::GptSettings;
using examples::GptTask;

template <class Weight>
void train_alike(distx::AnyCommunicator<>& comm, const GptSettings& settings, const GptTask& task) {
  examples::BasicGpt<Weight> model(task.shape, settings.seed);
  const distx::Metered<distx::AnyCommunicator<>> metered(comm.share());
  auto training =
      examples::make_training(distx::AnyCommunicator<>(metered.share()), model.parameters(), settings.training);
  examples::WeightCounts weights;
  for (const auto* parameter : model.parameters()) {
    weights.all += parameter->size();
    if (parameter->options().rows > 0) weights.in_matrices += parameter->size();
  }
  if (settings.fake > 0)
    return examples::make_fake_steps(comm, settings, task.corpus, model, training, weights, metered);
  examples::train_between_folders(comm, comm, settings, task, model, training, weights, metered);
}

void train_rank(distx::AnyCommunicator<> comm, GptSettings own, const GptTask& task) {
  own.training.split_step(comm.size(), own.batch);
  if (!own.mesh.given())
    return own.training.short_weights() ? train_alike<distx::bfloat16>(comm, own, task)
                                        : train_alike<float>(comm, own, task);
  const distx::Metered<distx::AnyCommunicator<>> metered(comm.share());
  auto counted = metered.share();
  const auto sizes = own.mesh.sizes(own.training);
  if (own.mesh.pipelined()) {
    const distx::Mesh<examples::Stages, examples::InStage> all(
        counted, {sizes.pipeline, sizes.data * sizes.context * sizes.model});
    return examples::with_model(own, [&]<class Weight, bool Recompute>() {
      examples::train_in_pipeline<Weight, Recompute>(comm, all, metered, own, task);
    });
  }
  if (own.mesh.experts > 0) return examples::train_gpt_of_experts(comm, metered, own, task);
  const examples::Grid mesh(counted, sizes.grid());
  examples::with_model(own, [&]<class Weight, bool Recompute>() {
    examples::train_on_mesh<Weight, Recompute>(comm, mesh, mesh.along<examples::Data>(), metered, own, task);
  });
}

/// Returns the step of a fake rank; with a calibration, the step of the rank that takes longest.
FakeStep replayed_step(const GptSettings& settings, const GptTask& task,
                       const std::optional<examples::Calibration>& calibration) {
  FakeStep result;
  GptSettings own = settings;
  own.on_fake_step = [&](const FakeStep& step) { result = step; };
  if (!calibration) {
    train_rank(distx::AnyCommunicator<>(distx::FakeCommunicator(settings.rank, settings.fake)), own, task);
    return result;
  }
  const auto replay = [&](examples::Neighbor& neighbor) {
    GptSettings each = own;
    each.neighbor = &neighbor;
    if (neighbor.all.rank() > 0) each.on_fake_step = [](const FakeStep&) {};
    train_rank(distx::AnyCommunicator<>(neighbor.replay.share()), each, task);
  };
  // How stages wait for each other is planned: see `with_waiting`.
  const bool wait = !settings.mesh.pipelined();
  examples::replay_neighbors(settings.rank, settings.fake, *calibration, replay, wait);
  return result;
}

/// Returns the time of a pipeline's step in terms of the part in which a rank computes, if all stages take equally long
/// and a backward pass takes twice as long as a forward pass.
double with_waiting(const GptSettings& settings) {
  const auto schedule = settings.mesh.schedule_of(settings.mesh.sizes(settings.training).pipeline,
                                                  static_cast<int>(settings.training.accumulate));
  return std::visit(
      [](const auto& steps) {
        const auto timeline = distx::pipeline::plain(steps).timeline({});
        const double whole = distx::pipeline::length(timeline);
        return whole / (whole - distx::pipeline::idle(timeline, 0));
      },
      schedule);
}

/// The same. A fake rank of a pipeline waits for nobody: with a calibration, of the first and the last stage the step
/// of the slower one, with the waiting that the schedule plans.
FakeStep fake_step(const GptSettings& settings, const GptTask& task,
                   const std::optional<examples::Calibration>& calibration) {
  FakeStep step = replayed_step(settings, task, calibration);
  if (!calibration || !settings.mesh.pipelined()) return step;
  for (const int rank : {0, settings.fake - 1}) {
    GptSettings own = settings;
    own.rank = rank;
    const FakeStep other = rank == settings.rank ? step : replayed_step(own, task, calibration);
    if (other.time.all > step.time.all) step.time = other.time;
    if (settings.plan && other.memory.total.peak > step.memory.total.peak) step.memory = other.memory;
  }
  step.time.all *= with_waiting(settings);
  return step;
}

void print_fake_step(const GptSettings& settings, const FakeStep& step) {
  const auto megabytes = [](std::uint64_t bytes) { return 1e-6 * static_cast<double>(bytes); };
  fmt::print("rank {} of {}, {} weights in all\n", settings.rank, settings.fake, step.weights);
  const auto& memory = step.memory;
  for (const auto& [name, use] : {std::pair("weights", memory.weights),
                                  {"gradients", memory.gradients},
                                  {"optimizer", memory.optimizer},
                                  {"in flight", memory.in_flight},
                                  {"activations", memory.activations},
                                  {"offloaded", memory.offloaded},
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

/// Returns the stages, micro-batches and buckets that --plan compares.
std::vector<GptSettings> data_parallel_candidates(const GptSettings& settings, std::size_t bucket_kib) {
  std::vector<GptSettings> candidates;
  for (int stage = 0; stage <= 3; ++stage)
    for (const std::size_t parts : {1U, 2U, 4U})
      for (const std::size_t kib : std::set<std::size_t>{64, 1024, 25600, bucket_kib}) {
        if (settings.batch % parts != 0) continue;
        GptSettings& own = candidates.emplace_back(settings);
        own.training.zero = stage;
        own.training.accumulate = parts;
        own.training.bucket_kib = kib;
      }
  return candidates;
}

/// Returns the meshes that --plan-meshes compares, with the same sequences in a step of all ranks: at every stage, with
/// and without recomputation, and pipelines with one to four micro-batches for each of their ranks.
std::vector<GptSettings> mesh_candidates(const GptSettings& settings, const examples::GptShape& shape) {
  std::vector<GptSettings> candidates;
  const int ranks = settings.fake, heads = static_cast<int>(shape.heads);
  const std::size_t sequences = settings.batch * static_cast<std::size_t>(ranks);
  const auto divisors = [](int whole, int most) {
    std::vector<int> found;
    for (int part = 1; part <= std::min(whole, most); ++part)
      if (whole % part == 0) found.push_back(part);
    return found;
  };
  for (const int pipeline : divisors(ranks, static_cast<int>(shape.layers)))
    for (const int model : divisors(ranks / pipeline, heads))
      for (const int context : divisors(ranks / pipeline / model, heads / model)) {
        const int data = ranks / pipeline / model / context;
        if (sequences % static_cast<std::size_t>(data) != 0) continue;
        for (int stage = 0; stage <= (data > 1 ? 3 : 0); ++stage)
          for (const bool recompute : {false, true})
            for (const std::size_t each : {1U, 2U, 4U}) {
              const std::size_t parts = pipeline > 1 ? each * static_cast<std::size_t>(pipeline) : 1;
              GptSettings own = settings;
              own.batch = sequences / static_cast<std::size_t>(data);
              if (own.batch % parts != 0 || (pipeline == 1 && each > 1)) continue;
              own.mesh.text =
                  fmt::format("{}data={},context={},model={}",
                              pipeline > 1 ? fmt::format("pipeline={},", pipeline) : "", data, context, model);
              own.training.zero = stage;
              own.training.accumulate = parts;
              own.recompute = recompute;
              candidates.push_back(std::move(own));
            }
      }
  return candidates;
}

/// Predicts the steps of candidates, and prints them by their time.
void print_plan(const GptSettings& settings, const GptTask& task, const examples::Calibration& calibration) {
  struct Candidate {
    GptSettings settings;
    FakeStep step;
  };
  std::vector<Candidate> candidates;
  for (GptSettings& own : settings.plan_meshes ? mesh_candidates(settings, task.shape)
                                               : data_parallel_candidates(settings, calibration.bucket_bytes() >> 10)) {
    own.replay_seconds = 0.2;
    const FakeStep step = fake_step(own, task, calibration);
    candidates.push_back({std::move(own), step});
  }
  std::ranges::stable_sort(candidates, {}, [](const Candidate& each) { return each.step.time.all; });
  fmt::print("{} ranks, {}: {} sequences a step on each\n", settings.fake, calibration.backend, settings.batch);
  fmt::print("{:>5} {:>13} {:>10} {:>10} {:>12} {:>10}  {}\n", "stage", "micro-batches", "bucket KiB", "step ms",
             "exposed ms", "MiB", settings.plan_meshes ? "mesh" : "");
  auto rows = nlohmann::json::array();
  for (const auto& [own, step] : candidates) {
    const auto& flags = own.training;
    const double mebibytes = static_cast<double>(step.memory.total.peak) / 0x1p20;
    const bool fits = mebibytes <= settings.memory_limit;
    fmt::print("{:>5} {:>13} {:>10} {:>10.3f} {:>12.3f} {:>10.1f}  {}{}{}\n", flags.zero, flags.accumulate,
               flags.bucket_kib, 1e3 * step.time.all, 1e3 * step.time.exposed(), mebibytes, own.mesh.text,
               own.recompute ? ", recomputed" : "", fits ? "" : "  over the limit");
    rows.push_back({{"mesh", own.mesh.text},
                    {"recompute", own.recompute},
                    {"stage", flags.zero},
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

void run(distx::AnyConnector& connector, const GptSettings& settings) {
  std::optional<GptTask> task;
  examples::on_every_rank(connector, [&] {
    if (settings.fake > 0 && settings.rank >= settings.fake)
      throw distx::InvalidArgument("--rank " + std::to_string(settings.rank) + " is not one of the " +
                                   std::to_string(settings.fake) + " ranks of --fake");
    for (const auto& [flag, value] :
         {std::pair("--checkpoint", settings.checkpoint.directory), std::pair("--logits", settings.logits),
          std::pair("--save-model", settings.save_model)})
      if (settings.fake > 0 && !value.empty())
        throw distx::InvalidArgument("--fake trains no weights to save: leave out " + std::string(flag));
    if (settings.mesh.experts > 0 && (settings.fake > 0 || settings.device == "cuda"))
      throw distx::InvalidArgument("--experts supports neither --fake nor --device cuda: leave it out");
    if (settings.fake > 0 && connector.size() > 1)
      throw distx::InvalidArgument("--fake is one rank without the others: start the program without a launcher");
    if (settings.plan && (settings.mesh.given() || settings.training.reproducible))
      throw distx::InvalidArgument(
          "--plan supports neither --mesh nor --reproducible: omit them, or give --plan-meshes");
    if (settings.device == "cuda" && (settings.fake > 0 || !settings.mesh.given()))
      throw distx::InvalidArgument("--device cuda needs --mesh, such as data=2,model=1, and does not support --fake");
    if (settings.capture && settings.device != "cuda")
      throw distx::InvalidArgument("--capture needs --device cuda: omit it");
    if (settings.mesh.pipelined() && settings.device != "cpu")
      throw distx::InvalidArgument("--device does not support pipelines: omit it, or pipeline= of --mesh");
    if (settings.device == "cuda" && (settings.training.optimizer == "lamb" || settings.training.optimizer == "muon" ||
                                      settings.training.compress != "none"))
      throw distx::InvalidArgument("--device cuda supports neither --optimizer lamb or muon nor --compress: omit them");
    if (settings.device == "cuda" && settings.mesh.sizes(settings.training).context > 1)
      throw distx::InvalidArgument("--device cuda does not support context= of --mesh: omit it");
    if (settings.device == "cuda" && settings.backend.name != "auto")
      throw distx::InvalidArgument("--device cuda communicates by NCCL: leave out --backend " + settings.backend.name);
    settings.training.check("--batch", settings.batch);
    if (settings.mesh.given()) (void)settings.mesh.sizes(settings.training);
    for (const auto& [flag, value] :
         {std::pair("--model", settings.model), std::pair("--save-model", settings.save_model)})
      if (!value.empty() && (settings.mesh.pipelined() || settings.mesh.untied || settings.mesh.experts > 0))
        throw distx::InvalidArgument(std::string(flag) +
                                     " supports neither pipeline= of --mesh, --untied nor --experts: omit them");
    if (connector.rank() == 0) {
      settings.checkpoint.check(settings.mesh.given() ? settings.mesh.sizes(settings.training).pipeline : 1);
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
  GptSettings own = settings;
  if (calibration && settings.bucket_option->count() == 0) own.training.bucket_kib = calibration->bucket_bytes() >> 10;
  if (settings.plan)
    print_plan(own, *task, *calibration);
  else if (settings.fake > 0)
    print_fake_step(own, fake_step(own, *task, calibration));
  else if (settings.device == "cuda")
    examples::train_gpt_on_gpus(connector, own, *task);
  else
    settings.backend.run(connector, [&](distx::AnyCommunicator<> comm) { train_rank(std::move(comm), own, *task); });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a GPT on text files, on one rank or many", "train_gpt");
  GptSettings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&](distx::AnyConnector& connector) { run(connector, settings); });
}
