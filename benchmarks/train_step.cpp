// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Where the time of a training step goes: computation, exposed communication, update; with overlap and without.
//   mpirun -np 2 build/benchmarks/train_step --backend shm
//   build/benchmarks/train_step --backend threads --throttled --layers 8 --batch 256 --bucket-bytes 1MiB
//   build/benchmarks/train_step --fake 2 --calibration gloo.json --zero 2
//   mpirun -np 4 build/benchmarks/train_step --zero 3 --modes blocking --layers 96 --batch 4 --rounds 1 --steps 1
#include <chrono>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <distx/comm/decorators/throttled.hpp>
#include <distx/distx.hpp>

#include "common/backend.hpp"
#include "common/json_file.hpp"
#include "common/replay.hpp"
#include "common/run.hpp"
#include "timing/ideal_step.hpp"
#include "timing/mlp.hpp"
#include "timing/muted.hpp"
#include "timing/samples.hpp"

namespace {

using Any = distx::AnyCommunicator<>;
using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>>;
using timing::clock;
using timing::median;
using timing::since;

struct Settings {
  examples::Backend backend;
  int zero = 0;
  std::string optimizer = "sgd";
  std::size_t layers = 2;
  Eigen::Index width = 1024;
  Eigen::Index batch = 64;
  std::uint64_t bucket_bytes = distx::DataParallelOptions{}.bucket_bytes;
  bool map_weights = true;
  bool share_weights = false;
  std::vector<std::string> modes{"alone", "overlap", "blocking"};
  int rounds = 20;
  int steps = 10;
  bool throttled = false;
  double latency = 0;
  int fake = 0;
  std::string calibration;
  std::string json;

  Settings() { backend.name = "shm"; }

  void describe(CLI::App& app) {
    const CLI::Range count(1, 1000000);
    backend.describe(app);
    app.add_option("--zero", zero, "stage of ZeRO: 0 to 3")->check(CLI::Range(0, 3))->capture_default_str();
    app.add_option("--optimizer", optimizer, "sgd, with momentum, or adamw")
        ->check(CLI::IsMember({"sgd", "adamw"}))
        ->capture_default_str();
    app.add_option("--layers", layers, "hidden ones, between 784 inputs and 10 outputs")
        ->check(count)
        ->capture_default_str();
    app.add_option("--width", width, "of a hidden layer")->check(count)->capture_default_str();
    app.add_option("--batch", batch, "samples of a rank in each step")->check(count)->capture_default_str();
    app.add_option("--bucket-bytes", bucket_bytes, "of gradients reduced together, such as 1MiB")
        ->transform(CLI::AsSizeValue(false))
        ->capture_default_str();
    app.add_option("--map-weights", map_weights,
                   "whether ranks of one host read each other's weights in place, at stage 3")
        ->capture_default_str();
    app.add_flag("--share-weights", share_weights,
                 "keeps one copy of the weights for the ranks of one host, at stages 0 to 2");
    app.add_option("--modes", modes,
                   "of alone (nothing is communicated), waits (as alone, and a barrier after each step), overlap, and "
                   "blocking")
        ->delimiter(',')
        ->check(CLI::IsMember({"alone", "waits", "overlap", "blocking"}));
    app.add_option("--rounds", rounds, "in each of which every mode has its turn, besides one to warm up")
        ->check(count)
        ->capture_default_str();
    app.add_option("--steps", steps, "in a turn")->check(count)->capture_default_str();
    app.add_flag("--throttled", throttled, "on an emulated wire where communication takes as long as computation");
    app.add_option("--latency", latency, "of each message on that wire, in microseconds")
        ->check(CLI::NonNegativeNumber)
        ->capture_default_str();
    auto* fake_option =
        app.add_option("--fake", fake, "predict the step of a job of that many ranks, without them")->check(count);
    auto* calibration_option =
        app.add_option("--calibration", calibration, "of --fake: file of benchmarks/calibrate")->needs(fake_option);
    fake_option->needs(calibration_option);
    app.add_option("--json", json, "file for the figures");
  }
};

/// The parts of a step's time on this rank, in seconds.
struct StepTimes {
  double all = 0;
  double compute = 0;  ///< outside all calls of the training
  double inside = 0;   ///< in `ready` and `unshard`
  double step = 0;     ///< in `step`
};

/// The training as the model sees it, with a clock.
struct Clocked {
  Training& training;
  double& inside;

  template <class... P>
  void ready(const P&... parameters) {
    const auto begin = clock::now();
    training.ready(parameters...);
    inside += since(begin);
  }
  template <class... P>
  [[nodiscard]] auto unshard(const P&... parameters) {
    const auto begin = clock::now();
    auto scope = training.unshard(parameters...);
    inside += since(begin);
    return scope;
  }
};

Training make_training(Any& comm, const timing::Mlp& model, const Settings& settings, bool overlap) {
  const distx::DataParallelOptions options{.bucket_bytes = settings.bucket_bytes,
                                           .overlap = overlap,
                                           .stage = settings.zero,
                                           .map_weights = settings.map_weights,
                                           .share_weights = settings.share_weights};
  if (settings.optimizer == "adamw") return Training(comm, model.parameters(), distx::AdamW{}, options);
  return Training(comm, model.parameters(), distx::SGD{.momentum = 0.9}, options);
}

/// One model that is trained in one way.
struct Subject {
  std::string name;
  timing::Mlp model;
  Training training;
  std::vector<double> rounds{};   // seconds of a step, each round's median over steps and mean over ranks
  std::vector<double> slowest{};  // the same of the rank that takes longest
  StepTimes times{};              // the medians over rounds
  double first_loss = 0;
  double last_loss = 0;
  bool begun = false;

  Subject(std::string mode, Any comm, const std::vector<Eigen::Index>& widths, const Settings& settings)
      : name(std::move(mode)), model(widths), training(make_training(comm, model, settings, name != "blocking")) {}

  [[nodiscard]] bool muted() const { return is_muted(name); }
  [[nodiscard]] static bool is_muted(const std::string& mode) { return mode == "alone" || mode == "waits"; }
};

class Bench {
 public:
  Bench(const Settings& settings, Any comm) : settings_(settings), comm_(std::move(comm)), muted_(comm_.share()) {
    widths_ = {784};
    widths_.insert(widths_.end(), settings.layers, settings.width);
    widths_.push_back(10);
    std::srand(static_cast<unsigned>(comm_.rank()) + 1);
    input_ = timing::Mlp::Matrix::Random(widths_.front(), settings.batch);
    for (Eigen::Index i = 0; i < settings.batch; ++i) labels_.push_back(static_cast<std::uint8_t>((i * 7) % 10));
  }

  /// Predicts the step of the mode overlap.
  nlohmann::json predict(examples::Neighbor& neighbor) {
    Subject subject("overlap", comm_.share(), widths_, settings_);
    const auto step = neighbor.predict(1, [&] { train(subject); });
    return {{"ranks", comm_.size()}, {"zero", settings_.zero},    {"bucket_bytes", settings_.bucket_bytes},
            {"seconds", step.all},   {"exposed", step.exposed()}, {"peak_bytes", subject.training.memory().total.peak}};
  }

  nlohmann::json run() {
    for (const auto& mode : settings_.modes) {
      if (!Subject::is_muted(mode)) continue;
      auto& subject = *subjects_.emplace_back(std::make_unique<Subject>(mode, Any(muted_.share()), widths_, settings_));
      for (int step = 0; step < 3; ++step) train(subject);  // what gathers ahead has learnt the order
    }
    comm_.execute(distx::calls::Barrier<>{});
    muted_.mute();
    std::optional<distx::WireSpeed> speed;
    if (settings_.throttled) speed = calibrate();
    const auto wire = [&] { return speed ? Any(distx::Throttled(comm_.share(), *speed)) : comm_.share(); };
    for (const auto& mode : settings_.modes)
      if (!Subject::is_muted(mode)) subjects_.push_back(std::make_unique<Subject>(mode, wire(), widths_, settings_));

    for (int round = 0; round <= settings_.rounds; ++round)
      for (std::size_t turn = 0; turn < subjects_.size(); ++turn)
        take_turn(*subjects_[(turn + static_cast<std::size_t>(round)) % subjects_.size()], round > 0);
    return report(speed);
  }

 private:
  StepTimes train(Subject& subject) {
    StepTimes times;
    Clocked clocked{subject.training, times.inside};
    const auto begin = clock::now();
    subject.last_loss = static_cast<double>(subject.model.forward(input_, labels_, clocked));
    subject.model.backward(clocked);
    const double before = since(begin);
    subject.training.step({.learning_rate = settings_.optimizer == "sgd" ? 1e-3 : 1e-5});
    if (subject.name == "waits") comm_.execute(distx::calls::Barrier<>{});
    times.all = since(begin);
    times.step = times.all - before;
    times.compute = before - times.inside;
    if (!std::exchange(subject.begun, true)) subject.first_loss = subject.last_loss;
    return times;
  }

  void take_turn(Subject& subject, bool counts) {
    comm_.execute(distx::calls::Barrier<>{});
    std::vector<double> parts[4];
    for (int step = 0; step < settings_.steps; ++step) {
      const auto begin = clock::now();
      const StepTimes times = train(subject);
      parts[0].push_back(times.all);
      parts[1].push_back(times.compute);
      parts[2].push_back(times.inside);
      parts[3].push_back(times.step);
      if (!subject.muted()) continue;
      const auto notes = muted_.take_notes();
      if (subject.name == "alone" && counts) note_buckets(notes, begin, times);
    }
    std::vector<double> medians;
    for (auto& part : parts) medians.push_back(median(std::move(part)));
    double slowest = medians[0];
    distx::all_reduce(comm_, slowest, distx::max);
    distx::all_reduce(comm_, medians, distx::average);
    if (!counts) return;
    subject.slowest.push_back(slowest);
    auto& seen = rounds_[subject.name];
    seen.push_back({medians[0], medians[1], medians[2], medians[3]});
    subject.rounds.push_back(medians[0]);
    const auto over_rounds = [&](double StepTimes::*part) {
      std::vector<double> values;
      for (const auto& each : seen) values.push_back(each.*part);
      return median(std::move(values));
    };
    subject.times = {over_rounds(&StepTimes::all), over_rounds(&StepTimes::compute), over_rounds(&StepTimes::inside),
                     over_rounds(&StepTimes::step)};
  }

  /// When each reduction could have begun; `begin` is when the step did.
  void note_buckets(const std::vector<timing::Muted::Note>& notes, clock::time_point begin, const StepTimes& times) {
    full_.resize(notes.size());
    bytes_.resize(notes.size());
    for (std::size_t i = 0; i < notes.size(); ++i) {
      full_[i].push_back(std::chrono::duration<double>(notes[i].time - begin).count());
      bytes_[i] = std::max(notes[i].bytes.sent, notes[i].bytes.received);
    }
    compute_.push_back(times.all - times.step);
  }

  /// The wire on which a step's messages take as long as its computation does alone; the same on every rank.
  distx::WireSpeed calibrate() {
    if (subjects_.empty()) throw distx::Error("--throttled needs the mode alone, by which it sets the wire's speed");
    for (int round = 0; round < 4; ++round) take_turn(*subjects_.front(), round > 0);
    const double compute = subjects_.front()->times.compute;
    rounds_.clear();
    subjects_.front()->rounds.clear();
    full_.clear();
    compute_.clear();
    double bytes = 0;
    for (const std::size_t each : bytes_) bytes += static_cast<double>(each);
    const double latency = settings_.latency * 1e-6;
    const double moving = compute - latency * static_cast<double>(bytes_.size());
    if (!(moving > 0))
      throw distx::Error(
          "the messages of a step take longer than its computation by their latency alone: lower "
          "--latency, or raise --bucket-bytes");
    return {std::chrono::nanoseconds(static_cast<std::int64_t>(1e9 * latency)), bytes / moving};
  }

  [[nodiscard]] const Subject* find(const std::string& name) const {
    for (const auto& subject : subjects_)
      if (subject->name == name) return subject.get();
    return nullptr;
  }

  /// What overlap hides of what it could, on an emulated wire and with the reductions of stage 0: the parts of a step
  /// one after the other, less a step with overlap; less the shortest step that there could be.
  nlohmann::json hidden(const distx::WireSpeed& speed) const {
    const Subject *alone = find("alone"), *overlap = find("overlap");
    if (alone == nullptr || overlap == nullptr || settings_.zero != 0 || comm_.size() == 1) return nullptr;
    double bytes = 0;
    for (const std::size_t each : bytes_) bytes += static_cast<double>(each);
    std::vector<timing::BucketTimes> buckets;
    double on_wire = 0;
    for (std::size_t i = 0; i < full_.size(); ++i) {
      const auto share = static_cast<double>(bytes_[i]);
      buckets.push_back({median(full_[i]), 1e-9 * static_cast<double>(speed.latency.count()) + share / speed.bandwidth,
                         alone->times.step * share / bytes});
      on_wire += buckets.back().wire;
    }
    const double compute = median(compute_);
    const double can = timing::serial_step(compute, buckets) - timing::ideal_step(compute, buckets);
    const double is = timing::serial_step(compute, buckets) - overlap->times.all;
    return {{"communication", on_wire},
            {"can_be_hidden", can},
            {"is_hidden", is},
            {"share", can > 0 ? is / can : 0},
            {"last_bucket", buckets.empty() ? 0 : buckets.back().wire}};
  }

  /// The most memory that this process has had so far, in bytes; 0 where the system does not say.
  static double process_peak() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
      if (double kib = 0; word == "VmHWM:" && status >> kib) return 1024 * kib;
    return 0;
  }

  /// Checks that the timed training learns; every step uses the same batch.
  void check_losses() {
    for (const auto& subject : subjects_) {
      std::vector<double> losses{subject->first_loss, subject->last_loss};
      distx::all_reduce(comm_, losses, distx::average);
      if (!subject->muted() && !(losses[1] < losses[0]))
        throw distx::Error(fmt::format("the loss of the mode {} went from {} to {}: what was timed has not learnt",
                                       subject->name, losses[0], losses[1]));
    }
  }

  nlohmann::json report(const std::optional<distx::WireSpeed>& speed) {
    check_losses();
    std::vector<double> peaks(static_cast<std::size_t>(comm_.size()));
    distx::all_gather(comm_, process_peak(), peaks);
    const auto memory = subjects_.back()->training.memory();
    std::size_t parameters = 0;
    for (const auto* parameter : subjects_.back()->model.parameters()) parameters += parameter->size();
    nlohmann::json all{{"backend", comm_.backend()},
                       {"ranks", comm_.size()},
                       {"zero", settings_.zero},
                       {"optimizer", settings_.optimizer},
                       {"widths", widths_},
                       {"batch", settings_.batch},
                       {"parameters", parameters},
                       {"bucket_bytes", settings_.bucket_bytes},
                       {"share_weights", settings_.share_weights},
                       {"buckets", subjects_.back()->training.bucket_count()},
                       {"process_peak_bytes", peaks},
                       {"ledger",
                        {{"weights", memory.weights.peak},
                         {"gradients", memory.gradients.peak},
                         {"optimizer", memory.optimizer.peak},
                         {"in_flight", memory.in_flight.peak},
                         {"total", memory.total.peak}}},
                       {"modes", nlohmann::json::array()}};
    const Subject* alone = find("alone");
    for (const auto& subject : subjects_) {
      const StepTimes& times = subject->times;
      nlohmann::json mode{{"name", subject->name},
                          {"seconds", times.all},
                          {"outside", times.compute},
                          {"inside", times.inside},
                          {"in_step", times.step},
                          {"rounds", subject->rounds},
                          {"slowest", median(subject->slowest)}};
      if (alone != nullptr) {
        // Of the same round, so that what slows the machine down for a while slows both.
        std::vector<double> exposed;
        for (std::size_t i = 0; i < subject->rounds.size(); ++i)
          exposed.push_back(subject->rounds[i] - alone->rounds[i]);
        mode["compute"] = alone->times.compute + alone->times.inside;
        mode["update"] = alone->times.step;
        mode["exposed"] = median(exposed);
        mode["exposed_share"] = median(exposed) / times.all;
      }
      all["modes"].push_back(std::move(mode));
    }
    if (speed) {
      all["wire"] = {{"latency", 1e-9 * static_cast<double>(speed->latency.count())}, {"bandwidth", speed->bandwidth}};
      all["hidden"] = hidden(*speed);
    }
    return all;
  }

  const Settings& settings_;
  Any comm_;
  timing::Muted muted_;
  std::vector<Eigen::Index> widths_;
  timing::Mlp::Matrix input_;
  std::vector<std::uint8_t> labels_;
  std::vector<std::unique_ptr<Subject>> subjects_;
  std::map<std::string, std::vector<StepTimes>> rounds_;
  std::vector<std::vector<double>> full_;  // of each bucket, in each step
  std::vector<std::size_t> bytes_;         // of each bucket, on the wire
  std::vector<double> compute_;            // of each step
};

void print(const nlohmann::json& report) {
  const auto ms = [](const nlohmann::json& seconds) { return 1e3 * seconds.get<double>(); };
  fmt::print("{} parameters, {} ranks ({}), stage {}, {}, {} buckets\n", report["parameters"].get<std::size_t>(),
             report["ranks"].get<int>(), report["backend"].get<std::string>(), report["zero"].get<int>(),
             report["optimizer"].get<std::string>(), report["buckets"].get<std::size_t>());
  fmt::print("{:10} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "ms", "step", "compute", "exposed", "update", "exposed");
  for (const auto& mode : report["modes"]) {
    fmt::print("{:10} {:>9.3f}", mode["name"].get<std::string>(), ms(mode["seconds"]));
    if (mode.contains("exposed"))
      fmt::print(" {:>9.3f} {:>9.3f} {:>9.3f} {:>8.1f}%", ms(mode["compute"]), ms(mode["exposed"]), ms(mode["update"]),
                 100 * mode["exposed_share"].get<double>());
    fmt::print("   (outside {:.3f}, in ready and unshard {:.3f}, in step {:.3f}; slowest rank {:.3f})\n",
               ms(mode["outside"]), ms(mode["inside"]), ms(mode["in_step"]), ms(mode["slowest"]));
  }
  if (report.contains("hidden") && !report["hidden"].is_null()) {
    const auto& hidden = report["hidden"];
    fmt::print(
        "on a wire of {:.3f} GB/s: {:.3f} ms of communication, {:.3f} of them in the last bucket; {:.3f} can be "
        "hidden, {:.3f} are: {:.1f}%\n",
        1e-9 * report["wire"]["bandwidth"].get<double>(), ms(hidden["communication"]), ms(hidden["last_bucket"]),
        ms(hidden["can_be_hidden"]), ms(hidden["is_hidden"]), 100 * hidden["share"].get<double>());
  }
  fmt::print("a rank holds {:.1f} MB at the most by the ledger; the processes have had {:.1f} MB\n",
             1e-6 * report["ledger"]["total"].get<double>(),
             fmt::join(
                 [&] {
                   std::vector<double> peaks;
                   for (const auto& peak : report["process_peak_bytes"]) peaks.push_back(1e-6 * peak.get<double>());
                   return peaks;
                 }(),
                 ", "));
}

void predict(const Settings& settings) {
  const auto calibration = examples::Calibration::read(settings.calibration);
  examples::replay_neighbors(0, settings.fake, calibration, [&](examples::Neighbor& neighbor) {
    const auto report = Bench(settings, Any(neighbor.replay.share())).predict(neighbor);
    if (neighbor.all.rank() > 0) return;
    fmt::print("a step takes {:.3f} ms, of which {:.3f} ms are exposed communication; a rank holds {:.1f} MB\n",
               1e3 * report["seconds"].get<double>(), 1e3 * report["exposed"].get<double>(),
               1e-6 * report["peak_bytes"].get<double>());
    examples::JsonFile(settings.json).write(report);
  });
}

void run(int argc, char** argv, const Settings& settings) {
  if (settings.fake > 0) return predict(settings);
  auto connector = distx::connect(argc, argv);
  examples::JsonFile(settings.json).demand_writable(connector);
  settings.backend.run(connector, [&](Any comm) {
    const bool speaks = comm.rank() == 0;
    const auto report = Bench(settings, std::move(comm)).run();
    if (!speaks) return;
    print(report);
    examples::JsonFile(settings.json).write(report);
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times the steps of a perceptron's training, with overlap, without, and without communication",
               "train_step");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&] { run(argc, argv, settings); });
}
