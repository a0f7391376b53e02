// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <string>

#include <distx/checkpoint.hpp>
#include <distx/comm/any_communicator.hpp>
#include <distx/comm/reductions.hpp>
#include <distx/training.hpp>

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

  /// Where a run begins.
  struct Start {
    std::uint64_t steps = 0;  ///< made before it
    distx::DistributedSampler::Position data;
  };
  /// Loads the newest checkpoint, if there is one and it is asked for; from here on SIGTERM is noted. Collective.
  template <class Training>
  [[nodiscard]] Start begin(Training& training, const distx::DistributedSampler& sampler) const {
    if (!directory.empty()) note_termination();
    const auto newest = resume ? distx::checkpoint::latest(directory) : std::nullopt;
    if (!newest) return {0, sampler.position(0)};
    const auto loaded = training.load(*newest);
    const auto data = loaded.notes.find("data");
    if (data == loaded.notes.end())
      throw distx::CheckpointError("'" + newest->string() +
                                   "' has no position in the data: continue without --resume, in another directory");
    return {loaded.step, distx::DistributedSampler::Position::from_string(data->second)};
  }
  /// Saves the training where it is due after `steps` of `all` steps, or where a rank has received SIGTERM. Collective.
  /// @param data  the position after these steps
  /// @return whether the program is to stop now
  template <class Training>
  [[nodiscard]] bool after_step(distx::AnyCommunicator<>& comm, Training& training, std::uint64_t steps,
                                std::uint64_t all, const distx::DistributedSampler::Position& data) const {
    if (directory.empty()) return false;
    std::int32_t stop = terminated();
    distx::all_reduce(comm, stop, distx::max);
    if (stop != 0 || steps == all || (every > 0 && steps % every == 0))
      training.save(directory, {.step = steps, .notes = {{"data", data.to_string()}}, .keep = 2});
    return stop != 0 && steps != all;
  }

 private:
  /// Makes SIGTERM be noted instead of ending the process.
  static void note_termination();
  /// Returns 1 if SIGTERM was received, else 0.
  [[nodiscard]] static std::int32_t terminated() noexcept;
};

}  // namespace examples
