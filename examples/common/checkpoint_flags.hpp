// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <string>

#include <distx/checkpoint.hpp>

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

  /// Loads the newest checkpoint, if there is one and it is asked for. Collective.
  /// @return the number of steps that were made before it
  template <class Training>
  [[nodiscard]] std::uint64_t begin(Training& training) const {
    const auto newest = resume ? distx::checkpoint::latest(directory) : std::nullopt;
    return newest ? training.load(*newest).step : 0;
  }
  /// Saves the training where it is due after `steps` of `all` steps. Collective.
  template <class Training>
  void after_step(Training& training, std::uint64_t steps, std::uint64_t all) const {
    if (directory.empty() || (steps != all && (every == 0 || steps % every != 0))) return;
    training.save(directory, {.step = steps, .keep = 2});
  }
};

}  // namespace examples
