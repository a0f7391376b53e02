// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "data/digits_csv.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "temporary_folder.hpp"

using namespace examples;

namespace digits_csv_test {

namespace {

/// A line whose pixels count up from `first`, modulo 17.
std::string line(int first, const std::string& label) {
  std::string text;
  for (int i = 0; i < 64; ++i) text += std::to_string((first + i) % 17) + ",";
  return text + label;
}

const std::string three = line(0, "4") + "\n" + line(1, "0") + "\n" + line(2, "9") + "\n";

}  // namespace

TEST_CASE("text of digits is read as it is, gzipped, with carriage returns, or without a last newline") {
  const TemporaryFolder folder;
  const std::string returns = line(0, "4") + "\r\n" + line(1, "0") + "\r\n" + line(2, "9") + "\r\n";
  for (const std::string& bytes : {three, gzipped(three), three.substr(0, three.size() - 1), returns}) {
    const Digits digits = read_digits_csv(folder.write("digits", bytes));
    CHECK(digits.height == 8);
    CHECK(digits.width == 8);
    CHECK(digits.labels == std::vector<std::uint8_t>{4, 0, 9});
    REQUIRE(digits.images.size() == 3 * 64);
    for (std::size_t i = 0; i < digits.images.size(); ++i) {
      CHECK(digits.images[i] == static_cast<float>((i / 64 + i % 64) % 17) / 16);
    }
  }
}

TEST_CASE("a file that is not there or cannot be read is named, with the reason") {
  const TemporaryFolder folder;
  const std::string absent = complaint([&] { read_digits_csv(folder.path() / "none.csv.gz"); });
  CHECK(contains(absent, "none.csv.gz cannot be opened (No such file or directory)"));
  CHECK(contains(complaint([&] { read_digits_csv(folder.path()); }), "cannot be read"));
  CHECK(contains(complaint([&] { read_digits_csv(folder.write("empty", "")); }), "the file is empty"));
  CHECK(contains(complaint([&] { read_digits_csv(folder.write("empty", gzipped(""))); }), "the file is empty"));
}

TEST_CASE("a gzipped file cut off anywhere is refused") {
  const TemporaryFolder folder;
  const std::string whole = gzipped(three);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    const auto path = folder.write("cut.csv.gz", whole.substr(0, length));
    CHECK(contains(complaint([&] { read_digits_csv(path); }), "cut.csv.gz, "));
  }
  const auto path = folder.write("cut.csv.gz", whole.substr(0, whole.size() - 20));
  CHECK(contains(complaint([&] { read_digits_csv(path); }),
                 "byte " + std::to_string(whole.size() - 20) + ": the file is cut off: fetch it again"));
}

TEST_CASE("data after the end of a gzip stream is refused, another gzip stream is read") {
  const TemporaryFolder folder;
  const std::string whole = gzipped(three);
  for (const std::string& garbage : {std::string(1, '\0'), std::string("x"), three, std::string(100000, 'x')}) {
    const auto path = folder.write("trailing.csv.gz", whole + garbage);
    CHECK(contains(complaint([&] { read_digits_csv(path); }),
                   "trailing.csv.gz, byte " + std::to_string(whole.size()) + ": other data follows"));
  }
  CHECK(read_digits_csv(folder.write("two.csv.gz", whole + whole)).size() == 6);
}

TEST_CASE("a damaged gzipped file gives an error or the same digits") {
  const TemporaryFolder folder;
  const std::string whole = gzipped(three);
  const Digits expected = read_digits_csv(folder.write("whole", whole));
  int errors = 0;
  for (std::size_t place = 0; place < whole.size(); ++place) {
    CAPTURE(place);
    std::string bytes = whole;
    bytes[place] = static_cast<char>(bytes[place] ^ 0x55);
    const auto path = folder.write("damaged", bytes);
    Digits digits;
    const std::string words = complaint([&] { digits = read_digits_csv(path); });
    if (words.empty()) CHECK(digits.images == expected.images);
    errors += words.empty() ? 0 : 1;
  }
  CHECK(errors > static_cast<int>(whole.size()) - 8);  // six bytes of the header, time and system, mean nothing here
}

TEST_CASE("plain text cut off anywhere but between two lines is refused") {
  const TemporaryFolder folder;
  const std::size_t length_of_line = line(0, "4").size();
  for (std::size_t length = 0; length < three.size(); ++length) {
    CAPTURE(length);
    const auto path = folder.write("cut.csv", three.substr(0, length));
    const std::string kept = three.substr(0, length);
    const bool between = length >= length_of_line && (kept.back() == '\n' || three[length] == '\n');
    CHECK(complaint([&] { read_digits_csv(path); }).empty() == between);
  }
}

TEST_CASE("a wrong line is named by its number, with what is wrong in it") {
  const TemporaryFolder folder;
  const auto says = [&](const std::string& second) {
    const auto path = folder.write("bad.csv", line(0, "1") + "\n" + second + "\n" + line(0, "2") + "\n");
    return complaint([&] { read_digits_csv(path); });
  };
  const std::string good = line(3, "7");
  CHECK(says(good).empty());
  CHECK(contains(says(good + ",1"), "bad.csv, line 2: columns: 66 instead of 65"));
  CHECK(contains(says(good.substr(2)), "bad.csv, line 2: columns: 64 instead of 65"));
  CHECK(contains(says(""), "bad.csv, line 2: columns: 1 instead of 65"));
  CHECK(contains(says(line(3, "10")), "line 2: the label is \"10\", not a whole number from 0 to 9"));
  CHECK(contains(says(line(3, "-1")), "line 2: the label is \"-1\""));
  CHECK(contains(says(line(3, "")), "line 2: the label is \"\""));
  CHECK(contains(says("17" + good.substr(1)), "line 2: pixel 1 is \"17\", not a whole number from 0 to 16"));
  CHECK(contains(says("-1" + good.substr(1)), "pixel 1 is \"-1\""));
  CHECK(contains(says("x" + good.substr(1)), "pixel 1 is \"x\""));
  CHECK(contains(says("1.5" + good.substr(1)), "pixel 1 is \"1.5\""));
  CHECK(contains(says(" 1" + good.substr(1)), "pixel 1 is \" 1\""));
  CHECK(contains(says("99999999999" + good.substr(1)), "pixel 1 is \"99999999999\""));
  CHECK(contains(says(good.substr(0, 2) + "nan" + good.substr(3)), "pixel 2 is \"nan\""));
}

TEST_CASE("the real digits") {
  const char* path = std::getenv("DISTX_DIGITS");
  if (path == nullptr) {
    MESSAGE("skipped: DISTX_DIGITS does not name the real digits (digits.csv.gz of python3-sklearn)");
    return;
  }
  const Digits digits = read_digits_csv(path);
  CHECK(digits.size() == 1797);
  std::array<int, 10> classes{};
  for (const std::uint8_t label : digits.labels) ++classes.at(label);
  CHECK(classes == std::array{178, 182, 177, 183, 181, 182, 181, 179, 174, 180});
  const double ink = 16 * std::accumulate(digits.images.begin(), digits.images.end(), 0.0);
  CHECK(ink == 561718);
  const TemporaryFolder folder;
  std::ifstream file(path, std::ios::binary);
  const std::string packed(std::istreambuf_iterator<char>(file), {});
  for (std::size_t length = 0; length < packed.size(); length += 997) {
    const auto cut = folder.write("digits.csv.gz", packed.substr(0, length));
    CHECK(contains(complaint([&] { read_digits_csv(cut); }), "digits.csv.gz, "));
  }
}

}  // namespace digits_csv_test
