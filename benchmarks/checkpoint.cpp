// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The time and memory of saving and loading a checkpoint, in turns with dd, with a plain read of the same files and, if
// asked for, with PyTorch's distributed checkpoints: peers/dcp.py.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <distx/checkpoint.hpp>
#include <distx/distx.hpp>

namespace {

using Training = distx::DataParallel<distx::ZeRO<3>>;
using Connector = distx::ThreadConnector;
namespace fs = std::filesystem;

struct Options {
  fs::path directory = "benchmark-checkpoints";
  std::string pytorch;
  int ranks = 2, rounds = 5;
  std::size_t parameters = std::size_t{40} << 20;
};

template <class F>
double seconds_of(F&& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The figures of one subject, one per round.
struct Row {
  std::string name;
  std::vector<double> seconds{};

  [[nodiscard]] double median() const {
    auto sorted = seconds;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// A number of /proc/self/status in bytes, such as of "VmHWM".
double status_of(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return std::stod(line.substr(name.size() + 1)) * 1024;
  return 0;
}
/// Starts a new peak of the resident memory.
void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5\n"; }

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}
std::uintmax_t bytes_of(const fs::path& folder) {
  std::uintmax_t bytes = 0;
  for (const auto& file : files_of(folder)) bytes += fs::file_size(file);
  return bytes;
}
/// Makes the next read of the files come from the disk.
void forget(const fs::path& folder) {
  for (const auto& path : files_of(folder)) {
    const int file = ::open(path.c_str(), O_RDONLY);
    if (file < 0) continue;
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}
/// Reads this rank's part of the files into memory, and each byte once on all ranks together.
void read_part(const fs::path& folder, int rank, int ranks, std::vector<char>& memory) {
  std::size_t filled = 0;
  for (const auto& path : files_of(folder)) {
    const auto all = static_cast<std::size_t>(fs::file_size(path));
    const std::size_t begin = all * static_cast<std::size_t>(rank) / static_cast<std::size_t>(ranks);
    const std::size_t end = all * static_cast<std::size_t>(rank + 1) / static_cast<std::size_t>(ranks);
    const int file = ::open(path.c_str(), O_RDONLY);
    if (file < 0) continue;
    for (std::size_t at = begin; at < end;) {
      const auto count =
          ::pread(file, memory.data() + filled, std::min<std::size_t>(end - at, 8 << 20), static_cast<off_t>(at));
      if (count <= 0) break;
      at += static_cast<std::size_t>(count);
      filled += static_cast<std::size_t>(count);
    }
    ::close(file);
  }
}

/// Runs a command and returns the last number that it prints; exits if it fails.
double last_number_of(const std::string& command) {
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text;
  std::array<char, 4096> block;
  for (std::size_t n = 0; pipe != nullptr && (n = std::fread(block.data(), 1, block.size(), pipe)) > 0;)
    text.append(block.data(), n);
  if (pipe == nullptr || ::pclose(pipe) != 0) {
    std::fprintf(stderr, "this command failed: %s\n", command.c_str());
    std::exit(1);
  }
  const auto end = text.find_last_not_of(" \n");
  const auto begin = text.find_last_of(" \n", end);
  return std::stod(text.substr(begin == std::string::npos ? 0 : begin + 1));
}

class Benchmark {
 public:
  explicit Benchmark(const Options& options) : options_(options) {}

  void run(Connector& connector) {
    distx::ThreadCommunicator comm(connector);
    std::vector<distx::Parameter<float>> parameters;
    const std::size_t each = std::clamp<std::size_t>(options_.parameters / 2048 * 2048, 2048, std::size_t{4} << 20);
    for (std::size_t i = 0; i * each < options_.parameters; ++i)
      parameters.emplace_back("layer" + std::to_string(i) + ".weight", each, distx::ParameterOptions{.rows = 2048});
    Training training(comm, parameters, distx::AdamW{});
    make_step(training, parameters);

    const bool first = comm.rank() == 0;
    std::size_t shard = 0;
    for (const auto& array : training.state().arrays)
      shard += array.values.subspan(array.share_begin, array.share_size).size_bytes();
    std::vector<char> memory;
    double peak = 0;
    const auto timed = [&](Row& row, auto&& f) {
      distx::barrier(comm);
      const double seconds = seconds_of([&] {
        f();
        distx::barrier(comm);
      });
      if (first && round_ > 0) row.seconds.push_back(seconds);  // the first round warms up
    };
    for (round_ = 0; round_ <= options_.rounds; ++round_) {
      if (first) fs::remove_all(options_.directory);
      distx::barrier(comm);
      if (first) reset_peak();
      const double before = status_of("VmRSS");
      distx::barrier(comm);
      fs::path folder;
      const auto time_dd_if = [&](bool now) {
        if (now)
          timed(dd_, [&] {
            if (first) write_with_dd();
          });
      };
      time_dd_if(round_ % 2 == 1);
      timed(save_, [&] { folder = distx::checkpoint::save(options_.directory, training, {.step = 1}); });
      if (first) peak = std::max(peak, status_of("VmHWM") - before);
      if (first) bytes_ = static_cast<double>(bytes_of(folder));
      distx::barrier(comm);
      time_dd_if(round_ % 2 == 0);
      if (memory.empty())
        memory.resize(static_cast<std::size_t>(bytes_of(folder)) / static_cast<std::size_t>(options_.ranks) + 4096);
      for (const bool cold : {true, false}) {
        if (cold && first) forget(folder);
        timed(cold ? cold_read_ : warm_read_, [&] { read_part(folder, comm.rank(), comm.size(), memory); });
        if (cold && first) forget(folder);
        timed(cold ? cold_load_ : warm_load_, [&] { (void)distx::checkpoint::load(folder, training); });
      }
      std::vector<char> copy(shard);
      timed(copy_, [&] {
        std::size_t at = 0;
        for (const auto& array : training.state().arrays) {
          const auto share = array.values.subspan(array.share_begin, array.share_size);
          std::memcpy(copy.data() + at, share.data(), share.size_bytes());
          at += share.size_bytes();
        }
      });
      copy = {};
      distx::checkpoint::PendingSave<> pending;
      timed(stall_, [&] { pending = distx::checkpoint::save_async(options_.directory, training, {.step = 2}); });
      pending.finish();
      if (first && !options_.pytorch.empty()) save_with_pytorch();
      distx::barrier(comm);
    }
    if (!first) return;
    fs::remove_all(options_.directory);
    print(static_cast<double>(shard), peak);
  }

 private:
  static void make_step(Training& training, std::vector<distx::Parameter<float>>& parameters) {
    for (auto& parameter : parameters) {
      const auto weights = training.unshard(parameter);
      for (auto& gradient : training.gradient(parameter)) gradient = 1;
      training.ready(parameter);
    }
    training.step({.learning_rate = 1e-3});
  }
  /// From /dev/zero, with nothing to compute.
  void write_with_dd() const {
    fs::create_directories(options_.directory);
    const auto file = options_.directory / "dd";
    const auto blocks = static_cast<long>(bytes_ / (8 << 20)) + 1;
    const std::string command =
        "dd if=/dev/zero of='" + file.string() + "' bs=8M count=" + std::to_string(blocks) + " conv=fsync 2>/dev/null";
    if (std::system(command.c_str()) != 0) std::exit(1);
  }
  void save_with_pytorch() {
    const double seconds = last_number_of(
        options_.pytorch + " " + peer() + " --ranks " + std::to_string(options_.ranks) + " --bytes " +
        std::to_string(static_cast<long>(bytes_)) + " --directory '" + (options_.directory / "dcp").string() + "'");
    if (round_ > 0) pytorch_.seconds.push_back(seconds);
  }
  static std::string peer() { return (fs::path(__FILE__).parent_path() / "peers" / "dcp.py").string(); }

  void print(double shard, double peak) const {
    std::printf("%.0f MB in %d shards, %d rounds in turns\n", bytes_ / 1e6, options_.ranks, options_.rounds);
    for (const Row* row : {&dd_, &save_, &pytorch_, &cold_read_, &cold_load_, &warm_read_, &warm_load_}) {
      if (row->seconds.empty()) continue;
      std::printf("%-46s %8.1f ms %7.2f GB/s\n", row->name.c_str(), row->median() * 1e3, bytes_ / row->median() / 1e9);
    }
    std::printf("%-46s %8.1f ms\n%-46s %8.1f ms\n", copy_.name.c_str(), copy_.median() * 1e3, stall_.name.c_str(),
                stall_.median() * 1e3);
    // Of neighbours in time, so that a slow phase of the disk affects both.
    std::printf("save against dd %.2f, load against a read: from the disk %.2f, from memory %.2f; ", ratio(dd_, save_),
                ratio(cold_read_, cold_load_), ratio(warm_read_, warm_load_));
    std::printf("save_async stalls %.2f times a copy\n", ratio(stall_, copy_));
    if (!pytorch_.seconds.empty()) std::printf("save against dcp.save %.2f\n", ratio(pytorch_, save_));
    std::printf("the peak of memory while saving: %.0f MB above the training, with shards of %.0f MB\n", peak / 1e6,
                shard / 1e6);
  }
  /// The median over rounds of a's time relative to b's.
  static double ratio(const Row& a, const Row& b) {
    Row ratios;
    for (std::size_t i = 0; i < a.seconds.size(); ++i) ratios.seconds.push_back(a.seconds[i] / b.seconds[i]);
    return ratios.median();
  }

  Options options_;
  double bytes_ = 0;
  int round_ = 0;
  Row save_{"distx: save"}, dd_{"dd conv=fsync"}, pytorch_{"PyTorch: dcp.save"};
  Row cold_load_{"distx: load, from the disk"}, cold_read_{"read of the files, from the disk"};
  Row warm_load_{"distx: load, files in memory"}, warm_read_{"read of the files, in memory"};
  Row copy_{"memcpy of a shard"}, stall_{"distx: save_async until it returns"};
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times saving and loading of a training at stage 3 with AdamW.");
  app.add_option("--directory", options.directory, "where to write; is removed");
  app.add_option("--ranks", options.ranks);
  app.add_option("--rounds", options.rounds);
  app.add_option("--parameters", options.parameters, "12 bytes each in a checkpoint");
  app.add_option("--pytorch", options.pytorch, "a Python with PyTorch");
  CLI11_PARSE(app, argc, argv);
  std::vector<Benchmark> benchmarks(static_cast<std::size_t>(options.ranks), Benchmark(options));
  distx::spawn(distx::threads(options.ranks, std::chrono::minutes(10)),
               [&](Connector& connector) { benchmarks[static_cast<std::size_t>(connector.rank())].run(connector); });
}
