// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "training_flags.hpp"

#include <algorithm>
#include <cmath>

#include <CLI/CLI.hpp>

#include <distx/core/error.hpp>

namespace examples {

void TrainingFlags::describe(CLI::App& app) {
  const CLI::Range count(std::size_t{1}, std::size_t{1000000});
  app.add_option("--zero", zero, "ZeRO stage, 0 to 3")->check(CLI::IsMember({0, 1, 2, 3}))->capture_default_str();
  app.add_option("--precision", precision, "of the weights: f32, or bf16 with f32 master weights")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  app.add_option(
         "--compress", compress,
         "gradients: none, in bf16 or int8, or as matrices of rank 4 by powersgd, after 30 exact reductions; or "
         "weights-int8: the weights that --zero 3 gathers")
      ->check(CLI::IsMember({"none", "bf16", "int8", "powersgd", "weights-int8"}))
      ->capture_default_str();
  app.add_option("--optimizer", optimizer, "adamw, muon, lamb or sgd")
      ->check(CLI::IsMember({"adamw", "muon", "lamb", "sgd"}))
      ->capture_default_str();
  app.add_option("--accumulate", accumulate, "micro-batches per step of each rank")
      ->check(count)
      ->capture_default_str();
  app.add_option("--clip", clip, "upper limit of the norm of all gradients [default: no clipping]");
  app.add_option("--learning-rate", learning_rate,
                 "peak; decays to zero along a cosine [default: depends on the optimizer]");
  app.add_option("--bucket-kib", bucket_kib, "size of the gradient buckets; 0: one bucket per parameter")
      ->check(CLI::Range(std::size_t{0}, std::size_t{1} << 30))
      ->capture_default_str();
  app.add_flag("--gather-weights", gather_weights,
               "at stage 3, gather weights also where ranks share memory and could map them");
  app.add_option("--state-folder", state_folder,
                 "folder for files of optimizer states and master weights [default: they are in memory]");
}

void TrainingFlags::check(const std::string& batch_flag, std::size_t batch) const {
  if (batch % accumulate != 0)
    throw distx::DataError(batch_flag + " " + std::to_string(batch) + " is not divisible by --accumulate " +
                           std::to_string(accumulate) + ": choose a multiple");
  if (!std::isfinite(rate()) || rate() < 0)
    throw distx::InvalidArgument("invalid learning rate " + std::to_string(rate()) +
                                 ": give a --learning-rate that is finite and at least 0");
  if (reproducible && accumulate != 1)
    throw distx::InvalidArgument("--reproducible does not support --accumulate: omit it");
  if (compress != "none" && (short_weights() || reproducible))
    throw distx::InvalidArgument("--compress supports neither --precision bf16 nor --reproducible: omit them");
  if (compress == "weights-int8" && (zero != 3 || accumulate != 1))
    throw distx::InvalidArgument("--compress weights-int8 needs --zero 3, and no --accumulate");
  if (!(clip > 0))
    throw distx::InvalidArgument("invalid clipping norm " + std::to_string(clip) + ": give --clip a number above 0");
}

void TrainingFlags::split_step(int ranks, std::size_t& batch) {
  if (!reproducible) return;
  accumulate = static_cast<std::size_t>(std::max(1, virtual_ranks / ranks));
  batch *= accumulate;
}

}  // namespace examples
