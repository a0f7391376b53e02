// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/checkpoint/detail/shard_index.hpp"

namespace distx::checkpoint {

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
inline void consolidate(const std::filesystem::path& folder, const std::filesystem::path& path,
                        Consolidated which = Consolidated::weights) {
  const auto manifest = detail::read_manifest(folder);
  const detail::ShardIndex index(folder, manifest);
  index.verify(0, 1);
  std::vector<SafetensorsTensor> tensors;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (which == Consolidated::weights && name.starts_with(detail::optimizer_prefix)) continue;
    const detail::FileType* const type = detail::find_file_type(tensor.type);
    const auto elements = detail::elements_of(tensor.shape);
    const auto bytes = type != nullptr && elements ? detail::bytes_of(*type, *elements) : std::nullopt;
    if (!bytes)
      throw CheckpointError("'" + folder.string() + "' describes tensor '" + name +
                                "' with an invalid type or shape; use an older checkpoint",
                            {.operation = "consolidate"});
    tensors.push_back({name, tensor.type, tensor.shape, 0, *bytes});
  }
  detail::sort_for_alignment(tensors);
  const std::string header = detail::make_header(tensors, {{"format", "pt"}});
  detail::OutputFile file(path);
  file.write(std::as_bytes(std::span(header)));
  for (const auto& tensor : tensors) {
    const std::size_t element_bytes = detail::find_file_type(tensor.type)->bits / 8;
    for (const auto& run : index.runs_of(tensor.name, tensor.shape, element_bytes, 0, tensor.elements()))
      file.write(run.bytes);
  }
  file.finish();
}

}  // namespace distx::checkpoint
