// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/checkpoint/detail/folders.hpp"
#include "distx/checkpoint/detail/shard_copies.hpp"
#include "distx/checkpoint/detail/shard_writer.hpp"
#include "distx/checkpoint/detail/state_of.hpp"
#include "distx/checkpoint/detail/together.hpp"
#include "distx/checkpoint/save_async.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/core/detail/start_thread.hpp"
#include "distx/parallel/detail/engine/engine_interface.hpp"

namespace distx::inline DISTX_ABI::checkpoint {

namespace detail {

/// State of a training that its saves share.
struct SaveMemory {
  std::string job;  // in the names of its folders; the same on every rank, as rank 0 may be lost
  std::shared_ptr<Snapshot> snapshot;
  std::shared_ptr<Unfinished> unfinished = std::make_shared<Unfinished>();  // on rank 0
};
template <MemorySpace Space>
[[nodiscard]] SaveMemory& memory_of(distx::detail::TrainingCalls<Space>& engine) {
  auto& kept = engine.checkpoint_memory();
  if (kept == nullptr) kept = std::make_shared<SaveMemory>();
  return *static_cast<SaveMemory*>(kept.get());
}

/// A save: what its parts on one rank pass on.
struct Saving {
  Saving() = default;
  Saving(Saving&&) = delete;
  /// Removes the folder on rank 0 if it has not been published; not in a process that was forked meanwhile.
  ~Saving() {
    if (made.empty() || !process.is_here()) return;
    unfinished->erase(made.filename().string());
    try {
      if (const auto left = open_folder(made)) remove_folder(left, made);
    } catch (const std::exception&) {  // a later save removes it
    }
  }

  std::filesystem::path directory;  // absolute
  std::filesystem::path unpublished, published;
  std::filesystem::path made;    // `unpublished` on rank 0 until it is published; `unfinished` has its name
  std::filesystem::path result;  // `published` in the user's directory
  distx::detail::MadeHere process;
  Descriptor folder;
  std::string job;
  std::shared_ptr<Unfinished> unfinished;  // those of the training
  Manifest manifest;                       // without files
  SaveOptions options;
  int rank = 0;
  ShardWriter writer{};
  std::map<std::string, std::uint64_t> updates{};  // of the parameters whose first elements this rank saves

  /// Opens the folder that rank 0 has made.
  /// @throws CheckpointError
  void open() {
    folder = open_folder(unpublished);
    if (!folder && errno == ENOENT)
      throw CheckpointError("'" + unpublished.string() +
                                "' is absent, and rank 0 has just made it; pass the same directory on every rank, on "
                                "a file system that all of them share",
                            {.operation = "save"}, ENOENT);
    if (!folder) fail("open", unpublished, errno);
  }
  /// Writes this rank's files.
  /// @return their description, and the updates
  /// @throws CheckpointError
  [[nodiscard]] std::string write() {
    const auto files = writer.write(folder, unpublished, rank, manifest.step);
    return nlohmann::json{{"files", json_of(files)}, {"updates", updates}, {"notes", options.rank_notes}}.dump();
  }
  /// Writes the manifest and publishes the folder, on rank 0.
  /// @throws CheckpointError if files are absent, before anything is published or removed
  void publish() {
    const auto check = [](const std::filesystem::path& path, const std::string& what) {
      if (!what.empty())
        throw CheckpointError("'" + path.string() + "' " + what +
                                  " after every rank has written its files; end other processes that save or remove "
                                  "files there, and use a file system that all ranks share",
                              {.operation = "save"});
    };
    check(unpublished, lacks(unpublished, manifest));
    manifest.saved_by = this_process();
    const std::string text = to_text(manifest);
    NewFile file(folder.native_handle(), manifest_name, unpublished / manifest_name);
    file.write(std::as_bytes(std::span(text)));
    file.finish();
    sync(folder, unpublished);
    detail::publish(folder, unpublished, published);
    unfinished->erase(made.filename().string());
    made.clear();
    sync_folder(directory);
    check(published, is_same(folder, published) ? lacks(published, manifest) : "is not this save's folder");
    if (options.keep > 0) remove_older(published, options.keep, job, *unfinished, options.stale_after);
  }
};

/// @throws CheckpointError for notes that are not UTF-8
inline void check_notes(const SaveOptions& options) {
  for (const auto* notes : {&options.notes, &options.rank_notes}) try {
      static_cast<void>(nlohmann::json(*notes).dump());
    } catch (const nlohmann::json::exception&) {
      throw CheckpointError("a note is not UTF-8; write bytes as text, such as hexadecimal numbers",
                            {.operation = "save"});
    }
}

/// Makes the folder, under a name that rank 0 draws. Collective.
/// @return the state to be saved
template <MemorySpace Space>
[[nodiscard]] TrainingState<Space> start(Saving& saving, const std::filesystem::path& directory,
                                         const SavedTraining<Space>& training, const SaveOptions& options,
                                         const ErrorContext& context) {
  auto& comm = training.comm;
  training.guard([&] { training.engine.check_savable(context.location); });
  auto state = state_of(training, context.location);
  const auto steps = gather_numbers(comm, options.step, context.location);
  for (std::size_t rank = 0; rank < steps.size(); ++rank)
    if (steps[rank] != steps[0])
      throw MismatchError("rank 0 saves step " + std::to_string(steps[0]) + ", and rank " + std::to_string(rank) +
                              " step " + std::to_string(steps[rank]) + "; pass the same .step on every rank",
                          context);
  std::string names;
  for (const auto& array : state.arrays) names += array.name + '\n';
  check_equal(comm, checksum(names), "save different arrays; make the same ExponentialAverages on every rank", context);
  const int stage = training.engine.policies().stage;
  saving.manifest = {options.step, comm.size(), stage, options.notes, {}, state.counters, {}, {}};
  saving.options = options;
  saving.rank = comm.rank();
  auto& memory = memory_of(training.engine);
  auto& job = memory.job;
  saving.unfinished = memory.unfinished;
  std::string drawn;  // the folder's name
  on_every_rank(comm, context, [&] {
    check_notes(options);
    saving.directory = std::filesystem::absolute(directory.empty() ? "." : directory);
    saving.published = saving.directory / folder_name(options.step);
    saving.result = directory / folder_name(options.step);
    if (comm.rank() != 0) return;
    if (job.empty()) job = draw_name();
    drawn = unpublished_name(options.step, job);
    std::error_code error;
    std::filesystem::create_directories(saving.directory, error);
    if (error) fail("create", saving.directory, error.value());
    check_free(saving.published);
    const auto path = saving.directory / drawn;
    if (::mkdir(path.c_str(), 0777) != 0) fail("create", path, errno);
    saving.made = path;
    saving.unfinished->insert(drawn);
  });
  drawn = gather_texts(comm, drawn, context.location)[0];
  saving.unpublished = saving.directory / drawn;
  saving.job = job = job_of(drawn);
  return state;
}
/// Adds this rank's share of a state to the files; borrowed where the host can read it, unless there is a snapshot.
template <MemorySpace Space>
void collect(Saving& saving, const TrainingState<Space>& state, typename Space::stream after,
             Snapshot* snapshot = nullptr) {
  const auto arrays = file_arrays(state);
  saving.writer.template add<Space>(arrays, after, snapshot);
  std::set<std::string_view> first;
  for (const auto& array : arrays) {
    saving.manifest.tensors[array.name] = {std::string(array.type), array.shape};
    if (array.saves_first()) first.insert(array.name);
  }
  for (const auto& [name, updates] : state.counters.updates) {
    if (!first.contains(name)) continue;
    saving.updates[name] = updates;
    saving.writer.add_scalar("optim.state." + name + ".step", static_cast<float>(updates));  // for PyTorch
  }
}
/// Publishes the checkpoint. Collective.
/// @param described  what `write` has returned on this rank
/// @return the folder
template <MemorySpace Space>
std::filesystem::path finish(Saving& saving, const std::string& described, AnyCommunicator<Space>& comm,
                             const ErrorContext& context) {
  const auto ranks = gather_texts(comm, described, context.location);
  on_every_rank(comm, context, [&] {
    if (comm.rank() != 0) return;
    auto& updates = saving.manifest.counters.updates;
    updates.clear();
    auto& notes = saving.manifest.rank_notes;
    for (const auto& text : ranks) {
      const auto json = nlohmann::json::parse(text);
      add_files(saving.manifest.files, json.at("files"));
      json.at("notes").get_to(notes.emplace_back());
      for (const auto& [name, count] : json.at("updates").items()) {
        updates.emplace_back(name, 0);
        count.get_to(updates.back().second);
      }
    }
    if (std::all_of(notes.begin(), notes.end(), [](const auto& each) { return each.empty(); })) notes.clear();
    saving.publish();
  });
  return saving.result;
}

template <MemorySpace Space>
std::filesystem::path save(const std::filesystem::path& directory, const SavedTraining<Space>& training,
                           const SaveOptions& options, const std::source_location& location) {
  auto& comm = training.comm;
  const ErrorContext context{"save", comm.backend(), comm.rank(), comm.size(), location};
  Saving saving;
  const auto state = start(saving, directory, training, options, context);
  std::string described;
  on_every_rank(comm, context, [&] {
    saving.open();
    collect(saving, state, training.stream);
    described = saving.write();
  });
  return finish(saving, described, comm, context);
}

template <MemorySpace Space>
Loaded load(const std::filesystem::path& folder, const SavedTraining<Space>& training,
            const std::source_location& location) {
  auto& comm = training.comm;
  const ErrorContext context{"load", comm.backend(), comm.rank(), comm.size(), location};
  const auto after = training.stream;
  const auto state = state_of(training, location);
  Manifest manifest;
  std::optional<ShardIndex> index;
  std::optional<ShardCopies<Space>> copies;
  on_every_rank(comm, context, [&] {
    manifest = read_manifest(folder);
    index.emplace(folder, manifest);
    const auto arrays = file_arrays(state);
    index->compare(arrays, state.counters);
    copies.emplace(*index, arrays);
  });
  check_equal(
      comm, checksum(to_text(manifest)),
      "read different checkpoints, this rank from '" + folder.string() + "'; use a directory that all of them see",
      context);
  copies->share_checks(comm, location);
  on_every_rank(comm, context, [&] { copies->check_beforehand(*index); });
  std::exception_ptr damage;
  training.engine.restore(distx::detail::StepCall::load, manifest.counters, after, location, [&] {
    try {
      on_every_rank(comm, context, [&] { copies->make_copies(*index, after); });
    } catch (const CheckpointError&) {
      damage = std::current_exception();  // on every rank, which may load another checkpoint
    }
    return damage == nullptr;
  });
  if (damage != nullptr) std::rethrow_exception(damage);
  return {manifest.step, manifest.notes, manifest.ranks, manifest.rank_notes};
}

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

template <MemorySpace Space>
PendingSave<Space> save_async(const std::filesystem::path& directory, const SavedTraining<Space>& training,
                              const SaveOptions& options, const std::source_location& location) {
  auto& comm = training.comm;
  const ErrorContext context{"save_async", comm.backend(), comm.rank(), comm.size(), location};
  const auto work = distx::detail::make_here<SaveWork<Space>>();
  work->comm = &comm;
  auto& kept = memory_of(training.engine).snapshot;
  if (kept == nullptr || kept.use_count() > 1) kept = std::make_shared<Snapshot>();
  work->snapshot = kept;
  const auto state = start(work->saving, directory, training, options, context);
  on_every_rank(comm, context, [&, all = work.get()] {
    all->saving.open();
    collect(all->saving, state, training.stream, all->snapshot.get());
    const auto write = [all] {
      try {
        all->described = all->saving.write();
      } catch (...) {
        all->error = std::current_exception();
      }
    };
    all->thread = distx::detail::start_thread(write, context);
  });
  return PendingSave<Space>(work);
}

}  // namespace detail

template <MemorySpace Space>
std::filesystem::path PendingSave<Space>::finish(const std::source_location& location) {
  if (work_ == nullptr) return {};
  work_->saving.process.check("this save", {.operation = "finish", .location = location});
  const auto work = std::exchange(work_, nullptr);
  auto& comm = *work->comm;
  const ErrorContext context{"finish", comm.backend(), comm.rank(), comm.size(), location};
  work->thread.join();
  detail::on_every_rank(comm, context, [&] {
    if (work->error != nullptr) std::rethrow_exception(work->error);
  });
  return detail::finish(work->saving, work->described, comm, context);
}

}  // namespace distx::inline DISTX_ABI::checkpoint
