// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A job that attack_files.py kills, or lets share its directory with others. Its ranks are threads.
//
//   saver save DIRECTORY RANKS STEPS KEEP STALE_SECONDS JOB sync|async [resume]   saves after each of STEPS steps
//   saver check FOLDER…                                                           loads checkpoints
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include <distx/checkpoint.hpp>
#include <distx/distx.hpp>

namespace {

using Training = distx::DataParallel<distx::ZeRO<2>>;

/// A model whose weights say how many steps it has made, and which job has begun it.
struct Model {
  explicit Model(float job) {
    parameters.emplace_back("steps", 20'000);
    parameters.emplace_back(
        "job", 5'000, [job](distx::Span<float> values) { std::fill(values.begin(), values.end(), job); },
        distx::ParameterOptions{.trainable = false});
  }
  /// Whether all weights are those of one job after this step.
  [[nodiscard]] bool is_of(std::uint64_t step) const {
    const auto steps = parameters[0].value(), job = parameters[1].value();
    return std::all_of(steps.begin(), steps.end(), [&](float value) { return value == static_cast<float>(step); }) &&
           std::all_of(job.begin(), job.end(), [&](float value) { return value == job[0] && value != 0; });
  }
  std::vector<distx::Parameter<float>> parameters;
};

void save(int ranks, const std::string& directory, std::uint64_t steps, const distx::checkpoint::SaveOptions& base,
          float job, bool async, bool resume) {
  distx::spawn(distx::threads(ranks), [&](distx::ThreadConnector& connector) {
    distx::ThreadCommunicator comm(connector);
    const auto print = [&](const char* what, std::uint64_t step, const char* message = "") {
      if (comm.rank() == 0) std::printf("%s %llu %s\n", what, static_cast<unsigned long long>(step), message);
    };
    Model model(job);
    Training training(comm, model.parameters, distx::SGD{});
    std::uint64_t step = 0;
    if (const auto newest = distx::checkpoint::latest(directory); resume && newest) {
      step = distx::checkpoint::load(*newest, training).step;
      print(model.is_of(step) ? "resumed" : "wrong", step);
    }
    for (const auto last = step + steps; step < last;) {
      for (auto& gradient : model.parameters[0].gradient()) gradient = -1;
      training.ready(model.parameters[0]);
      training.step({.learning_rate = 1});
      auto options = base;
      options.step = ++step;
      try {
        if (async)
          distx::checkpoint::save_async(directory, training, options).finish();
        else
          distx::checkpoint::save(directory, training, options);
        print("saved", step);
      } catch (const distx::CheckpointError& error) {
        print("refused", step, error.what());
      }
    }
  });
}

void check(const char* folder) {
  distx::SelfConnector self;
  distx::SerialCommunicator comm(self);
  Model model(0);
  Training training(comm, model.parameters, distx::SGD{});
  const auto step = distx::checkpoint::load(folder, training).step;
  std::printf("%s %llu\n", model.is_of(step) ? "loaded" : "wrong", static_cast<unsigned long long>(step));
}

}  // namespace

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto number = [&](int index) { return std::strtoull(argv[index], nullptr, 10); };
  if (argc >= 9 && std::string_view(argv[1]) == "save") {
    const distx::checkpoint::SaveOptions options{.keep = number(5), .stale_after = std::chrono::seconds(number(6))};
    save(static_cast<int>(number(3)), argv[2], number(4), options, static_cast<float>(number(7)),
         std::string_view(argv[8]) == "async", argc == 10);
  } else {
    for (int i = 2; i < argc; ++i) check(argv[i]);
  }
} catch (const distx::Error& error) {
  std::printf("ended by %s\n", error.what());
  return 1;
}
