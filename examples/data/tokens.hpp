// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>

#include <distx/data/file/token_file.hpp>

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
  /// @param width  bytes of a token: 2 or 4
  /// @throws distx::DataError if the file cannot be read, is empty, or does not have a whole number of tokens
  TokenFile(const std::filesystem::path& path, std::size_t width) {
    if (width == 2)
      open<std::uint16_t>(path);
    else
      open<std::uint32_t>(path);
  }

  [[nodiscard]] TokenSpan tokens() const { return tokens_; }

 private:
  template <class T>
  void open(const std::filesystem::path& path) {
    auto file = std::make_shared<const distx::TokenFile<T>>(path);
    const auto all = file->tokens();
    tokens_ = TokenSpan(reinterpret_cast<const std::byte*>(all.data()), all.size(), sizeof(T));
    file_ = std::move(file);
  }

  std::shared_ptr<const void> file_;
  TokenSpan tokens_{nullptr, 0, 2};
};

}  // namespace examples
