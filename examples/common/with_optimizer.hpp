// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <distx/training.hpp>

#include "training_flags.hpp"

namespace examples {

/// Calls f(optimizer) with the one that the flags choose.
template <class F>
auto with_optimizer(const TrainingFlags& flags, F&& f) {
  if (flags.optimizer == "sgd") return f(distx::SGD{.momentum = 0.9, .weight_decay = 1e-4});
  if (flags.optimizer == "lamb") return f(distx::LAMB{.beta2 = 0.99, .weight_decay = 0.01});
  if (flags.optimizer == "muon")
    return f(distx::Mixed{distx::Muon{.weight_decay = 0.01}, distx::AdamW{.beta2 = 0.99, .weight_decay = 0.01}});
  return f(distx::AdamW{.beta2 = 0.99, .weight_decay = 0.01});
}

inline distx::DataParallelOptions options_of(const TrainingFlags& flags) {
  return {.bucket_bytes = flags.bucket_kib << 10,
          .stage = flags.zero,
          .clip_norm = flags.clip,
          .map_weights = !flags.gather_weights,
          .state_folder = flags.state_folder,
          .offload = flags.offload};
}

}  // namespace examples
