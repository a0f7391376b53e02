// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/checkpoint/consolidate.hpp"
#include "distx/checkpoint/detail/file.hpp"
#include "distx/checkpoint/detail/folders.hpp"
#include "distx/checkpoint/detail/safetensors_header.hpp"
#include "distx/checkpoint/detail/shard_index.hpp"
#include "distx/checkpoint/safetensors.hpp"
#include "distx/checkpoint/training.hpp"
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::checkpoint {

DISTX_INLINE SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : path_(path.string()), map_(path) {
  const auto all = map_.bytes();
  std::uint64_t length = 0;
  if (all.size() < sizeof length)
    fail("has " + std::to_string(all.size()) + " bytes, too few for the length of a header");
  for (std::size_t i = sizeof length; i-- > 0;) length = length << 8 | std::to_integer<std::uint64_t>(all[i]);
  if (length > longest_header)
    fail("has a header of " + std::to_string(length) + " bytes, more than the format's " +
         std::to_string(longest_header));
  if (length > all.size() - sizeof length)
    fail("ends inside its header of " + std::to_string(length) + " bytes, after " + std::to_string(all.size()) +
         " bytes");
  data_ = all.subspan(sizeof length + static_cast<std::size_t>(length));
  const std::string_view text(reinterpret_cast<const char*>(all.data()) + sizeof length,
                              static_cast<std::size_t>(length));
  if (const auto wrong = detail::read_header(text, data_.size(), tensors_, metadata_); !wrong.empty()) fail(wrong);
}
DISTX_INLINE void SafetensorsFile::fail(const std::string& what) const {
  throw CheckpointError("'" + path_ + "' " + what + "; it is damaged or not a safetensors file: use another one",
                        {.operation = "checkpoint"});
}

DISTX_INLINE void write_safetensors(const std::filesystem::path& path, const std::vector<SafetensorsInput>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsTensor> heads;
  std::vector<const SafetensorsInput*> order;
  for (const auto& tensor : tensors) order.push_back(&tensor);
  detail::sort_for_alignment(order, [](const SafetensorsInput* tensor) -> const auto& { return *tensor; });
  for (const auto* tensor : order)
    heads.push_back({tensor->name, tensor->type, tensor->shape, 0, tensor->bytes.size()});
  const std::string header = detail::make_header(heads, metadata);
  detail::OutputFile file(path);
  file.write(std::as_bytes(std::span(header)));
  for (const auto* tensor : order) file.write(tensor->bytes);
  file.finish();
}

DISTX_INLINE void consolidate(const std::filesystem::path& folder, const std::filesystem::path& path,
                              Consolidated which) {
  const auto manifest = detail::read_manifest(folder);
  const detail::ShardIndex index(folder, manifest);
  index.verify(0, 1);
  std::vector<SafetensorsTensor> tensors;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (which == Consolidated::weights && name.starts_with(detail::optimizer_prefix)) continue;
    const detail::FileType* const type = detail::find_file_type(tensor.type);
    const auto elements = detail::elements_of(tensor.shape);
    const auto bytes = type != nullptr && elements ? detail::bytes_of(*type, *elements) : std::nullopt;
    if (!bytes || type->bits % 8 != 0)  // its shards may begin inside a byte
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

DISTX_INLINE std::optional<std::filesystem::path> latest(const std::filesystem::path& directory, std::uint64_t before) {
  auto all = detail::checkpoints_in(directory);
  while (!all.empty() && *detail::step_of(all.back().filename().string()) >= before) all.pop_back();
  if (all.empty()) return std::nullopt;
  return all.back();
}

}  // namespace distx::inline DISTX_ABI::checkpoint
