// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/checkpoint/detail/folders.hpp"
#include "distx/checkpoint/detail/shard_copies.hpp"
#include "distx/checkpoint/detail/shard_writer.hpp"
#include "distx/checkpoint/detail/together.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/parallel/data_parallel.hpp"

namespace distx::checkpoint {

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

using distx::detail::TrainingAccess;

/// A DataParallel or MeshParallel.
template <class Training>
concept Saved = distx::detail::is_training<Training>;

/// Returns a training's state, after the work that the training has enqueued. Local.
template <Saved Training>
[[nodiscard]] TrainingState<typename Training::space> state_of(Training& training,
                                                               const std::source_location& location) {
  TrainingState<typename Training::space> state;
  TrainingAccess::guard(training, [&] {
    TrainingAccess::engine(training).ordered(TrainingAccess::stream(training),
                                             [&] { state = training.state(location); });
  });
  return state;
}

/// State of a training that its saves share.
struct SaveMemory {
  std::string job;  // in the names of its folders; the same on every rank, as rank 0 may be lost
  std::shared_ptr<Snapshot> snapshot;
};
template <Saved Training>
[[nodiscard]] SaveMemory& memory_of(Training& training) {
  auto& kept = TrainingAccess::engine(training).checkpoint_memory();
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
    try {
      if (const auto left = open_folder(made)) remove_folder(left, made);
    } catch (const std::exception&) {  // a later save removes it
    }
  }

  std::filesystem::path directory;  // absolute
  std::filesystem::path unpublished, published;
  std::filesystem::path made;    // `unpublished` on rank 0 until it is published
  std::filesystem::path result;  // `published` in the user's directory
  distx::detail::MadeHere process;
  Descriptor folder;
  std::string job;
  Manifest manifest;  // without files
  std::size_t keep = 0;
  std::chrono::seconds stale_after{};
  std::map<std::string, std::string> rank_notes;
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
    return nlohmann::json{{"files", json_of(files)}, {"updates", updates}, {"notes", rank_notes}}.dump();
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
    made.clear();
    sync_folder(directory);
    check(published, is_same(folder, published) ? lacks(published, manifest) : "is not this save's folder");
    if (keep > 0) remove_older(published, keep, job, stale_after);
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
template <Saved Training>
[[nodiscard]] TrainingState<typename Training::space> start(Saving& saving, const std::filesystem::path& directory,
                                                            Training& training, const SaveOptions& options,
                                                            const ErrorContext& context) {
  auto& comm = TrainingAccess::communicator(training);
  TrainingAccess::guard(training, [&] { TrainingAccess::engine(training).check_savable(context.location); });
  auto state = state_of(training, context.location);
  const auto steps = gather_numbers(comm, options.step, context.location);
  for (std::size_t rank = 0; rank < steps.size(); ++rank)
    if (steps[rank] != steps[0])
      throw MismatchError("rank 0 saves step " + std::to_string(steps[0]) + ", and rank " + std::to_string(rank) +
                              " step " + std::to_string(steps[rank]) + "; pass the same .step on every rank",
                          context);
  std::string names;
  for (const auto& array : state.arrays) names += array.name + '\n';
  const auto lists = gather_numbers(comm, checksum(names), context.location);
  for (std::size_t rank = 0; rank < lists.size(); ++rank)
    if (lists[rank] != lists[0])
      throw MismatchError("rank 0 and rank " + std::to_string(rank) +
                              " save different arrays; make the same ExponentialAverages on every rank",
                          context);
  const int stage = TrainingAccess::engine(training).policies().stage;
  saving.manifest = {options.step, comm.size(), stage, options.notes, {}, state.counters, {}, {}};
  saving.keep = options.keep;
  saving.stale_after = options.stale_after;
  saving.rank_notes = options.rank_notes;
  saving.rank = comm.rank();
  auto& job = memory_of(training).job;
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

}  // namespace detail

/// Returns the folder of the newest complete checkpoint in a directory, or nothing if there is none. Local.
/// @throws CheckpointError if the directory, or a checkpoint in it, exists and cannot be read
[[nodiscard]] inline std::optional<std::filesystem::path> latest(const std::filesystem::path& directory) {
  const auto all = detail::checkpoints_in(directory);
  if (all.empty()) return std::nullopt;
  return all.back();
}

/// Saves a DataParallel or a MeshParallel in a new folder `step-<number>` of `directory`. Collective over the
/// training's ranks, between steps; every rank writes its share of the state at the same time.
///
/// The shards are safetensors files in the form of PyTorch's distributed checkpoints, with the optimizer's arrays as
/// `optim.state.<parameter>.<array>`. They are written to a folder of a drawn name, which one rename publishes once all
/// of them are durable and rank 0 has seen them. A whole checkpoint is never replaced, and links in the directory are
/// not followed. Buffers are saved as rank 0 has them. If it fails, earlier checkpoints are as they were, and the
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
  auto& comm = detail::TrainingAccess::communicator(training);
  const ErrorContext context{"save", comm.backend(), comm.rank(), comm.size(), location};
  detail::Saving saving;
  const auto state = detail::start(saving, directory, training, options, context);
  std::string described;
  detail::on_every_rank(comm, context, [&] {
    saving.open();
    detail::collect(saving, state, detail::TrainingAccess::stream(training));
    described = saving.write();
  });
  return detail::finish(saving, described, comm, context);
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
  auto& comm = detail::TrainingAccess::communicator(training);
  const ErrorContext context{"load", comm.backend(), comm.rank(), comm.size(), location};
  using Space = typename Training::space;
  const auto after = detail::TrainingAccess::stream(training);
  const auto state = detail::state_of(training, location);
  detail::Manifest manifest;
  std::optional<detail::ShardIndex> index;
  std::optional<detail::ShardCopies<Space>> copies;
  detail::on_every_rank(comm, context, [&] {
    manifest = detail::read_manifest(folder);
    index.emplace(folder, manifest);
    const auto arrays = detail::file_arrays(state);
    index->compare(arrays, state.counters);
    copies.emplace(*index, arrays);
  });
  const auto read = detail::gather_numbers(comm, detail::checksum(detail::to_text(manifest)), location);
  for (std::size_t rank = 0; rank < read.size(); ++rank)
    if (read[rank] != read[0])
      throw MismatchError("rank 0 and rank " + std::to_string(rank) + " read different checkpoints, this rank from '" +
                              folder.string() + "'; use a directory that all of them see",
                          context);
  copies->share_checks(comm, location);
  detail::on_every_rank(comm, context, [&] { copies->check_beforehand(*index); });
  std::exception_ptr damage;
  detail::TrainingAccess::guard(training, [&] {
    auto& engine = detail::TrainingAccess::engine(training);
    engine.restore(distx::detail::StepCall::load, manifest.counters, after, location, [&] {
      try {
        detail::on_every_rank(comm, context, [&] { copies->make_copies(*index, after); });
      } catch (const CheckpointError&) {
        damage = std::current_exception();  // on every rank, which may load another checkpoint
      }
      return damage == nullptr;
    });
  });
  if (damage != nullptr) std::rethrow_exception(damage);
  return {manifest.step, manifest.notes, manifest.ranks, manifest.rank_notes};
}

}  // namespace distx::checkpoint
