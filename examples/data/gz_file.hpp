// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include <zlib.h>

#include <distx/core/error.hpp>

namespace examples {

/// A file read from its beginning, unpacked on the way if it is gzipped.
class GzFile {
 public:
  /// @throws distx::DataError if the file cannot be opened
  explicit GzFile(const std::filesystem::path& path) : name_(path.string()) {
    errno = 0;
    file_.reset(gzopen(name_.c_str(), "rb"));
    if (file_ == nullptr) {
      throw distx::DataError(name_ + " cannot be opened (" + std::generic_category().message(errno) +
                             "): check the path, or fetch the file");
    }
  }

  [[nodiscard]] const std::string& name() const { return name_; }

  /// The next `count` bytes, fewer only where the file ends.
  ///
  /// Memory grows with what is there, not with `count`: a wrong length in a header costs nothing.
  /// @throws distx::DataError if the file cannot be read, or its gzip stream is damaged or cut off
  [[nodiscard]] std::string read(std::size_t count) {
    std::string bytes;
    while (bytes.size() < count) {
      const std::size_t before = bytes.size();
      const std::size_t wanted = std::min(count - before, piece);
      bytes.resize(before + wanted);
      const int got = gzread(file_.get(), bytes.data() + before, static_cast<unsigned>(wanted));
      bytes.resize(before + static_cast<std::size_t>(std::max(got, 0)));
      if (static_cast<std::size_t>(std::max(got, 0)) < wanted) {
        check();
        break;
      }
    }
    return bytes;
  }

 private:
  struct Close {
    void operator()(gzFile_s* file) const noexcept { gzclose_r(file); }  // only read from: nothing can be lost
  };
  static constexpr std::size_t piece = 1U << 16U;

  /// A cut-off stream reads like the end of the file; only the error that is kept tells them apart.
  void check() {
    int code = Z_OK;
    std::string words = gzerror(file_.get(), &code);
    if (code == Z_OK || code == Z_STREAM_END) return;
    if (words.starts_with(name_ + ": ")) words.erase(0, name_.size() + 2);
    if (code == Z_ERRNO) throw distx::DataError(name_ + " cannot be read (" + words + "): check that it is a file");
    throw distx::DataError(name_ + ", byte " + std::to_string(gzoffset(file_.get())) + ": the file is " +
                           (code == Z_BUF_ERROR ? "cut off" : "damaged (" + words + ")") + ": fetch it again");
  }

  std::string name_;
  std::unique_ptr<gzFile_s, Close> file_;
};

}  // namespace examples
