// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
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
///
/// In a pipeline, the ranks with the same stages save them together, in a folder of the directory.
struct CheckpointFlags {
  std::string directory;
  std::uint64_t every = 0;
  bool resume = false;
  int stage = 0, stages = 1;  ///< this rank's index in a pipeline, and the pipeline's length
  bool leads_stage = true;    ///< whether this rank is the first one of those with the same stages

  void describe(CLI::App& app);

  /// @param pipeline  the length of the pipeline, or 1 without one
  /// @throws distx::CheckpointError for a directory with checkpoints that are not to be resumed, or that pipelines of
  ///   another length have saved
  void check(int pipeline = 1) const;

  /// Where a run begins.
  struct Start {
    std::uint64_t steps = 0;  ///< made before it
    distx::DistributedSampler::Position data;
  };
  /// Loads the newest checkpoint that all stages have, if there is one and it is asked for; from here on SIGTERM is
  /// noted. Collective.
  /// @throws distx::CheckpointError on every rank if the stages' checkpoints differ by more than one interrupted save,
  ///   or have the same step by different runs
  template <class Training>
  [[nodiscard]] Start begin(distx::AnyCommunicator<>& comm, Training& training,
                            const distx::DistributedSampler& sampler) const {
    if (!directory.empty()) note_termination();
    const auto newest = resume ? newest_of_all(comm) : std::nullopt;
    if (!newest) {
      if (resume) set_aside_later(comm, 0);
      return {0, sampler.position(0)};
    }
    const auto loaded = training.load(*newest);
    check_same_save(comm, loaded);
    set_aside_later(comm, loaded.step);
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
      training.save(folder(), {.step = steps, .notes = {{"data", data.to_string()}, {"save", drawn(comm)}}, .keep = 2});
    return stop != 0 && steps != all;
  }

 private:
  /// Returns where this rank's checkpoints are.
  [[nodiscard]] std::filesystem::path folder() const;
  /// Returns this rank's folder of the newest checkpoint that all stages have. Collective.
  [[nodiscard]] std::optional<std::filesystem::path> newest_of_all(distx::AnyCommunicator<>& comm) const;
  /// Renames a later checkpoint, which a run that ended between the stages' saves has left. Collective.
  void set_aside_later(distx::AnyCommunicator<>& comm, std::uint64_t step) const;
  /// @throws distx::CheckpointError on every rank unless one call of `after_step` saved all stages. Collective
  void check_same_save(distx::AnyCommunicator<>& comm, const distx::checkpoint::Loaded& loaded) const;
  /// Returns a random number, the same on every rank. Collective.
  [[nodiscard]] static std::string drawn(distx::AnyCommunicator<>& comm);
  /// Makes SIGTERM be noted instead of ending the process.
  static void note_termination();
  /// Returns 1 if SIGTERM was received, else 0.
  [[nodiscard]] static std::int32_t terminated() noexcept;
};

}  // namespace examples
