// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <string>

#include <distx/checkpoint.hpp>
#include <distx/comm/any_communicator.hpp>
#include <distx/comm/reductions.hpp>

namespace CLI {
class App;
}

namespace examples {

/// The flags of a training program that saves checkpoints.
struct CheckpointFlags {
  std::string directory;
  std::uint64_t every = 0;
  bool resume = false;

  void describe(CLI::App& app);

  /// @throws distx::CheckpointError for a directory with checkpoints that are not to be resumed
  void check() const;

  /// Loads the newest checkpoint, if there is one and it is asked for; from here on SIGTERM is noted. Collective.
  /// @return the number of steps that were made before it
  template <class Training>
  [[nodiscard]] std::uint64_t begin(Training& training) const {
    if (!directory.empty()) note_termination();
    const auto newest = resume ? distx::checkpoint::latest(directory) : std::nullopt;
    return newest ? training.load(*newest).step : 0;
  }
  /// Saves the training where it is due after `steps` of `all` steps, or where a rank has received SIGTERM. Collective.
  /// @return whether the program is to stop now
  template <class Training>
  [[nodiscard]] bool after_step(distx::AnyCommunicator<>& comm, Training& training, std::uint64_t steps,
                                std::uint64_t all) const {
    if (directory.empty()) return false;
    std::int32_t stop = terminated();
    distx::all_reduce(comm, stop, distx::max);
    if (stop != 0 || steps == all || (every > 0 && steps % every == 0))
      training.save(directory, {.step = steps, .keep = 2});
    return stop != 0 && steps != all;
  }

 private:
  /// Makes SIGTERM be noted instead of ending the process.
  static void note_termination();
  /// Returns 1 if SIGTERM was received, else 0.
  [[nodiscard]] static std::int32_t terminated() noexcept;
};

}  // namespace examples
