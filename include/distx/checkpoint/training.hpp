// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "distx/checkpoint/detail/stale_after.hpp"
#include "distx/comm/any_communicator.hpp"
#include "distx/parallel/data_parallel.hpp"
#include "distx/parallel/detail/training_access.hpp"
#include "distx/parallel/training_state.hpp"

namespace distx::inline DISTX_ABI::checkpoint {

/// Options of `save` and `save_async`.
struct SaveOptions {
  std::uint64_t step = 0;  ///< names the checkpoint; the same on every rank
  /// Text that `load` returns, such as the epoch and the position in the data, in UTF-8; rank 0's is saved.
  std::map<std::string, std::string> notes{};
  /// Notes that differ between ranks, such as the state of a random generator as text; each rank's are saved.
  std::map<std::string, std::string> rank_notes{};
  /// Whole checkpoints to keep: this one and those of the steps before it. Older ones are removed, and what interrupted
  /// saves have left. 0: nothing is removed.
  std::size_t keep = 0;
  /// With `keep`: what another job has not published is removed once nothing in it has changed for this time; 0 if no
  /// other job saves to the directory.
  std::chrono::seconds stale_after = detail::default_stale_after;
};

/// The result of `load`.
struct Loaded {
  std::uint64_t step = 0;
  std::map<std::string, std::string> notes;
  int ranks = 0;  ///< that saved it
  /// The `rank_notes` of each rank that saved it; empty if none had any.
  std::vector<std::map<std::string, std::string>> rank_notes{};
};

namespace detail {

/// A DataParallel or MeshParallel.
template <class Training>
concept Saved = distx::detail::is_training<Training>;

/// A training as its checkpoints see it.
template <MemorySpace Space>
struct SavedTraining {
  distx::detail::TrainingCalls<Space>& engine;
  AnyCommunicator<Space>& comm;  ///< of all ranks
  typename Space::stream stream;
  /// Runs a check that the engine does not guard: an error revokes the communicators of a mesh.
  std::function<void(const std::function<void()>&)> guard;
};
template <Saved Training>
[[nodiscard]] auto as_saved(Training& training) -> SavedTraining<typename Training::space> {
  using Access = distx::detail::TrainingAccess;
  return {Access::engine(training), Access::communicator(training), Access::stream(training),
          [&training](const std::function<void()>& f) { Access::guard(training, f); }};
}

template <MemorySpace Space>
std::filesystem::path save(const std::filesystem::path& directory, const SavedTraining<Space>& training,
                           const SaveOptions& options, const std::source_location& location);
template <MemorySpace Space>
Loaded load(const std::filesystem::path& folder, const SavedTraining<Space>& training,
            const std::source_location& location);

}  // namespace detail

/// Returns the folder of the newest complete checkpoint in a directory, or nothing if there is none. Local.
/// @param before  ignores the checkpoints of this step and of later ones
/// @throws CheckpointError if the directory, or a checkpoint in it, exists and cannot be read
[[nodiscard]] std::optional<std::filesystem::path> latest(
    const std::filesystem::path& directory, std::uint64_t before = std::numeric_limits<std::uint64_t>::max());

/// Saves a DataParallel or a MeshParallel in a new folder `step-<number>` of `directory`. Collective over the
/// training's ranks, between steps; every rank writes its share of the state at the same time.
///
/// The shards are safetensors files in the form of PyTorch's distributed checkpoints, with the optimizer's arrays as
/// `optim.state.<parameter>.<array>`. They are written to a folder of a drawn name, which one rename publishes once all
/// of them are durable and rank 0 has seen them. A whole checkpoint is never replaced, and links in the directory are
/// not followed. Buffers are saved from rank 0. If it fails, earlier checkpoints are as they were, and the
/// training can continue.
///
/// @param directory  the same on every rank, and visible to all of them; made if it is absent
/// @return the folder of the checkpoint
/// @throws CheckpointError on every rank if the step is saved already, and it then names the process that saved it; if
///   a rank cannot write or has another directory; if files disappear; or if a note is not UTF-8
/// @throws InvalidState during a step, from its first gradient on, also between its micro-batches; or while an
///   ExponentialAverage is swapped in
/// @throws MismatchError on every rank if the steps or the averages differ
/// @code
/// distx::checkpoint::save("checkpoints", training, {.step = step, .keep = 3});
/// @endcode
template <detail::Saved Training>
std::filesystem::path save(const std::filesystem::path& directory, Training& training, const SaveOptions& options,
                           const std::source_location& location = std::source_location::current()) {
  return detail::save(directory, detail::as_saved(training), options, location);
}

/// Loads a checkpoint into a training of the same model and optimizer: weights, the optimizer's arrays, counters of
/// updates, the loss scale and the averages. Collective over the training's ranks, between steps.
///
/// The number of ranks, the mesh, the layouts of its weights, the stage and the buckets may differ from those that
/// saved it; a DataParallel loads what a MeshParallel has saved, and vice versa, if names, shapes and types are the
/// same. Each rank copies the byte ranges that it holds, and the ranks check the checksums of all data among them. On
/// the same number of ranks as saved it, with the same policies, the steps after it have the bits of a training that
/// was never interrupted.
///
/// Everything is validated before the training changes, except the checksums of tensors that a rank copies whole,
/// which it checks while it copies them. If one of these is wrong, the training is incomplete, and accepts nothing but
/// another `load`: each other call throws InvalidState.
///
/// @param folder  of a checkpoint, such as `latest(directory)` returns it; visible to every rank
/// @throws CheckpointError on every rank if the checkpoint is incomplete or damaged, with file and tensor; or if names,
///   types or shapes differ from the training's, with all differences
/// @throws InvalidState during a step, or in a scope of `unshard`
/// @throws MismatchError on every rank if the ranks read different checkpoints
template <detail::Saved Training>
Loaded load(const std::filesystem::path& folder, Training& training,
            const std::source_location& location = std::source_location::current()) {
  return detail::load(folder, detail::as_saved(training), location);
}

}  // namespace distx::inline DISTX_ABI::checkpoint
