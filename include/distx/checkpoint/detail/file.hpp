// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "distx/core/error.hpp"
#include "distx/core/unique_handle.hpp"

namespace distx::checkpoint::detail {

struct open_file_traits {
  using handle_type = int;
  static handle_type null() noexcept { return -1; }
  static void close(handle_type descriptor) noexcept { ::close(descriptor); }
};
using unique_open_file = unique_handle<open_file_traits>;

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
  /// @throws CheckpointError if it is absent, not a regular file, or cannot be read
  explicit MappedFile(const std::filesystem::path& path) {
    const auto file = unique_open_file::from_native_handle(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct ::stat status;
    if (!file || ::fstat(file.native_handle(), &status) != 0) fail("open", path, errno);
    if (!S_ISREG(status.st_mode)) fail("open", path, S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
    size_ = static_cast<std::size_t>(status.st_size);
    if (size_ == 0) return;
    void* const memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.native_handle(), 0);
    if (memory == MAP_FAILED) fail("map", path, errno);
    memory_ = static_cast<const std::byte*>(memory);
  }
  MappedFile(MappedFile&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (memory_ != nullptr) ::munmap(const_cast<std::byte*>(memory_), size_);
  }

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {memory_, size_}; }

 private:
  const std::byte* memory_ = nullptr;
  std::size_t size_ = 0;
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

/// Makes the names in a folder durable.
/// @throws CheckpointError
inline void sync_folder(const std::filesystem::path& folder) {
  const auto open = unique_open_file::from_native_handle(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!open) fail("open", folder, errno);
  if (::fsync(open.native_handle()) != 0 && errno != EINVAL) fail("sync", folder, errno);  // EINVAL: it has no sync
}

/// A file that appears whole: it is written under another name, made durable, and renamed. Never replaces a file.
class OutputFile {
 public:
  /// @throws CheckpointError
  explicit OutputFile(std::filesystem::path path) : path_(std::move(path)), part_(path_.string() + ".part") {
    file_ = unique_open_file::from_native_handle(
        ::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file_) fail("create", part_, errno);
  }
  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile() {
    if (file_) ::unlink(part_.c_str());
  }

  /// @throws CheckpointError, for instance if the disk is full
  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto count = ::write(file_.native_handle(), bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail("write", path_, count < 0 ? errno : ENOSPC);
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }
  /// Makes the content durable and gives the file its name; the caller syncs the folder.
  /// @throws CheckpointError; the name then stays free
  void finish() {
    if (::fsync(file_.native_handle()) != 0) fail("write", path_, errno);
    if (!rename()) fail("write", path_, errno);
    file_.reset();
  }

 private:
  bool rename() noexcept {
    if (::renameat2(AT_FDCWD, part_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS) return false;  // such file systems rename without conditions only
    struct ::stat status;
    if (::lstat(path_.c_str(), &status) == 0) {
      errno = EEXIST;
      return false;
    }
    return ::rename(part_.c_str(), path_.c_str()) == 0;
  }

  std::filesystem::path path_;
  std::string part_;
  unique_open_file file_;
};

}  // namespace distx::checkpoint::detail
