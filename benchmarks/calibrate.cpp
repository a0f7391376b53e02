// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Measures the time of a backend's calls by bytes, for programs that predict a step with fake ranks:
//   mpirun -np 2 build/benchmarks/calibrate --backend gloo --json gloo.json
//   build/benchmarks/calibrate --backend threads --ranks 2 --json threads.json
#include <map>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <Eigen/Core>

#include <distx/distx.hpp>

#include "common/backend.hpp"
#include "common/calibration.hpp"
#include "common/json_file.hpp"
#include "common/run.hpp"
#include "timing/samples.hpp"

namespace {

using Any = distx::AnyCommunicator<>;
using Floats = distx::CommunicatorMemory<float>;
using examples::Calibration;
using timing::clock;
using timing::median;
using timing::since;

struct Settings {
  examples::Backend backend;
  double seconds = 15;
  std::uint64_t most_bytes = 64 << 20;
  std::string json;

  void describe(CLI::App& app) {
    backend.describe(app);
    app.add_option("--seconds", seconds, "to be spent on all operations and sizes")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--max", most_bytes, "bytes of the largest calls, such as 64MiB")
        ->transform(CLI::AsSizeValue(false))
        ->capture_default_str();
    app.add_option("--json", json, "file for the calibration");
  }
};

/// Computation as that of a layer: products of blocks of a weight matrix of 4 MiB with the activations of 64 samples.
class LayerWork {
 public:
  LayerWork() {
    std::vector<double> blocks;
    for (std::size_t i = 0; i < 2 * width / rows; ++i) {
      const auto begin = clock::now();
      multiply();
      blocks.push_back(since(begin));
    }
    block_seconds_ = median(std::move(blocks));
  }
  /// @param seconds  to be computed if nothing else runs on this core; at least one block
  void set_time(double seconds) { blocks_ = std::max(1, static_cast<int>(seconds / block_seconds_)); }
  void operator()() {
    for (int i = 0; i < blocks_; ++i) multiply();
  }

 private:
  using Matrix = Eigen::MatrixXf;
  static constexpr Eigen::Index width = 1024, rows = 32, samples = 64;

  void multiply() {
    output_.middleRows(next_, rows).noalias() = weights_.middleCols(next_, rows).transpose() * input_;
    next_ = (next_ + rows) % width;
  }

  Matrix weights_ = Matrix::Random(width, width), input_ = Matrix::Random(width, samples);
  Matrix output_ = Matrix::Zero(width, samples);
  Eigen::Index next_ = 0;
  double block_seconds_ = 0;
  int blocks_ = 1;
};

class Calibrator {
 public:
  Calibrator(const Settings& settings, Any comm)
      : comm_(std::move(comm)), seconds_(settings.seconds), most_(std::max<std::size_t>(64, settings.most_bytes)) {
    const auto ranks = static_cast<std::size_t>(comm_.size());
    whole_ = comm_.allocate<float>(most_ / sizeof(float) / ranks * ranks + ranks);
    part_ = comm_.allocate<float>(most_ / sizeof(float) / ranks + 1);
  }

  Calibration run() {
    Calibration calibration{std::string(comm_.backend()), comm_.size(), comm_.passes_operands(), {}};
    std::vector<std::size_t> sizes;
    for (std::size_t bytes = 64; bytes <= most_; bytes *= bytes < 256 * 1024 ? 4 : 2) sizes.push_back(bytes);
    constexpr int passes = 3;  // what disturbs one of them for a while does not count
    const double seconds = seconds_ / (passes * static_cast<double>(4 * sizes.size() + 1));
    std::map<std::string, std::vector<std::vector<Calibration::Knot>>> measured;
    for (int pass = 0; pass < passes; ++pass)
      for (const std::string operation : Calibration::operations) {
        auto& points = measured[operation];
        if (pass == 0) points.resize(operation == "barrier" ? 1 : sizes.size());
        for (std::size_t i = 0; i < points.size(); ++i) {
          points[i].push_back(measure(operation, operation == "barrier" ? 0 : sizes[i], seconds));
          if (i > 1 && points[i].front().blocking > 0.05) points.resize(i + 1);  // the last two knots are continued
        }
      }
    for (auto& [operation, points] : measured) {
      auto& knots = calibration.calls[operation];
      for (const auto& point : points) knots.push_back(point.front());
      using Knot = Calibration::Knot;
      for (const auto column : {&Knot::blocking, &Knot::started, &Knot::taken})
        for (std::size_t i = knots.size(); i-- > 0;) {
          std::vector<double> values;
          for (const auto& knot : points[i]) values.push_back(knot.*column);
          knots[i].*column = median(values);
          // Fewer bytes take no more time: a longer time is noise.
          if (i + 1 < knots.size()) knots[i].*column = std::min(knots[i].*column, knots[i + 1].*column);
        }
    }
    return calibration;
  }

 private:
  /// Calls f(call) with the operation on this rank's memory.
  template <class F>
  void with_call(const std::string& operation, std::size_t bytes, F&& f) {
    const auto ranks = static_cast<std::size_t>(comm_.size());
    const std::size_t count = std::max<std::size_t>(1, bytes / sizeof(float) / ranks), all = count * ranks;
    const auto whole = whole_.span().subspan(0, all), part = part_.span().subspan(0, count);
    if (operation == "all_reduce") return f(distx::calls::AllReduce<float, distx::Average>{whole, whole, {}});
    if (operation == "reduce_scatter") return f(distx::calls::ReduceScatter<float, distx::Average>{whole, part, {}});
    if (operation == "all_gather") return f(distx::calls::AllGather<float>{part, whole});
    if (operation == "broadcast") return f(distx::calls::Broadcast<float>{whole, 0});
    f(distx::calls::Barrier<>{});
  }

  /// Reads what a call has written, which other threads or ranks may have in their caches.
  void read(const std::string& operation, std::size_t bytes) {
    if (operation == "barrier") return;
    const auto& result = operation == "reduce_scatter" ? part_ : whole_;
    const std::size_t count = std::min(bytes / sizeof(float), result.size());
    float sum = 0;
    for (std::size_t i = 0; i < count; i += 64 / sizeof(float)) sum += result.data()[i];
    const volatile float kept = sum;
    static_cast<void>(kept);
  }

  /// Begins together with the other ranks, with operands that this rank has just written.
  template <class F>
  double timed(std::size_t bytes, F&& f) {
    const std::size_t count = bytes / sizeof(float);
    std::fill_n(whole_.data(), count, 1.0F);
    std::fill_n(part_.data(), std::min(count, part_.size()), 1.0F);
    distx::barrier(comm_);
    const auto begin = clock::now();
    f();
    return since(begin);
  }

  Calibration::Knot measure(const std::string& operation, std::size_t bytes, double seconds) {
    Calibration::Knot knot{static_cast<double>(bytes)};
    const auto ranks = static_cast<std::size_t>(comm_.size());
    with_call(operation, bytes, [&](const auto& call) {
      const auto read_result = [&] { read(operation, operation == "reduce_scatter" ? bytes / ranks : bytes); };
      const auto block = [&] {
        comm_.execute(distx::calls::erase(call));
        read_result();
      };
      const auto start_and_wait = [&] {
        comm_.start(distx::calls::erase(call)).wait();
        read_result();
      };
      // The first calls do what is done once.
      timed(bytes, block);
      double alone = timed(bytes, start_and_wait);
      distx::all_reduce(comm_, alone, distx::max);
      // Long enough for a progress thread that sleeps between polls.
      work_.set_time(std::max(2 * alone, 1e-3));
      std::vector<double> reading, blocking, started, working, overlapped;
      std::size_t rounds = 1;
      const auto before = clock::now();
      for (std::size_t round = 0; round < rounds; ++round) {
        reading.push_back(timed(bytes, read_result));
        blocking.push_back(timed(bytes, block));
        started.push_back(timed(bytes, start_and_wait));
        working.push_back(timed(bytes, work_));
        overlapped.push_back(timed(bytes, [&] {
          auto pending = comm_.start(distx::calls::erase(call));
          work_();
          pending.wait();
          read_result();
        }));
        if (round > 0) continue;
        double passed = since(before);
        distx::all_reduce(comm_, passed, distx::max);
        rounds = std::clamp<std::size_t>(static_cast<std::size_t>(seconds / passed), 1, 400);
      }
      const bool rooted = operation == "broadcast";  // whose root does not wait
      for (auto* times : {&blocking, &started}) {
        if (rooted)
          distx::all_reduce(comm_, *times, distx::max);
        else
          distx::all_reduce(comm_, *times, distx::average);
      }
      distx::all_reduce(comm_, reading, distx::average);
      distx::all_reduce(comm_, working, distx::average);
      distx::all_reduce(comm_, overlapped, distx::average);
      // What takes the replay's own processor to read is counted there.
      const double own = median(reading);
      const auto less = [](double time, double by) { return std::max(0.0, time - by); };
      knot = {knot.bytes, less(median(blocking), own), less(median(started), own),
              less(median(overlapped), median(working) + own)};
    });
    return knot;
  }

  Any comm_;
  double seconds_;
  std::size_t most_;
  Floats whole_, part_;
  LayerWork work_;
};

void print(const Calibration& calibration) {
  fmt::print("{} ranks ({}), us: a call that blocks, one that is started, and how much it prolongs a computation\n",
             calibration.ranks, calibration.backend);
  for (const std::string operation : Calibration::operations)
    for (const auto& knot : calibration.calls.find(operation)->second)
      fmt::print("{:<14} {:>10.0f} B {:>12.1f} {:>12.1f} {:>12.1f}\n", operation, knot.bytes, 1e6 * knot.blocking,
                 1e6 * knot.started, 1e6 * knot.taken);
  fmt::print("buckets of {} KiB\n", calibration.bucket_bytes() >> 10);
}

void run(int argc, char** argv, const Settings& settings) {
  auto connector = distx::connect(argc, argv);
  examples::JsonFile(settings.json).demand_writable(connector);
  settings.backend.run(connector, [&](Any comm) {
    if (comm.size() == 1) throw distx::InvalidState("calibrate: one rank makes no calls; start several");
    const bool speaks = comm.rank() == 0;
    const auto calibration = Calibrator(settings, std::move(comm)).run();
    if (!speaks) return;
    print(calibration);
    examples::JsonFile(settings.json).write(calibration);
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures the time of a backend's calls, by which programs predict the time of a step", "calibrate");
  Settings settings;
  settings.describe(app);
  return examples::run(app, argc, argv, [&] { run(argc, argv, settings); });
}
