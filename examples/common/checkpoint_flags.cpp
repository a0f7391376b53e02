// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "checkpoint_flags.hpp"

#include <csignal>
#include <cstdio>
#include <random>
#include <string_view>

#include <CLI/CLI.hpp>

namespace examples {

namespace {

volatile std::sig_atomic_t sigterm_received = 0;

}  // namespace

void CheckpointFlags::describe(CLI::App& app) {
  auto* directory_option =
      app.add_option("--checkpoint", directory, "directory for checkpoints; the last two are kept");
  app.add_option("--every", every, "steps between checkpoints [default: one after the last step]")
      ->needs(directory_option)
      ->check(CLI::Range(1, 1000000000));
  app.add_flag("--resume", resume, "continue from the newest checkpoint, if there is one")->needs(directory_option);
}

void CheckpointFlags::check(int pipeline) const {
  if (directory.empty()) return;
  const auto check_one = [&](const std::filesystem::path& path, int length) {
    const auto newest = distx::checkpoint::latest(path);
    if (!newest) return;
    if (length != pipeline)
      throw distx::CheckpointError("--checkpoint " + directory + " has checkpoints of pipeline=" +
                                   std::to_string(length) + ", and this run has pipeline=" + std::to_string(pipeline) +
                                   ": continue with the same number, or choose another directory");
    if (!resume)
      throw distx::CheckpointError("--checkpoint " + directory + " has the checkpoint " + newest->filename().string() +
                                   ": add --resume, or choose another directory");
  };
  check_one(directory, 1);
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(directory, absent)) {
    int index = 0, length = 0;
    if (std::sscanf(entry.path().filename().c_str(), "pipeline-%d-of-%d", &index, &length) == 2)
      check_one(entry.path(), length);
  }
}

std::filesystem::path CheckpointFlags::folder() const {
  const std::filesystem::path all = directory;
  return stages == 1 ? all : all / ("pipeline-" + std::to_string(stage) + "-of-" + std::to_string(stages));
}

std::optional<std::filesystem::path> CheckpointFlags::newest_of_all(distx::AnyCommunicator<>& comm) const {
  if (stages == 1) return distx::checkpoint::latest(folder());
  using Found = std::optional<std::filesystem::path>;
  // The number in the folder's name, or 0 without a checkpoint.
  const auto step_of = [](const Found& path) {
    return path ? std::stoull(path->filename().string().substr(std::string_view("step-").size())) : 0;
  };
  const auto newest_before = [&](std::uint64_t step) { return distx::checkpoint::latest(folder(), step); };
  const Found newest = distx::checkpoint::latest(folder());
  Found common = newest;
  for (bool same = false; !same;) {
    std::uint64_t least = step_of(common), most = least;
    distx::all_reduce(comm, least, distx::min);
    distx::all_reduce(comm, most, distx::max);
    same = least == most;
    if (!same) common = newest_before(least + 1);
  }
  // Later checkpoints are those of one interrupted save if all are of one step.
  std::uint64_t last = step_of(newest);
  distx::all_reduce(comm, last, distx::max);
  const bool later = step_of(newest) > step_of(common);
  const bool several = step_of(newest) != last || step_of(newest_before(step_of(newest))) > step_of(common);
  std::int32_t lost = later && several ? 1 : 0;
  distx::all_reduce(comm, lost, distx::max);
  if (lost != 0)
    throw distx::CheckpointError("the stages' checkpoints in " + directory + " have " +
                                 (common ? "only step " + std::to_string(step_of(common)) : std::string("no step")) +
                                 " in common, and later ones of several steps: restore the folders that are absent, or "
                                 "move these away");
  return common;
}

void CheckpointFlags::set_aside_later(distx::AnyCommunicator<>& comm, std::uint64_t step) const {
  if (stages == 1) return;
  const auto newest = distx::checkpoint::latest(folder());
  const auto loaded = distx::checkpoint::latest(folder(), step + 1);
  distx::barrier(comm);  // all ranks have looked
  if (!leads_stage || newest == loaded) return;
  auto other = *newest;
  for (int i = 0; std::filesystem::exists(other); ++i) other = newest->string() + ".incomplete" + std::to_string(i);
  std::filesystem::rename(*newest, other);
  std::fprintf(stderr, "%s was not saved by all stages, and is now %s\n", newest->c_str(), other.filename().c_str());
}

void CheckpointFlags::check_same_save(distx::AnyCommunicator<>& comm, const distx::checkpoint::Loaded& loaded) const {
  if (stages == 1) return;
  const auto note = loaded.notes.find("save");
  std::uint64_t least = note == loaded.notes.end() ? 0 : std::stoull(note->second), most = least;
  distx::all_reduce(comm, least, distx::min);
  distx::all_reduce(comm, most, distx::max);
  if (least != most)
    throw distx::CheckpointError("the stages' checkpoints of step " + std::to_string(loaded.step) + " in " + directory +
                                 " are of different runs: restore those of one run, or continue from an older step by "
                                 "moving these away");
}

std::string CheckpointFlags::drawn(distx::AnyCommunicator<>& comm) {
  std::uint64_t number = std::random_device()();
  distx::broadcast(comm, number, 0);
  return std::to_string(number);
}

void CheckpointFlags::note_termination() {
  std::signal(SIGTERM, [](int) { sigterm_received = 1; });
}
std::int32_t CheckpointFlags::terminated() noexcept { return sigterm_received; }

}  // namespace examples
