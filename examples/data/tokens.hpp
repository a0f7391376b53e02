// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>

#include <distx/core/error.hpp>

namespace examples {

/// The number of a token in the vocabulary.
using Token = std::uint32_t;

/// Borrowed tokens, stored as little-endian integers of 1, 2 or 4 bytes.
class TokenSpan {
 public:
  /// @pre width is 1, 2 or 4
  TokenSpan(const std::byte* bytes, std::size_t size, std::size_t width) : bytes_(bytes), size_(size), width_(width) {}
  explicit TokenSpan(std::span<const std::uint8_t> tokens)
      : TokenSpan(reinterpret_cast<const std::byte*>(tokens.data()), tokens.size(), 1) {}

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] Token operator[](std::size_t index) const {
    Token token = 0;
    for (std::size_t i = 0; i < width_; ++i)
      token |= std::to_integer<Token>(bytes_[index * width_ + i]) << (8 * static_cast<unsigned>(i));
    return token;
  }
  /// @pre begin + count <= size()
  [[nodiscard]] TokenSpan subspan(std::size_t begin, std::size_t count) const {
    return {bytes_ + begin * width_, count, width_};
  }

 private:
  const std::byte* bytes_;
  std::size_t size_;
  std::size_t width_;
};

/// A file of tokens without a header, mapped into memory; it may be larger than memory. Copies share the mapping.
class TokenFile {
 public:
  /// @param width  bytes of a token: 1, 2 or 4
  /// @throws distx::DataError if the file cannot be read, is empty, or does not have a whole number of tokens
  TokenFile(const std::filesystem::path& path, std::size_t width) : width_(width) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct ::stat status {};
    const bool opened = file >= 0 && ::fstat(file, &status) == 0;
    int reason = opened ? (S_ISREG(status.st_mode) ? 0 : EISDIR) : errno;
    const auto bytes = static_cast<std::size_t>(status.st_size);
    void* memory = nullptr;
    if (reason == 0 && bytes > 0) {
      memory = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
      if (memory == MAP_FAILED) reason = errno;
    }
    if (file >= 0) ::close(file);
    if (reason != 0)
      throw distx::DataError(path.string() + " cannot be opened (" + std::generic_category().message(reason) +
                             "): give --tokens a file that can be read");
    bytes_ = {static_cast<const std::byte*>(memory), [bytes](const std::byte* mapped) {
                if (bytes > 0) ::munmap(const_cast<std::byte*>(mapped), bytes);
              }};
    if (bytes == 0 || bytes % width != 0)
      throw distx::DataError(path.string() + " has " + std::to_string(bytes) +
                             " bytes, not a whole number of tokens of " + std::to_string(width) +
                             " bytes: choose another --token-type");
    size_ = bytes / width;
  }

  [[nodiscard]] TokenSpan tokens() const { return {bytes_.get(), size_, width_}; }

 private:
  std::shared_ptr<const std::byte> bytes_;
  std::size_t size_ = 0;
  std::size_t width_;
};

}  // namespace examples
