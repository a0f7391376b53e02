// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "data/mnist.hpp"

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "temporary_folder.hpp"

using namespace examples;

namespace {

std::string big_endian(std::initializer_list<std::uint32_t> numbers) {
  std::string bytes;
  for (const std::uint32_t number : numbers) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xFFU);
  }
  return bytes;
}

/// Images of 4 × 5 pixels, whose bytes count up from `first`.
std::string images(std::uint32_t count, int first) {
  std::string bytes = big_endian({0x803, count, 4, 5});
  for (std::uint32_t i = 0; i < count * 20; ++i) bytes += static_cast<char>(first + static_cast<int>(i));
  return bytes;
}

std::string labels(const std::vector<int>& values) {
  std::string bytes = big_endian({0x801, static_cast<std::uint32_t>(values.size())});
  for (const int value : values) bytes += static_cast<char>(value);
  return bytes;
}

using Files = std::map<std::string, std::string>;

const Files good{{"train-images-idx3-ubyte", images(3, 0)},
                 {"train-labels-idx1-ubyte", labels({7, 0, 9})},
                 {"t10k-images-idx3-ubyte", images(2, 250)},
                 {"t10k-labels-idx1-ubyte", labels({1, 2})}};

/// What reading says after one of the files was changed.
std::string complaint_with(const std::string& name, const std::string& bytes) {
  const TemporaryFolder folder;
  for (const auto& [other, content] : good) folder.write(other, other == name ? bytes : content);
  return complaint([&] { read_mnist(folder.path()); });
}

}  // namespace

TEST_CASE("the four files of MNIST are read, each gzipped or not") {
  for (unsigned packed = 0; packed < 16; ++packed) {
    const TemporaryFolder folder;
    unsigned file = 0;
    for (const auto& [name, bytes] : good) {
      const bool pack = (packed >> file++ & 1U) != 0;
      folder.write(pack ? name + ".gz" : name, pack ? gzipped(bytes) : bytes);
    }
    const auto [training, held_out] = read_mnist(folder.path());
    CHECK(training.height == 4);
    CHECK(training.width == 5);
    CHECK(training.labels == std::vector<std::uint8_t>{7, 0, 9});
    CHECK(held_out.labels == std::vector<std::uint8_t>{1, 2});
    REQUIRE(training.images.size() == 60);
    REQUIRE(held_out.images.size() == 40);
    for (std::size_t i = 0; i < 60; ++i) CHECK(training.images[i] == static_cast<float>(i) / 255);
    for (std::size_t i = 0; i < 40; ++i) CHECK(held_out.images[i] == static_cast<float>((250 + i) % 256) / 255);
  }
}

TEST_CASE("each missing file is named") {
  for (const auto& [missing, unused] : good) {
    const TemporaryFolder folder;
    for (const auto& [name, bytes] : good) {
      if (name != missing) folder.write(name, bytes);
    }
    const std::string words = complaint([&] { read_mnist(folder.path()); });
    CHECK(contains(words, missing + " is not there, nor with .gz: put the four files"));
  }
  CHECK(contains(complaint([] { read_mnist("/no/such/folder"); }), "/no/such/folder/train-"));
}

TEST_CASE("each file cut off anywhere, or with a byte too many, is refused and named with the byte") {
  for (const auto& [name, bytes] : good) {
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      CAPTURE(length);
      const std::string words = complaint_with(name, bytes.substr(0, length));
      CHECK(contains(words, name + ", byte " + std::to_string(length) + ": the file is cut off"));
    }
    const std::string packed = gzipped(bytes);
    for (std::size_t length = 0; length < packed.size(); ++length) {
      CAPTURE(length);
      CHECK(contains(complaint_with(name, packed.substr(0, length)), name + ", byte "));
    }
    CHECK(contains(complaint_with(name, bytes + "x"), "byte " + std::to_string(bytes.size()) + ": the file is longer"));
  }
}

TEST_CASE("wrong headers") {
  const auto with_images = [](std::initializer_list<std::uint32_t> start) {
    return complaint_with("train-images-idx3-ubyte", big_endian(start) + std::string(60, '\1'));
  };
  CHECK(with_images({0x803, 3, 4, 5}).empty());
  CHECK(contains(with_images({0x801, 3, 4, 5}),
                 "byte 0: magic number 2049 instead of 2051: this is not an IDX file of images"));
  CHECK(contains(complaint_with("t10k-labels-idx1-ubyte", good.at("t10k-images-idx3-ubyte")),
                 "byte 0: magic number 2051 instead of 2049: this is not an IDX file of labels"));
  CHECK(contains(with_images({0x803, 0, 4, 5}), "byte 4: extent 0 is empty"));
  CHECK(contains(with_images({0x803, 3, 0, 5}), "byte 8: extent 0 is empty"));
  CHECK(contains(with_images({0x803, 3, 4, 1025}), "byte 12: extent 1025 is more than 1024 pixels"));
  CHECK(contains(with_images({0x803, 0xFFFFFFFF, 1024, 1024}), "byte 76: the file is cut off"));
  CHECK(contains(complaint_with("train-labels-idx1-ubyte", labels({})), "byte 4: extent 0 is empty"));
}

TEST_CASE("files that do not belong together, and labels that are not digits") {
  CHECK(contains(complaint_with("train-labels-idx1-ubyte", labels({7, 0})), "3 images, but "));
  CHECK(contains(complaint_with("train-labels-idx1-ubyte", labels({7, 0})), " has 2 labels: fetch both again"));
  CHECK(contains(complaint_with("train-labels-idx1-ubyte", labels({7, 10, 0})),
                 "train-labels-idx1-ubyte, byte 9: label 10 is not a digit"));
  CHECK(contains(complaint_with("t10k-labels-idx1-ubyte", labels({-1, 0})), "byte 8: label 255 is not a digit"));
  CHECK(contains(complaint_with("t10k-images-idx3-ubyte", big_endian({0x803, 2, 5, 4}) + std::string(40, '\1')),
                 "train have 4 × 5 pixels, those of t10k 5 × 4"));
  CHECK(contains(complaint_with("t10k-images-idx3-ubyte", big_endian({0x803, 2, 4, 6}) + std::string(48, '\1')),
                 "train have 4 × 5 pixels, those of t10k 4 × 6: take all four files from one place"));
}
