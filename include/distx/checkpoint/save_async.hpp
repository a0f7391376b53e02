// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <memory>
#include <thread>

#include "distx/checkpoint/training.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/core/detail/start_thread.hpp"

namespace distx::checkpoint {

namespace detail {

/// The thread of a `save_async` and its data, which are destroyed after the thread has ended.
template <MemorySpace Space>
struct SaveWork {
  SaveWork() = default;
  SaveWork(SaveWork&&) = delete;

  AnyCommunicator<Space>* comm = nullptr;
  Saving saving{};
  std::shared_ptr<Snapshot> snapshot;
  std::string described;
  std::exception_ptr error;
  std::jthread thread;  // last: joined before its data is destroyed
};

}  // namespace detail

/// A checkpoint that is being written; returned by `save_async`. Move-only, and may be empty.
///
/// The checkpoint exists after `finish`. The destructor and an assignment wait for this rank's files; without `finish`,
/// rank 0's removes them.
template <MemorySpace Space = Host>
class PendingSave {
 public:
  PendingSave() = default;
  /// Constructed by `save_async`.
  explicit PendingSave(std::unique_ptr<detail::SaveWork<Space>, distx::detail::DeleteHere> work) noexcept
      : work_(std::move(work)) {}

  /// Waits until all ranks have written their files, and completes the checkpoint. Collective over the training's
  /// ranks, which may be in a later step by then; not between the first `ready` and `step`. Does nothing if empty.
  ///
  /// @return the folder of the checkpoint; an empty path if there was nothing to finish
  /// @throws CheckpointError on every rank if a rank cannot write, files have disappeared, or another job has saved the
  ///   step meanwhile; the PendingSave is empty then, and the training can continue
  std::filesystem::path finish(const std::source_location& location = std::source_location::current()) {
    if (work_ == nullptr) return {};
    work_.get_deleter().made.check("this save", {.operation = "finish", .location = location});
    const auto work = std::exchange(work_, nullptr);
    auto& comm = *work->comm;
    const ErrorContext context{"finish", comm.backend(), comm.rank(), comm.size(), location};
    work->thread.join();
    detail::on_every_rank(comm, context, [&] {
      if (work->error != nullptr) std::rethrow_exception(work->error);
    });
    return detail::finish(work->saving, work->described, comm, context);
  }
  /// Returns whether there is a save to finish.
  [[nodiscard]] bool pending() const noexcept { return work_ != nullptr; }

 private:
  std::unique_ptr<detail::SaveWork<Space>, distx::detail::DeleteHere> work_;
};

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
  auto& comm = detail::TrainingAccess::communicator(training);
  const ErrorContext context{"save_async", comm.backend(), comm.rank(), comm.size(), location};
  std::unique_ptr<detail::SaveWork<typename Training::space>, distx::detail::DeleteHere> work(
      new detail::SaveWork<typename Training::space>);
  work->comm = &comm;
  auto& kept = detail::memory_of(training).snapshot;
  if (kept == nullptr || kept.use_count() > 1) kept = std::make_shared<detail::Snapshot>();
  work->snapshot = kept;
  const auto state = detail::start(work->saving, directory, training, options, context);
  detail::on_every_rank(comm, context, [&, all = work.get()] {
    all->saving.open();
    detail::collect(all->saving, state, detail::TrainingAccess::stream(training), all->snapshot.get());
    const auto write = [all] {
      try {
        all->described = all->saving.write();
      } catch (...) {
        all->error = std::current_exception();
      }
    };
    all->thread = distx::detail::start_thread(write, context);
  });
  return PendingSave<typename Training::space>(std::move(work));
}

}  // namespace distx::checkpoint
