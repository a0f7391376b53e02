// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include "digits.hpp"
#include "gz_file.hpp"

namespace examples {

namespace detail {

/// A whole number from 0 to `largest`, or -1.
inline int whole_number(std::string_view text, int largest) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && value >= 0 && value <= largest ? value : -1;
}

}  // namespace detail

/// Reads 8 × 8 digits from comma-separated text, gzipped or not, as in scikit-learn's digits.csv.gz.
///
/// One digit a line: 64 pixels from 0 to 16, row by row, then the label.
/// @throws distx::DataError if the file cannot be read, is cut off, or is anything else
inline Digits read_digits_csv(const std::filesystem::path& path) {
  constexpr std::size_t side = 8;
  constexpr std::size_t columns = side * side + 1;
  constexpr int ink = 16;
  GzFile file(path);
  const std::string text = file.read(std::numeric_limits<std::size_t>::max());
  Digits digits{side, side, {}, {}};
  std::string_view rest = text;
  for (std::size_t number = 1; !rest.empty(); ++number) {
    const std::string where = file.name() + ", line " + std::to_string(number) + ": ";
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto count = static_cast<std::size_t>(std::ranges::count(line, ',')) + 1;
    if (count != columns) {
      throw distx::DataError(where + "columns: " + std::to_string(count) +
                             " instead of 65 (64 pixels, then the label): " +
                             "the file is cut off or another kind of file, fetch it again");
    }
    for (std::size_t column = 1; column <= columns; ++column) {
      const std::string_view field = line.substr(0, line.find(','));
      line.remove_prefix(std::min(line.size(), field.size() + 1));
      const int largest = column < columns ? ink : 9;
      const int value = detail::whole_number(field, largest);
      if (value < 0) {
        throw distx::DataError(where +
                               (column < columns ? "pixel " + std::to_string(column) : std::string("the label")) +
                               " is \"" + std::string(field.substr(0, 20)) + "\", not a whole number from 0 to " +
                               std::to_string(largest) + ": correct it or fetch the file again");
      }
      if (column < columns) {
        digits.images.push_back(static_cast<float>(value) / static_cast<float>(ink));
      } else {
        digits.labels.push_back(static_cast<std::uint8_t>(value));
      }
    }
  }
  if (digits.labels.empty()) throw distx::DataError(file.name() + ", line 1: the file is empty: fetch it again");
  return digits;
}

}  // namespace examples
