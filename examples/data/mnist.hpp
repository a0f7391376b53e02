// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "digits.hpp"
#include "gz_file.hpp"

namespace examples {

namespace detail {

/// The bytes of an IDX file of unsigned bytes, whose first extent is the number of images or labels.
template <std::size_t Extents>
struct Idx {
  std::string name;
  std::array<std::size_t, Extents> extents;
  std::string bytes;

  [[nodiscard]] static constexpr std::size_t header() { return 4 * (1 + Extents); }
};

/// The 32-bit number at this byte, most significant byte first.
inline std::uint32_t big_endian(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (const char byte : bytes.substr(at, 4)) value = value << 8U | static_cast<std::uint8_t>(byte);
  return value;
}

template <std::size_t Extents>
Idx<Extents> read_idx(const std::filesystem::path& path) {
  constexpr std::uint32_t magic = 0x0800U + Extents;  // unsigned bytes, this many extents
  constexpr std::size_t largest_side = 1024;
  GzFile file(path);
  Idx<Extents> idx{file.name(), {}, {}};
  const std::string header = file.read(Idx<Extents>::header());
  const auto fail = [&](std::size_t byte, const std::string& what) {
    throw distx::DataError(idx.name + ", byte " + std::to_string(byte) + ": " + what);
  };
  if (header.size() >= 4 && big_endian(header, 0) != magic) {
    fail(0, "magic number " + std::to_string(big_endian(header, 0)) + " instead of " + std::to_string(magic) +
                ": this is not an IDX file of " + (Extents == 1 ? "labels" : "images") + ", give another");
  }
  if (header.size() < Idx<Extents>::header()) fail(header.size(), "the file is cut off in its header: fetch it again");
  std::size_t expected = 1;
  for (std::size_t i = 0; i < Extents; ++i) {
    const std::size_t extent = idx.extents[i] = big_endian(header, 4 * (i + 1));
    if (extent == 0 || (i > 0 && extent > largest_side)) {
      fail(4 * (i + 1), "extent " + std::to_string(extent) + " is " +
                            (extent == 0 ? "empty" : "more than 1024 pixels") +
                            ": the file is damaged, fetch it again");
    }
    expected *= extent;
  }
  idx.bytes = file.read(expected + 1);
  if (idx.bytes.size() < expected) {
    fail(header.size() + idx.bytes.size(), "the file is cut off, its header promises " +
                                               std::to_string(header.size() + expected) + " bytes: fetch it again");
  }
  if (idx.bytes.size() > expected) {
    fail(header.size() + expected, "the file is longer than its header says: fetch it again");
  }
  return idx;
}

/// Where `name` is in the directory, as it is or gzipped.
inline std::filesystem::path plain_or_gzipped(const std::filesystem::path& directory, const std::string& name) {
  std::error_code ignored;  // an unreadable folder counts as absent
  for (const std::string& candidate : {name, name + ".gz"}) {
    if (std::filesystem::exists(directory / candidate, ignored)) return directory / candidate;
  }
  throw distx::DataError((directory / name).string() +
                         " is not there, nor with .gz: put the four files of MNIST into this directory");
}

inline Digits read_idx_pair(const std::filesystem::path& directory, const std::string& set) {
  const Idx<1> labels = read_idx<1>(plain_or_gzipped(directory, set + "-labels-idx1-ubyte"));
  const Idx<3> images = read_idx<3>(plain_or_gzipped(directory, set + "-images-idx3-ubyte"));
  if (images.extents[0] != labels.extents[0]) {
    throw distx::DataError(images.name + ", byte 4: " + std::to_string(images.extents[0]) + " images, but " +
                           labels.name + " has " + std::to_string(labels.extents[0]) + " labels: fetch both again");
  }
  Digits digits{images.extents[1], images.extents[2], {}, {}};
  digits.images.reserve(images.bytes.size());
  for (const char byte : images.bytes)
    digits.images.push_back(static_cast<float>(static_cast<std::uint8_t>(byte)) / 255.0F);
  digits.labels.reserve(labels.bytes.size());
  for (const char byte : labels.bytes) {
    const auto label = static_cast<std::uint8_t>(byte);
    if (label > 9) {
      throw distx::DataError(labels.name + ", byte " + std::to_string(Idx<1>::header() + digits.labels.size()) +
                             ": label " + std::to_string(label) + " is not a digit from 0 to 9: fetch the file again");
    }
    digits.labels.push_back(label);
  }
  return digits;
}

}  // namespace detail

/// Reads the four IDX files of MNIST, each gzipped or not; the t10k set is held out.
/// @throws distx::DataError if one is missing, cut off or damaged, or they do not belong together
inline SplitDigits read_mnist(const std::filesystem::path& directory) {
  SplitDigits digits{detail::read_idx_pair(directory, "train"), detail::read_idx_pair(directory, "t10k")};
  const auto& [training, held_out] = digits;
  if (training.height != held_out.height || training.width != held_out.width) {
    throw distx::DataError(directory.string() + ": the images of train have " + std::to_string(training.height) +
                           " × " + std::to_string(training.width) + " pixels, those of t10k " +
                           std::to_string(held_out.height) + " × " + std::to_string(held_out.width) +
                           ": take all four files from one place");
  }
  return digits;
}

}  // namespace examples
