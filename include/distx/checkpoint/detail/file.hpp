// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "distx/checkpoint/detail/stale_after.hpp"
#include "distx/core/error.hpp"
#include "distx/posix/mapping.hpp"
#include "distx/posix/random_name.hpp"
#include "distx/posix/small_file.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

using distx::detail::posix::Descriptor;

/// Throws for a system call that failed.
/// @param action  such as "open"
[[noreturn]] inline void fail(const char* action, const std::filesystem::path& path, int error) {
  throw CheckpointError("cannot " + std::string(action) + " '" + path.string() + "' (" +
                            std::generic_category().message(error) +
                            "); check that the folder exists, has space and permits it",
                        {.operation = "checkpoint"}, error);
}

/// A regular file, mapped for reading.
class MappedFile {
 public:
  /// @throws CheckpointError if it is absent, not a regular file, a pointer of Git LFS, or cannot be read
  explicit MappedFile(const std::filesystem::path& path) {
    const auto file = distx::detail::posix::open_file(path.c_str(), O_RDONLY | O_NONBLOCK);
    struct ::stat status;
    if (!file || ::fstat(file.native_handle(), &status) != 0) fail("open", path, errno);
    if (!S_ISREG(status.st_mode)) fail("open", path, S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
    const auto size = static_cast<std::size_t>(status.st_size);
    if (size == 0) return;
    mapping_ = distx::detail::posix::map_file(file, size, PROT_READ, MAP_PRIVATE);
    if (!mapping_) fail("map", path, errno);
    constexpr std::string_view pointer = "version https://git-lfs";
    if (std::string_view(static_cast<const char*>(mapping_.native_handle().address), size).starts_with(pointer))
      throw CheckpointError("'" + path.string() + "' is a Git LFS pointer of " + std::to_string(size) +
                                " bytes instead of the file; fetch the file with 'git lfs pull', or download it",
                            {.operation = "checkpoint"});
  }

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept {
    const auto [address, size] = mapping_.native_handle();
    return {static_cast<const std::byte*>(address), size};
  }

 private:
  distx::detail::posix::Mapping mapping_;
};

/// Calls f(block) for the blocks of some bytes, one after another; a block fits into the processor's cache.
template <class F>
void each_block(std::span<const std::byte> bytes, F&& f) {
  constexpr std::size_t block = std::size_t{1} << 20;
  for (std::size_t at = 0; at < bytes.size(); at += block) f(bytes.subspan(at, std::min(block, bytes.size() - at)));
}

/// Returns whether a path exists.
/// @throws CheckpointError without the permission to find out
[[nodiscard]] inline bool is_present(const std::filesystem::path& path) {
  std::error_code error;
  const bool found = std::filesystem::exists(path, error);
  if (error) fail("open", path, error.value());
  return found;
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

/// Makes the content of an open file or folder durable.
/// @throws CheckpointError
inline void sync(const Descriptor& open, const std::filesystem::path& path) {
  if (::fsync(open.native_handle()) != 0 && errno != EINVAL) fail("sync", path, errno);  // EINVAL: it has no sync
}
/// Opens a folder, which a link may lead to, and makes the names in it durable.
/// @throws CheckpointError
inline void sync_folder(const std::filesystem::path& folder) {
  const auto open = distx::detail::posix::open_file(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (!open) fail("open", folder, errno);
  sync(open, folder);
}
/// Opens a folder, whose files are then reached through the result, also if another one takes its place. Empty, with
/// `errno`, if the last name of the path is a link, or it cannot be opened.
[[nodiscard]] inline Descriptor open_folder(const std::filesystem::path& folder) noexcept {
  return distx::detail::posix::open_file(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}
/// Returns whether a path leads to an open file or folder, not through a link.
[[nodiscard]] inline bool is_same(const Descriptor& open, const std::filesystem::path& path) noexcept {
  struct ::stat mine, there;
  return ::fstat(open.native_handle(), &mine) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

/// Returns the time of the last change of a file or folder, not of a link's target; 0 if it is absent.
[[nodiscard]] inline std::chrono::nanoseconds changed(const std::filesystem::path& path) noexcept {
  struct ::stat status;
  if (::lstat(path.c_str(), &status) != 0) return {};
  return std::chrono::seconds(status.st_mtim.tv_sec) + std::chrono::nanoseconds(status.st_mtim.tv_nsec);
}
/// Returns a random name of 16 digits that no other process has.
[[nodiscard]] inline std::string draw_name() { return distx::detail::posix::random_name(16); }
/// Removes a name that `draw_name` may have returned, and the dot before it, from the end of a text.
/// @return the name; empty if there is none
[[nodiscard]] inline std::string_view take_drawn(std::string_view& text) noexcept {
  if (text.size() < 17 || text[text.size() - 17] != '.') return {};
  const auto name = text.substr(text.size() - 16);
  if (name.find_first_not_of("0123456789abcdef") != std::string_view::npos) return {};
  text.remove_suffix(17);
  return name;
}
/// The end of the names of unpublished files and folders.
inline constexpr std::string_view part_suffix = ".part";

/// A file that did not exist before, and is written from its beginning.
class NewFile {
 public:
  /// @param folder  of the file
  /// @param path  for messages
  /// @throws CheckpointError, for instance if there is one of this name, or a link
  NewFile(int folder, const std::string& name, std::filesystem::path path)
      : path_(std::move(path)),
        file_(Descriptor::from_native_handle(
            ::openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666))) {
    if (!file_) fail("create", path_, errno);
  }

  /// @throws CheckpointError, for instance if the disk is full
  void write(std::span<const std::byte> bytes) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (const int error = distx::detail::posix::write_whole(file_, text); error != 0) fail("write", path_, error);
  }
  /// Makes the content durable; the caller syncs the folder.
  /// @throws CheckpointError
  void finish() {
    if (::fsync(file_.native_handle()) != 0) fail("write", path_, errno);
  }
  [[nodiscard]] const Descriptor& open() const noexcept { return file_; }

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

/// A file that appears whole: it is written under a drawn name, made durable, and renamed. Never replaces a file.
class OutputFile {
 public:
  /// Removes the unfinished files of the same name that ended processes have left.
  /// @throws CheckpointError
  explicit OutputFile(std::filesystem::path path)
      : path_(std::move(path)),
        part_(path_.string() + '.' + draw_name() + std::string(part_suffix)),
        file_(AT_FDCWD, part_, part_) {
    remove_stale();
  }
  OutputFile(OutputFile&&) = delete;
  ~OutputFile() {
    if (!finished_) ::unlink(part_.c_str());
  }

  /// @throws CheckpointError, for instance if the disk is full
  void write(std::span<const std::byte> bytes) { file_.write(bytes); }
  /// Makes the content durable and gives the file its name.
  /// @throws CheckpointError; the name is then as it was
  void finish() {
    file_.finish();
    if (!rename()) fail("write", path_, errno);
    finished_ = true;
    sync_folder(folder());
  }

 private:
  [[nodiscard]] std::filesystem::path folder() const {
    return path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  }
  bool rename() noexcept {
    if (::renameat2(AT_FDCWD, part_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS) return false;  // such file systems rename without conditions only
    const int error = ::link(part_.c_str(), path_.c_str()) == 0 ? 0 : errno;
    if (error == EPERM || error == ENOSYS || error == EOPNOTSUPP || error == EMLINK) return rename_if_absent();
    const bool named = error == 0 || is_same(file_.open(), path_);  // NFS fails after success if a reply was lost
    if (named) ::unlink(part_.c_str());
    errno = error;
    return named;
  }
  /// For file systems without hard links, on which another writer of the same name may be replaced at the same moment.
  bool rename_if_absent() noexcept {
    struct ::stat status;
    if (::lstat(path_.c_str(), &status) != 0) return ::rename(part_.c_str(), path_.c_str()) == 0;
    errno = EEXIST;
    return false;
  }
  void remove_stale() const {
    const auto now = changed(part_);
    const std::string start = path_.filename().string();
    std::error_code error;
    std::filesystem::directory_iterator entries(folder(), error);
    for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
      const std::string name = entries->path().filename().string();
      if (!name.ends_with(part_suffix)) continue;
      std::string_view rest(name.data(), name.size() - part_suffix.size());
      if (take_drawn(rest).empty() || rest != start) continue;
      if (now - changed(entries->path()) > default_stale_after) ::unlink(entries->path().c_str());
    }
  }

  std::filesystem::path path_;
  std::string part_;
  NewFile file_;
  bool finished_ = false;
};

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
