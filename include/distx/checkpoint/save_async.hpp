// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/checkpoint/training.hpp"

namespace distx::inline DISTX_ABI::checkpoint {

namespace detail {

template <MemorySpace Space>
struct SaveWork;

}  // namespace detail

/// A checkpoint that is being written; returned by `save_async`. Move-only, and may be empty.
///
/// The checkpoint exists after `finish`. The destructor and an assignment wait for this rank's files; without `finish`,
/// rank 0's removes them.
template <MemorySpace Space = Host>
class PendingSave {
 public:
  PendingSave() = default;
  PendingSave(PendingSave&&) noexcept = default;
  PendingSave& operator=(PendingSave&&) noexcept = default;
  /// Constructed by `save_async`.
  explicit PendingSave(std::shared_ptr<detail::SaveWork<Space>> work) noexcept : work_(std::move(work)) {}

  /// Waits until all ranks have written their files, and completes the checkpoint. Collective over the training's
  /// ranks, which may be in a later step by then; not between the first `ready` and `step`. Does nothing if empty.
  ///
  /// @return the folder of the checkpoint; an empty path if there was nothing to finish
  /// @throws CheckpointError on every rank if a rank cannot write, files have disappeared, or another job has saved the
  ///   step meanwhile; the PendingSave is empty then, and the training can continue
  std::filesystem::path finish(const std::source_location& location = std::source_location::current());
  /// Returns whether there is a save to finish.
  [[nodiscard]] bool pending() const noexcept { return work_ != nullptr; }

 private:
  std::shared_ptr<detail::SaveWork<Space>> work_;  // made here
};

namespace detail {

template <MemorySpace Space>
PendingSave<Space> save_async(const std::filesystem::path& directory, const SavedTraining<Space>& training,
                              const SaveOptions& options, const std::source_location& location);

}  // namespace detail

/// Starts to save a training like `save`, and returns once this rank's share of the state is copied: a thread writes
/// the copy while the training continues. Collective over the training's ranks, between steps.
///
/// The thread does not communicate. The result's `finish` completes the checkpoint, and reports the errors of writing.
///
/// @return to be finished before the next save, and before the training ends
/// @throws CheckpointError, InvalidState and MismatchError like `save`, except for errors of writing
/// @code
/// distx::checkpoint::PendingSave<> pending;
/// ...
/// pending.finish();
/// pending = distx::checkpoint::save_async("checkpoints", training, {.step = step});
/// @endcode
template <detail::Saved Training>
[[nodiscard]] auto save_async(const std::filesystem::path& directory, Training& training, const SaveOptions& options,
                              const std::source_location& location = std::source_location::current())
    -> PendingSave<typename Training::space> {
  return detail::save_async(directory, detail::as_saved(training), options, location);
}

}  // namespace distx::inline DISTX_ABI::checkpoint
