// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "distx/checkpoint/training.hpp"

namespace distx::inline DISTX_ABI::checkpoint {

/// The options of `load_weights`, the same on every rank: which tensors of a file become which weights.
struct WeightOptions {
  /// Returns the name that a weight or buffer of the training has in the file; an empty name keeps its values. By
  /// default the names are the same.
  std::function<std::string(const std::string& name)> rename{};
  /// Returns whether the file has a matrix of the training transposed. By default none is.
  std::function<bool(const std::string& name)> transposed{};
  bool ignore_others = false;  ///< the file may have tensors that the training does not
};

namespace detail {

template <MemorySpace Space>
void load_weights(const std::filesystem::path& path, const SavedTraining<Space>& training, const WeightOptions& options,
                  const std::source_location& location);

}  // namespace detail

/// Loads weights and buffers into a DataParallel or a MeshParallel, and nothing else: the optimizer's arrays and
/// counters keep their values. Collective over the training's ranks, between steps.
///
/// Each rank reads the byte ranges that it holds, also of a weight that a mesh shards. The tensor of a parameter with
/// `.rows` has the same number of rows and of elements, any other one the same number of elements. Types among float,
/// double, float16 and bfloat16 are converted; master weights receive the file's values before they are rounded to the
/// weights' type. Float weights and master weights are read from a checkpoint's master weights where it has them.
/// Everything is validated before the training changes. Weights that are converted, transposed or sharded by a mesh
/// take host memory for the largest of their shards.
///
/// @param path  a safetensors file; a folder of Hugging Face, with `model.safetensors` or its index; a folder of
///   PyTorch's distributed checkpoints in safetensors files; or of a checkpoint that `save` has made. Visible to every
///   rank
/// @throws CheckpointError on every rank if files are absent, incomplete or damaged; or if names, types or shapes
///   differ from the training's, with all differences; or if `.transposed` selects a weight that a mesh shards
/// @throws InvalidState during a step, or in a scope of `unshard`
/// @throws MismatchError on every rank if the ranks read different files
/// @code
/// const auto rename = [](const std::string& name) { return "transformer." + name; };
/// distx::checkpoint::load_weights("gpt2", training, {.rename = rename});
/// @endcode
template <detail::Saved Training>
void load_weights(const std::filesystem::path& path, Training& training, const WeightOptions& options = {},
                  const std::source_location& location = std::source_location::current()) {
  detail::load_weights(path, detail::as_saved(training), options, location);
}

}  // namespace distx::inline DISTX_ABI::checkpoint
