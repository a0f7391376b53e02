// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <distx/core/error.hpp>

#include "tokens.hpp"

namespace examples {

/// A text whose bytes are numbered.
struct Text {
  std::string vocabulary;            ///< the bytes that occur, in order; a token is a place in it
  std::vector<std::uint8_t> tokens;  ///< the text
};

inline Text numbered(std::string_view bytes) {
  Text text;
  std::array<bool, 256> occurs{};
  for (const char byte : bytes) occurs[static_cast<std::uint8_t>(byte)] = true;
  std::array<std::uint8_t, 256> number{};
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (!occurs[byte]) continue;
    number[byte] = static_cast<std::uint8_t>(text.vocabulary.size());
    text.vocabulary.push_back(static_cast<char>(byte));
  }
  text.tokens.reserve(bytes.size());
  for (const char byte : bytes) text.tokens.push_back(number[static_cast<std::uint8_t>(byte)]);
  return text;
}

/// The files, one after another.
/// @throws distx::DataError for one that cannot be read, or where there is nothing in any
inline Text read_text(const std::vector<std::filesystem::path>& files) {
  std::string bytes;
  for (const auto& path : files) {
    errno = 0;
    std::ifstream file(path, std::ios::binary);
    if (!file || std::filesystem::is_directory(path)) {
      const int reason = file ? EISDIR : errno;
      throw distx::DataError(path.string() + " cannot be opened (" + std::generic_category().message(reason) +
                             "): give --text files that can be read");
    }
    bytes.append(std::istreambuf_iterator<char>(file), {});
  }
  if (bytes.empty()) throw distx::DataError("the text is empty: give --text a file that is not empty");
  return numbered(bytes);
}

/// A project's own headers and pages, in the order of their names; nothing where `root` is none.
inline std::vector<std::filesystem::path> headers_and_pages(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> files;
  std::error_code absent;
  for (const char* folder : {"docs", "include"}) {
    std::filesystem::recursive_directory_iterator entries(root / folder, absent);
    if (absent) return {};
    for (const auto& entry : entries) {
      const auto extension = entry.path().extension();
      if (entry.is_regular_file() && (extension == ".hpp" || extension == ".md")) files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  return files;
}

/// Sequences of equal length, one after another, and what follows each of their tokens.
struct TextBatch {
  std::size_t length = 0;
  std::vector<Token> tokens;
  std::vector<Token> targets;
};

/// The sequences that begin at these places.
/// @pre place + length < tokens.size() for each
inline TextBatch sequences(const TokenSpan& tokens, std::span<const std::size_t> places, std::size_t length) {
  TextBatch batch{length, {}, {}};
  batch.tokens.reserve(places.size() * length);
  batch.targets.reserve(places.size() * length);
  for (const std::size_t place : places) {
    for (std::size_t i = place; i < place + length; ++i) {
      batch.tokens.push_back(tokens[i]);
      batch.targets.push_back(tokens[i + 1]);
    }
  }
  return batch;
}

}  // namespace examples
