// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <filesystem>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::checkpoint {

/// The tensors of a checkpoint that `consolidate` writes.
enum class Consolidated { weights, everything };

/// Writes the weights of a checkpoint, or everything, into one plain safetensors file, whole and without sharding
/// information. Local: one process calls it. It holds no tensor in memory.
///
/// @param folder  of a checkpoint, such as `latest(directory)` returns it
/// @param path  of the file, which must not exist
/// @throws CheckpointError if the checkpoint is incomplete or damaged, or the file exists or cannot be written
/// @code
/// distx::checkpoint::consolidate(*distx::checkpoint::latest("checkpoints"), "model.safetensors");
/// @endcode
void consolidate(const std::filesystem::path& folder, const std::filesystem::path& path,
                 Consolidated which = Consolidated::weights);

}  // namespace distx::inline DISTX_ABI::checkpoint
