// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <charconv>
#include <ctime>
#include <functional>
#include <optional>
#include <set>

#include "distx/checkpoint/detail/manifest.hpp"
#include "distx/posix/host.hpp"

// A directory of checkpoints: a folder for each step.
namespace distx::inline DISTX_ABI::checkpoint::detail {

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

/// Returns the folders of the complete checkpoints in a directory, by step; also those that links lead to.
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

/// Returns a new name for the folder of a step until it is published.
/// @param job  a drawn name that the saves of a training share
[[nodiscard]] inline std::string unpublished_name(std::uint64_t step, std::string_view job) {
  return folder_name(step) + '.' + std::string(job) + '.' + draw_name() + std::string(part_suffix);
}
/// Returns the job that an unpublished folder is of; empty for other names.
[[nodiscard]] inline std::string_view job_of(std::string_view name) {
  if (!name.ends_with(part_suffix)) return {};
  name.remove_suffix(part_suffix.size());
  if (take_drawn(name).empty()) return {};
  const auto job = take_drawn(name);
  return step_of(std::string(name)) ? job : std::string_view();
}
/// Whether saves write files of this name.
[[nodiscard]] inline bool is_written_by_save(std::string_view name) noexcept {
  if (name.ends_with(part_suffix)) name.remove_suffix(part_suffix.size());  // as earlier versions did
  if (name == manifest_name) return true;
  for (const std::string_view text : {"shard-", "-model-", "-of-"}) {
    if (!name.starts_with(text)) return false;
    name.remove_prefix(text.size());
    const std::size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    if (digits < 5) return false;
    name.remove_prefix(digits);
  }
  return name == ".safetensors";
}

/// Names this process and the time, for the manifest and messages.
[[nodiscard]] inline std::string this_process() {
  std::string host = distx::detail::posix::host_name();
  std::replace_if(host.begin(), host.end(), [](char c) { return c <= ' ' || c > '~'; }, '?');
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  char text[32] = "";
  if (::gmtime_r(&now, &time) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &time);
  return "process " + std::to_string(::getpid()) + " on host " + host + " at " + text;
}

/// The name of a manifest while its checkpoint is being removed.
inline constexpr const char* removed_manifest_name = "checkpoint.json.part";

/// Removes the files that saves write from an open folder, and the folder if nothing else is in it. The manifest goes
/// first, so that there is never half a checkpoint.
/// @throws CheckpointError
inline void remove_folder(const Descriptor& folder, const std::filesystem::path& path) {
  const int at = folder.native_handle();
  if (::renameat(at, manifest_name, at, removed_manifest_name) == 0)
    sync(folder, path);
  else if (errno != ENOENT)
    fail("remove", path, errno);
  std::vector<std::string> names;
  each_entry(path, [&](const std::filesystem::path& entry) {
    const std::string name = entry.filename().string();
    if (is_written_by_save(name) && name != removed_manifest_name) names.push_back(name);
  });
  names.emplace_back(removed_manifest_name);  // last: it says that the rest is to be removed
  for (const auto& name : names)
    if (::unlinkat(at, name.c_str(), 0) != 0 && errno != ENOENT && errno != EISDIR) fail("remove", path / name, errno);
  ::rmdir(path.c_str());  // it stays if the user has put files there
}

/// @throws CheckpointError unless a step may be saved as this folder: it is absent, or it is not a whole checkpoint and
///   does not link to one
inline void check_free(const std::filesystem::path& folder) {
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError("'" + folder.string() + "' " + what + ", or save another step or elsewhere",
                          {.operation = "save"});
  };
  struct ::stat status;
  if (::lstat(folder.c_str(), &status) != 0) {
    if (errno != ENOENT) fail("open", folder, errno);
    return;
  }
  if (!S_ISDIR(status.st_mode) && !S_ISLNK(status.st_mode)) refuse("is a file, which is not replaced; move it");
  if (!is_present(folder / manifest_name)) return;
  Manifest manifest;
  try {
    manifest = read_manifest(folder);
  } catch (const CheckpointError& error) {
    refuse("has a manifest that cannot be read (" + error.message() + "); move the folder");
  }
  if (lacks(folder, manifest).empty())
    refuse("is a checkpoint already" + (manifest.saved_by.empty() ? "" : ", saved by " + manifest.saved_by) +
           "; end one of two jobs that save there");
}
/// Moves what is in a folder, which is not a whole checkpoint, to another one that nothing removes.
/// @throws CheckpointError
inline void set_aside(const Descriptor& folder, const std::filesystem::path& path) {
  const std::filesystem::path aside = path.string() + '.' + draw_name() + ".replaced";
  if (::mkdir(aside.c_str(), 0777) != 0) fail("create", aside, errno);
  const auto to = open_folder(aside);
  if (!to) fail("open", aside, errno);
  std::vector<std::string> names;
  each_entry(path, [&](const std::filesystem::path& entry) { names.push_back(entry.filename().string()); });
  for (const auto& name : names)
    if (::renameat(folder.native_handle(), name.c_str(), to.native_handle(), name.c_str()) != 0 && errno != ENOENT)
      fail("move", path / name, errno);
  ::rmdir(aside.c_str());  // if another process has removed them meanwhile
}
/// Gives a link another name, which nothing removes. Its target stays as it is, and so does what is not a link any
/// more.
/// @throws CheckpointError
inline void set_aside_link(const std::filesystem::path& path) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(path, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::invalid_argument) return;
  if (!error) std::filesystem::create_symlink(target, path.string() + '.' + draw_name() + ".replaced", error);
  if (error) fail("move", path, error.value());
  // Unlike a rename, it fails if another process has meanwhile published a folder of this name.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT && errno != EISDIR) fail("move", path, errno);
}
/// Whether a folder, which is open, has a file of this name.
[[nodiscard]] inline bool has(const Descriptor& folder, const char* name) noexcept {
  return ::faccessat(folder.native_handle(), name, F_OK, 0) == 0;
}
/// Gives a complete folder the name of its step by one rename, which replaces nothing but an empty folder.
/// @throws CheckpointError if the step is published already, which is then as it was
inline void publish(const Descriptor& folder, const std::filesystem::path& from, const std::filesystem::path& to) {
  for (int attempt = 0;; ++attempt) {
    const int error = ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
    if (error == 0 || is_same(folder, to)) return;  // NFS fails after success if a reply was lost
    const bool taken = error == EEXIST || error == ENOTEMPTY || error == ENOTDIR;
    if (!taken || attempt == 9) fail("publish", from, error);
    const auto there = open_folder(to);
    check_free(to);
    if (!there) set_aside_link(to);
    if (!there || !is_same(there, to)) continue;  // it was not the one that was checked
    if (has(there, removed_manifest_name))
      remove_folder(there, to);
    else
      set_aside(there, to);
  }
}

/// Returns whether a folder has a checkpoint with all its files.
[[nodiscard]] inline bool is_whole(const std::filesystem::path& folder) {
  try {
    return lacks(folder, read_manifest(folder)).empty();
  } catch (const CheckpointError&) {
    return false;
  }
}
/// Returns whether neither a folder nor a file in it has changed for a time.
[[nodiscard]] inline bool is_stale(const std::filesystem::path& folder, std::chrono::nanoseconds now,
                                   std::chrono::seconds time) {
  auto last = changed(folder);
  each_entry(folder, [&](const std::filesystem::path& entry) { last = std::max(last, changed(entry)); });
  return std::chrono::duration_cast<std::chrono::seconds>(now - last) >= time;
}
/// The names of the folders that the saves of a training have made, and not published yet.
using Unfinished = std::set<std::string>;
/// Removes checkpoints of earlier steps than that of `newest`, which is whole, but for `keep` - 1 whole ones, and what
/// saves have left unpublished: those of the same job, except `unfinished` ones, and others that are stale. Leaves
/// links alone.
/// @throws CheckpointError if a checkpoint cannot be removed
inline void remove_older(const std::filesystem::path& newest, std::size_t keep, std::string_view job,
                         const Unfinished& unfinished, std::chrono::seconds stale_after) {
  const auto directory = newest.parent_path();
  const auto last = *step_of(newest.filename().string());
  const auto now = changed(newest);  // by the clock of the file system
  std::map<std::uint64_t, std::filesystem::path, std::greater<>> older;
  std::vector<std::filesystem::path> left;
  each_entry(directory, [&](const std::filesystem::path& path) {
    const std::string name = path.filename().string();
    const auto step = step_of(name);
    const auto of_job = job_of(name);
    if ((!step || *step >= last) && (of_job.empty() || unfinished.contains(name))) return;
    const auto folder = open_folder(path);
    if (!folder) return;
    if (!step)
      left.push_back(path);
    else if (has(folder, manifest_name) || has(folder, removed_manifest_name))
      older.emplace(*step, path);
    else
      ::rmdir(path.c_str());  // if it is empty: its removal was interrupted
  });
  std::size_t kept = 1;
  for (const auto& [step, path] : older) {
    const auto folder = open_folder(path);
    if (folder && has(folder, manifest_name) && kept < keep)
      kept += is_whole(path) ? 1 : 0;
    else if (folder)
      remove_folder(folder, path);
  }
  for (const auto& path : left) try {
      if (job_of(path.filename().string()) != job && !is_stale(path, now, stale_after)) continue;
      // Under another name it cannot be published any more.
      const auto claimed = directory / unpublished_name(last, job);
      if (::rename(path.c_str(), claimed.c_str()) != 0) continue;
      if (const auto folder = open_folder(claimed)) remove_folder(folder, claimed);
    } catch (const CheckpointError&) {  // of another user: it harms nothing but the space
    }
}

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
