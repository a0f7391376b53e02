// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include <zlib.h>

#include <distx/core/error.hpp>

namespace examples {

/// Reads a file from its beginning and unpacks it if it is gzipped.
class GzFile {
 public:
  /// @throws distx::DataError if the file cannot be opened or read
  explicit GzFile(const std::filesystem::path& path) : name_(path.string()), packed_(piece) {
    errno = 0;
    file_.reset(std::fopen(name_.c_str(), "rb"));
    if (file_ == nullptr) {
      throw distx::DataError(name_ + " cannot be opened (" + std::generic_category().message(errno) +
                             "): check the path, or fetch the file");
    }
    refill();
    is_gzipped_ = stream_.avail_in >= 2 && packed_[0] == 0x1f && packed_[1] == 0x8b;
    if (is_gzipped_ && inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) throw distx::MemoryError("no memory for zlib");
  }
  ~GzFile() {
    if (is_gzipped_) inflateEnd(&stream_);
  }
  GzFile(const GzFile&) = delete;
  GzFile& operator=(const GzFile&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }

  /// Returns the next `count` bytes, fewer only at the end of the file.
  ///
  /// Memory grows with the file, not with `count`: a wrong length in a header costs nothing.
  /// @throws distx::DataError if the file cannot be read, or its gzip stream is damaged, cut off, or followed by other
  /// data
  [[nodiscard]] std::string read(std::size_t count) {
    std::string bytes;
    while (bytes.size() < count) {
      const std::size_t before = bytes.size();
      const std::size_t wanted = std::min(count - before, piece);
      bytes.resize(before + wanted);
      const std::size_t got = is_gzipped_ ? unpack(bytes.data() + before, wanted) : copy(bytes.data() + before, wanted);
      bytes.resize(before + got);
      if (got < wanted) break;
    }
    return bytes;
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const noexcept { std::fclose(file); }  // only read from: nothing can be lost
  };
  static constexpr std::size_t piece = 1U << 16U;

  void refill() {
    errno = 0;
    const std::size_t got = std::fread(packed_.data(), 1, packed_.size(), file_.get());
    if (got == 0 && std::ferror(file_.get()) != 0) {
      throw distx::DataError(name_ + " cannot be read (" + std::generic_category().message(errno) +
                             "): check that it is a file");
    }
    taken_ += got;
    stream_.next_in = packed_.data();
    stream_.avail_in = static_cast<unsigned>(got);
  }

  std::size_t copy(char* out, std::size_t size) {
    std::size_t done = 0;
    while (done < size) {
      if (stream_.avail_in == 0) refill();
      const std::size_t part = std::min<std::size_t>(size - done, stream_.avail_in);
      if (part == 0) break;
      std::copy_n(stream_.next_in, part, out + done);
      stream_.next_in += part;
      stream_.avail_in -= static_cast<unsigned>(part);
      done += part;
    }
    return done;
  }

  std::size_t unpack(char* out, std::size_t size) {
    stream_.next_out = reinterpret_cast<unsigned char*>(out);
    stream_.avail_out = static_cast<unsigned>(size);
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0) refill();
      if (stream_.avail_in == 0) {
        if (between_members_) break;
        fail("the file is cut off: fetch it again");
      }
      if (between_members_ && *stream_.next_in != 0x1f)
        fail("other data follows the end of the gzip stream: fetch it again");
      between_members_ = false;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        between_members_ = true;  // another member may follow
        inflateReset(&stream_);
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        fail(std::string("the file is damaged (") + (stream_.msg == nullptr ? "zlib error" : stream_.msg) +
             "): fetch it again");
      }
    }
    return size - stream_.avail_out;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw distx::DataError(name_ + ", byte " + std::to_string(taken_ - stream_.avail_in) + ": " + what);
  }

  std::string name_;
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<unsigned char> packed_;  // read, but not used yet: stream_.avail_in bytes from stream_.next_in on
  std::size_t taken_ = 0;              // bytes read from the file
  z_stream stream_{};
  bool is_gzipped_ = false;
  bool between_members_ = false;
};

}  // namespace examples
