// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <dirent.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "distx/core/error.hpp"
#include "distx/posix/random_name.hpp"
#include "distx/posix/small_file.hpp"

namespace distx::inline DISTX_ABI::detail::file {

using posix::Descriptor;

/// A folder in which files appear whole: each is written under another name, then renamed. Only this user can read
/// them.
///
/// Everything goes through one descriptor, so that a folder put in its place later is not used.
class Folder {
 public:
  /// Opens a folder; nullopt if there is none.
  /// @throws ConnectError if it cannot be opened, belongs to another user, or others may write to it
  [[nodiscard]] static std::optional<Folder> open(const std::filesystem::path& path) {
    return open_at(AT_FDCWD, path, path, 0);
  }
  /// Makes a folder with mode 0700, and the folders above it; returns whether there was none.
  /// @throws ConnectError
  static bool make(const std::filesystem::path& path) {
    std::error_code error;
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
    if (::mkdir(path.c_str(), 0700) == 0) return true;
    if (errno != EEXIST) fail("make", path, errno);
    return false;
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Opens a folder inside this one; nullopt if there is none.
  [[nodiscard]] std::optional<Folder> inside(const std::string& name) const {
    return open_at(descriptor(), name, path_ / name, O_NOFOLLOW);
  }
  /// Makes a folder inside this one, unless there is one of that name, and opens it.
  [[nodiscard]] Folder make_inside(const std::string& name) const {
    if (::mkdirat(descriptor(), name.c_str(), 0700) != 0 && errno != EEXIST) fail("make", path_ / name, errno);
    auto made = inside(name);
    if (!made) fail("open", path_ / name, ENOENT);
    return std::move(*made);
  }

  [[nodiscard]] bool has(const std::string& name) const noexcept {
    struct ::stat status;
    return ::fstatat(descriptor(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  }
  /// Returns what a file contains; nullopt if there is none. Never waits, also if the name is that of a pipe.
  /// @throws ConnectError if it is not a regular file, or cannot be read
  [[nodiscard]] std::optional<std::string> read(const std::string& name) const {
    const auto file = Descriptor::from_native_handle(
        ::openat(descriptor(), name.c_str(), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    if (!file && is_gone(errno)) return std::nullopt;
    struct ::stat status;
    if (!file || ::fstat(file.native_handle(), &status) != 0) fail("read", path_ / name, errno);
    if (!S_ISREG(status.st_mode))
      throw ConnectError("'" + (path_ / name).string() + "' is not a regular file: remove it, or use another folder",
                         where());
    std::string content;
    if (const int error = posix::read_rest(file, content); is_gone(error))
      return std::nullopt;
    else if (error != 0)
      fail("read", path_ / name, error);
    return content;
  }

  /// Writes a file, in place of the one that bears the name.
  /// @throws ConnectError
  void put(const std::string& name, std::string_view content) const {
    const auto part = write(content);
    if (::renameat(descriptor(), part.c_str(), descriptor(), name.c_str()) == 0) return;
    const int error = errno;
    remove(part);
    fail("write", path_ / name, error);
  }
  /// Writes a file unless one bears the name already; returns whether it did.
  /// @throws ConnectError
  bool put_first(const std::string& name, std::string_view content) const {
    const auto part = write(content);
    // Of the calls that work on every file system, only this one never replaces anything.
    int error = ::linkat(descriptor(), part.c_str(), descriptor(), name.c_str(), 0) == 0 ? 0 : errno;
    if ((error == EOPNOTSUPP || error == EPERM || error == ENOSYS) && !has(name)) {
      if (::renameat(descriptor(), part.c_str(), descriptor(), name.c_str()) == 0) return true;
      error = errno;
    }
    remove(part);
    if (error != 0 && !has(name)) fail("write", path_ / name, error);
    return error == 0;
  }
  /// Writes a file unless one bears the name already, if it can.
  void try_put_first(const std::string& name, std::string_view content) const noexcept try {
    (void)put_first(name, content);
  } catch (...) {  // the other ranks see the end of this process, or have their deadlines
  }
  void remove(const std::string& name) const noexcept { (void)::unlinkat(descriptor(), name.c_str(), 0); }
  /// Removes a folder inside this one and what is in it.
  void remove_folder(const std::string& name) const {
    if (const auto inner = inside(name))
      for (const auto& each : inner->names()) {
        inner->remove(each);
        if (inner->has(each)) inner->remove_folder(each);
      }
    (void)::unlinkat(descriptor(), name.c_str(), AT_REMOVEDIR);
  }

  /// Returns the names of what is in this folder; none if it has been removed.
  /// @throws ConnectError if they cannot all be read
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    auto here = Descriptor::from_native_handle(::openat(descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!here && is_gone(errno)) return found;
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(here ? ::fdopendir(here.native_handle()) : nullptr, ::closedir);
    if (!stream) fail("read", path_, errno);
    (void)here.release();  // the stream closes it
    for (errno = 0; const auto* entry = ::readdir(stream.get()); errno = 0)
      if (const std::string_view name = entry->d_name; name != "." && name != "..") found.emplace_back(name);
    if (errno != 0 && !is_gone(errno)) fail("read", path_, errno);
    return found;
  }

 private:
  Folder(Descriptor descriptor, std::filesystem::path path)
      : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

  [[nodiscard]] int descriptor() const noexcept { return descriptor_.native_handle(); }
  static ErrorContext where() noexcept { return {.operation = "connect", .backend = "file"}; }
  /// A file server says ESTALE for a file that was replaced while it was opened.
  static bool is_gone(int error) noexcept { return error == ENOENT || error == ESTALE; }

  static std::optional<Folder> open_at(int base, const std::filesystem::path& name, const std::filesystem::path& path,
                                       int flags) {
    auto opened =
        Descriptor::from_native_handle(::openat(base, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | flags));
    if (!opened && is_gone(errno)) return std::nullopt;
    struct ::stat status;
    if (!opened || ::fstat(opened.native_handle(), &status) != 0) fail("open", path, errno);
    // Users that can write to the folder decide what memory the ranks map.
    const std::string cure = "; set DISTX_FILE to a folder of your own, or to one that does not exist yet";
    if (status.st_uid != ::geteuid())
      throw ConnectError("folder '" + path.string() + "' belongs to user " + std::to_string(status.st_uid) +
                             ", this process runs as user " + std::to_string(::geteuid()) + cure,
                         where());
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
      throw ConnectError("other users may write to folder '" + path.string() + "': run 'chmod go-w' on it" + cure,
                         where());
    return Folder(std::move(opened), path);
  }

  [[nodiscard]] std::string write(std::string_view content) const {
    auto part = "part-" + posix::random_name(32);
    auto file = Descriptor::from_native_handle(
        ::openat(descriptor(), part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    int error = file ? posix::write_whole(file, content) : errno;
    if (error == 0 && ::close(file.release()) != 0) error = errno;  // a file server may refuse only now
    if (error == 0) return part;
    remove(part);
    fail("write", path_ / part, error);
  }
  [[noreturn]] static void fail(const char* what, const std::filesystem::path& path, int error) {
    throw ConnectError(std::string("cannot ") + what + " '" + path.string() + "' (" +
                           std::generic_category().message(error) +
                           "): every rank must be able to read and write the folder until the job ends",
                       where(), error);
  }

  Descriptor descriptor_;
  std::filesystem::path path_;
};

}  // namespace distx::inline DISTX_ABI::detail::file
