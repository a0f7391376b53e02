// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "checkpoint_flags.hpp"

#include <csignal>

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

void CheckpointFlags::check() const {
  if (directory.empty() || resume) return;
  if (const auto newest = distx::checkpoint::latest(directory))
    throw distx::CheckpointError("--checkpoint " + directory + " has the checkpoint " + newest->filename().string() +
                                 ": add --resume, or choose another directory");
}

void CheckpointFlags::note_termination() {
  std::signal(SIGTERM, [](int) { sigterm_received = 1; });
}
std::int32_t CheckpointFlags::terminated() noexcept { return sigterm_received; }

}  // namespace examples
