// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <charconv>
#include <optional>

#include "distx/checkpoint/detail/manifest.hpp"

// A directory of checkpoints: a folder for each step.
namespace distx::checkpoint::detail {

inline constexpr std::string_view folder_prefix = "step-";

/// Returns the name of a step's folder; names have the order of their steps up to 12 digits.
[[nodiscard]] inline std::string folder_name(std::uint64_t step) {
  const std::string number = std::to_string(step);
  return std::string(folder_prefix) + std::string(number.size() < 12 ? 12 - number.size() : 0, '0') + number;
}
/// Returns the step that a folder's name is of.
[[nodiscard]] inline std::optional<std::uint64_t> step_of(const std::string& name) {
  std::uint64_t step = 0;
  if (!name.starts_with(folder_prefix)) return std::nullopt;
  const char* const end = name.data() + name.size();
  const auto read = std::from_chars(name.data() + folder_prefix.size(), end, step);
  if (read.ec != std::errc() || read.ptr != end || name != folder_name(step)) return std::nullopt;
  return step;
}

/// Calls f(entry) for each entry of a folder; for none if the folder is absent.
/// @throws CheckpointError
template <class F>
void each_entry(const std::filesystem::path& folder, F&& f) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return;
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) f(entries->path());
  if (error) fail("read", folder, error.value());
}

/// Returns the folders of the complete checkpoints in a directory, by step.
/// @throws CheckpointError
[[nodiscard]] inline std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& directory) {
  std::map<std::uint64_t, std::filesystem::path> found;
  each_entry(directory, [&](const std::filesystem::path& path) {
    if (const auto step = step_of(path.filename().string()); step && is_present(path / manifest_name))
      found.emplace(*step, path);
  });
  std::vector<std::filesystem::path> folders;
  for (auto& [step, path] : found) folders.push_back(std::move(path));
  return folders;
}

/// @throws CheckpointError
inline void remove_path(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) fail("remove", path, error.value());
}
/// Removes the files that a save has written, and leaves others.
inline void remove_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  each_entry(folder, [&](const std::filesystem::path& path) {
    const std::string name = path.filename().string();
    const bool part = name.ends_with(".part");
    const std::string whole = part ? name.substr(0, name.size() - 5) : name;
    if (is_plain_name(whole) || (part && whole == manifest_name)) files.push_back(path);
  });
  for (const auto& file : files) remove_path(file);
}

/// Makes the folder of a new checkpoint; one that an interrupted save has left is emptied.
/// @throws CheckpointError if it holds a checkpoint
inline void prepare(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("create", folder, error.value());
  if (std::filesystem::exists(folder / manifest_name, error))
    throw CheckpointError("'" + folder.string() + "' is a checkpoint already; save another step or elsewhere",
                          {.operation = "save"});
  remove_files(folder);
}
/// Writes the manifest, with which the checkpoint begins to exist.
inline void complete(const std::filesystem::path& directory, const std::filesystem::path& folder,
                     const std::string& manifest) {
  OutputFile file(folder / manifest_name);
  file.write(std::as_bytes(std::span(manifest)));
  file.finish();
  sync_folder(folder);
  sync_folder(directory);
}
/// Removes the checkpoints of earlier steps than `folder`'s, but `keep` - 1 of them: the manifest first, so that there
/// is never half a checkpoint.
inline void remove_older(const std::filesystem::path& directory, const std::filesystem::path& folder,
                         std::size_t keep) {
  auto folders = checkpoints_in(directory);
  folders.erase(std::find(folders.begin(), folders.end(), folder), folders.end());
  folders.resize(folders.size() - std::min(keep - 1, folders.size()));
  for (const auto& older : folders) {
    remove_path(older / manifest_name);
    sync_folder(older);
    remove_files(older);
    std::error_code ignored;  // it stays if the user has put files there
    std::filesystem::remove(older, ignored);
  }
}

}  // namespace distx::checkpoint::detail
