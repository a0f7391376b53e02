// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstring>
#include <optional>

#include "distx/checkpoint/detail/shard_index.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// The name of the file that says which files of a Hugging Face folder have which weights.
inline constexpr const char* index_name = "model.safetensors.index.json";

/// Returns the files that such an index names, which are in the same folder.
/// @throws CheckpointError
[[nodiscard]] inline std::vector<std::filesystem::path> indexed_files(const std::filesystem::path& folder) {
  const auto path = folder / index_name;
  const auto fail = [&](const std::string& what) {
    throw CheckpointError("'" + path.string() + "' " + what + "; use files that are complete",
                          {.operation = "load_weights"});
  };
  const MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  std::set<std::string> names;
  try {
    const auto json = parse_shallow(text, [&] { fail("is nested too deeply"); });
    for (const auto& [tensor, name] : json.at("weight_map").items()) names.insert(name.get<std::string>());
  } catch (const nlohmann::json::exception&) {
    fail("is not the JSON of an index with a weight_map");
  }
  std::vector<std::filesystem::path> files;
  for (const auto& name : names) {
    if (!is_plain_name(name)) fail("names the file '" + name + "', which is not one of its folder");
    files.push_back(folder / name);
  }
  return files;
}

/// Returns the safetensors files that a path without a manifest stands for.
/// @throws CheckpointError if there are none
[[nodiscard]] inline std::vector<std::filesystem::path> weight_files(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return {path};
  if (std::filesystem::exists(path / index_name, ignored)) return indexed_files(path);
  if (std::filesystem::exists(path / "model.safetensors", ignored)) return {path / "model.safetensors"};
  std::vector<std::filesystem::path> files;
  each_entry(path, [&](const std::filesystem::path& entry) {
    if (is_plain_name(entry.filename().string())) files.push_back(entry);
  });
  if (files.empty())
    throw CheckpointError("'" + path.string() + "' has no safetensors files; pass a file or a folder that has some",
                          {.operation = "load_weights"});
  std::sort(files.begin(), files.end());
  return files;
}

/// The tensors of a file or a folder, with a manifest or without one.
class WeightSource {
 public:
  /// @throws CheckpointError
  explicit WeightSource(const std::filesystem::path& path) {
    std::error_code ignored;
    checked_ = std::filesystem::exists(path / manifest_name, ignored);
    if (checked_)
      index_.emplace(path, manifest_ = read_manifest(path));
    else
      index_.emplace(path, weight_files(path), manifest_);
  }
  WeightSource(WeightSource&&) = delete;

  [[nodiscard]] const Manifest& manifest() const noexcept { return manifest_; }
  [[nodiscard]] const ShardIndex& index() const noexcept { return *index_; }
  /// Checks this rank's part of the checksums, if there are any.
  /// @throws CheckpointError
  void verify(std::size_t rank, std::size_t ranks) const {
    if (checked_) index_->verify(rank, ranks);
  }

 private:
  Manifest manifest_;
  std::optional<ShardIndex> index_;
  bool checked_ = false;
};

/// Whether elements of these two types are converted into each other.
[[nodiscard]] constexpr bool convertible(ElementType from, ElementType to) noexcept {
  const auto is_float = [](ElementType type) {
    return type == ElementType::f64 || type == ElementType::f32 || type == ElementType::f16 ||
           type == ElementType::bf16;
  };
  return is_float(from) && is_float(to);
}

/// Calls f(T()) with the floating-point type T that `type` stands for.
/// @pre convertible(type, type)
template <class F>
void with_float(ElementType type, F&& f) {
  if (type == ElementType::f64)
    f(double());
  else if (type == ElementType::f32)
    f(float());
  else if (type == ElementType::f16)
    f(float16());
  else
    f(bfloat16());
}
/// Converts elements from a file, which are not aligned.
inline void convert(std::byte* to, ElementType to_type, const std::byte* from, ElementType from_type,
                    std::uint64_t count) {
  with_float(to_type, [&](auto target) {
    with_float(from_type, [&](auto source) {
      for (std::uint64_t i = 0; i < count; ++i) {
        std::memcpy(&source, from + i * sizeof source, sizeof source);
        target = static_cast<decltype(target)>(static_cast<float>(source));
        std::memcpy(to + i * sizeof target, &target, sizeof target);
      }
    });
  });
}

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
