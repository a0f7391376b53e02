// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <fstream>

#include <distx/checkpoint.hpp>

#include "examples/temporary_folder.hpp"

namespace {

using Folder = examples::TemporaryFolder;

std::string file_of(const std::string& header, const std::string& data, std::uint64_t length) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(length >> (8 * i) & 0xff);
  return text + header + data;
}
std::string file_of(const std::string& header, const std::string& data = "") {
  return file_of(header, data, header.size());
}
/// Returns the entry of a tensor in a header.
std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& offsets) {
  return R"(")" + name + R"(":{"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

/// Returns the message of the CheckpointError that opening a file of this content throws; empty if it opens.
std::string message_of(const Folder& folder, const std::string& content) {
  const auto path = folder.path() / "x.safetensors";
  std::ofstream(path, std::ios::binary) << content;
  try {
    const distx::checkpoint::SafetensorsFile file(path);
    std::size_t sum = 0;
    for (const auto& tensor : file.tensors())
      for (const auto byte : file.bytes(tensor)) sum += static_cast<std::size_t>(byte);
    CHECK(sum < SIZE_MAX);
    return "";
  } catch (const distx::CheckpointError& error) {
    CHECK(error.message().find("x.safetensors") != std::string::npos);
    return error.message();
  }
}

template <class T>
std::span<const std::byte> bytes_of(const T& values) {
  return std::as_bytes(std::span(values));
}

std::string good_file() {
  return file_of(R"({"__metadata__":{"format":"pt","é":"\u00e9"},)" + entry("a.weight", "F32", "[2,3]", "[0,24]") +
                     "," + entry("b", "BF16", "[4]", "[24,32]") + "," + entry("none", "I64", "[0,7]", "[32,32]") + "," +
                     entry("scalar", "U8", "[]", "[32,33]") + "}",
                 std::string(33, 'x'));
}

}  // namespace

TEST_CASE("a written safetensors file is read back with names, shapes, types and bytes") {
  const Folder folder;
  const std::array<float, 6> weight{1, 2, 3, 4, 5, 6};
  const std::array<std::uint8_t, 3> bytes{7, 8, 9};
  const std::array<double, 1> scalar{0.5};
  const auto path = folder.path() / "model.safetensors";
  distx::checkpoint::write_safetensors(path,
                                       {{"bytes", "U8", {3}, bytes_of(bytes)},
                                        {"weight", "F32", {2, 3}, bytes_of(weight)},
                                        {"empty", "I16", {4, 0}, {}},
                                        {"scalar \"é\"", "F64", {}, bytes_of(scalar)}},
                                       {{"format", "pt"}});
  const distx::checkpoint::SafetensorsFile file(path);
  CHECK(file.metadata() == std::map<std::string, std::string>{{"format", "pt"}});
  REQUIRE(file.tensors().size() == 4);
  CHECK(file.header_bytes().size() % 8 == 0);
  const auto* found = file.find("weight");
  REQUIRE(found != nullptr);
  CHECK(found->type == "F32");
  CHECK(found->shape == std::vector<std::uint64_t>{2, 3});
  CHECK(found->begin % 4 == 0);
  CHECK(std::memcmp(file.bytes(*found).data(), weight.data(), sizeof weight) == 0);
  CHECK(std::memcmp(file.bytes(*file.find("bytes")).data(), bytes.data(), sizeof bytes) == 0);
  CHECK(file.bytes(*file.find("empty")).empty());
  CHECK(file.find("scalar \"é\"")->elements() == 1);
  CHECK(file.find("scalar \"é\"")->begin == 0);  // the largest elements first
  CHECK(file.find("other") == nullptr);
}

TEST_CASE("every element type of distx has a type of the format and of its size") {
  using namespace distx::checkpoint::detail;
  for (std::size_t i = 0; i < distx::detail::element_type_count; ++i) {
    const auto element = static_cast<distx::ElementType>(i);
    const FileType* const type = find_file_type(file_type_of(element));
    REQUIRE(type != nullptr);
    CHECK(type->bits == 8 * distx::size_of(element));
    CHECK((element == distx::ElementType::bytes || type->element == element));
  }
}

TEST_CASE("writing rejects what a file cannot hold, and overwrites nothing") {
  const Folder folder;
  const std::array<float, 2> values{1, 2};
  const auto path = folder.path() / "x.safetensors";
  const auto write = [&](std::vector<distx::checkpoint::SafetensorsInput> tensors) {
    distx::checkpoint::write_safetensors(path, tensors);
  };
  CHECK_THROWS_AS(write({{"a", "F31", {2}, bytes_of(values)}}), distx::InvalidArgument);
  CHECK_THROWS_AS(write({{"a", "F32", {3}, bytes_of(values)}}), distx::InvalidArgument);
  CHECK_THROWS_AS(write({{"a", "F32", {2}, bytes_of(values)}, {"a", "F32", {2}, bytes_of(values)}}),
                  distx::InvalidArgument);
  CHECK_THROWS_AS(write({{"\xff", "F32", {2}, bytes_of(values)}}), distx::InvalidArgument);
  CHECK(std::filesystem::is_empty(folder.path()));
  write({{"a", "F32", {2}, bytes_of(values)}});
  CHECK_THROWS_AS(write({{"b", "F32", {2}, bytes_of(values)}}), distx::CheckpointError);
  CHECK(distx::checkpoint::SafetensorsFile(path).find("a") != nullptr);
  CHECK_THROWS_AS(distx::checkpoint::write_safetensors(folder.path() / "no" / "x", {}), distx::CheckpointError);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("a file without tensors opens") {
  const Folder folder;
  distx::checkpoint::write_safetensors(folder.path() / "x", {});
  CHECK(distx::checkpoint::SafetensorsFile(folder.path() / "x").tensors().empty());
}

TEST_CASE("an absent file, a folder and a device are CheckpointErrors") {
  const Folder folder;
  CHECK_THROWS_AS(distx::checkpoint::SafetensorsFile(folder.path() / "no"), distx::CheckpointError);
  CHECK_THROWS_AS(distx::checkpoint::SafetensorsFile{folder.path()}, distx::CheckpointError);
  CHECK_THROWS_AS(distx::checkpoint::SafetensorsFile("/dev/null"), distx::CheckpointError);
}

TEST_CASE("a file with any header bit flipped opens whole or is a CheckpointError") {
  const Folder folder;
  const std::string good = good_file();
  REQUIRE(message_of(folder, good) == "");
  std::size_t opened = 0;
  for (std::size_t i = 0; i + 33 < good.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = good;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      opened += message_of(folder, flipped).empty() ? 1 : 0;
    }
  CHECK(opened > 0);  // in names
  CHECK(opened < 3 * good.size());
}

TEST_CASE("a file truncated or extended anywhere is a CheckpointError") {
  const Folder folder;
  const std::string good = good_file();
  for (std::size_t size = 0; size < good.size(); ++size) CHECK(message_of(folder, good.substr(0, size)) != "");
  CHECK(message_of(folder, good + "x") != "");
}

TEST_CASE("invalid headers are CheckpointErrors that say what is wrong") {
  const Folder folder;
  const auto check = [&](const std::string& content, const std::string& words) {
    const auto message = message_of(folder, content);
    CAPTURE(message);
    CAPTURE(words);
    CHECK(message.find(words) != std::string::npos);
  };
  const std::string four(4, 'x');
  const auto one = [&](const std::string& tensor) { return file_of("{" + tensor + "}", four); };
  check("", "0 bytes");
  check(std::string(8, '\0'), "does not begin");
  check(file_of("{}", "", std::uint64_t{1} << 63), "9223372036854775808");
  check(file_of("{}", "", ~std::uint64_t{0}), "18446744073709551615");
  check(file_of("{}", "", 100'000'001), "the format's 100000000");
  check(file_of("{}", "", 3), "ends inside its header");
  check(file_of("[]"), "does not begin");
  check(file_of(" {}"), "does not begin");
  check(file_of("{}{}"), "not JSON");
  check(file_of("{"), "not JSON");
  check(file_of("{}", "x"), "1 bytes of data");
  check(file_of(R"({"a":1})"), "a number");
  check(file_of(R"({"a":null})"), "null");
  check(file_of(R"({"a":)" + std::string(100'000, '[')), "an array");
  check(file_of(std::string(100'000, '{')), "not JSON");
  std::string deep;
  for (int i = 0; i < 50'000; ++i) deep += R"({"a":)";
  check(file_of(deep), "unknown member");
  check(file_of(R"({"__metadata__":{"a":1}})"), "a number");
  check(file_of(R"({"__metadata__":{"a":"b","a":"b"}})"), "'a' twice");
  check(file_of("{\"\xff\":{}}"), "not JSON in UTF-8");
  check(file_of("{\"__metadata__\":{\"a\":\"\xc3\"}}"), "not JSON in UTF-8");
  check(one(R"("a":{})"), "no dtype");
  check(one(R"("a":{"dtype":"F32","shape":[1]})"), "no data_offsets");
  check(one(R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1})"), "unknown member 'more'");
  check(one(R"("a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]})"), "'dtype' twice");
  check(one(entry("a", "F31", "[1]", "[0,4]")), "unknown type 'F31'");
  check(one(entry("a", "F32", "[1]", "[0]")), "fewer than two");
  check(one(entry("a", "F32", "[1]", "[0,4,8]")), "more than two");
  check(one(entry("a", "F32", "[-1]", "[0,4]")), "a negative number");
  check(one(entry("a", "F32", "[1.0]", "[0,4]")), "the number 1.0");
  check(one(entry("a", "F32", "[18446744073709551616]", "[0,4]")), "the number 18446744073709551616");
  check(one(entry("a", "F32", "[[1]]", "[0,4]")), "an array");
  check(one(entry("a", "F32", "[1]", "[0,4]") + "," + entry("a", "F32", "[1]", "[4,4]")), "'a' twice");
  check(one(entry("a", "F32", "[2]", "[0,4]")), "need 8");
  check(one(entry("a", "F32", "[1]", "[4,0]")), "at bytes 4 to 0");
  check(one(entry("a", "F32", "[1]", "[0,8]")), "at bytes 0 to 8");
  check(one(entry("a", "U8", "[3]", "[1,4]")), "'a' at byte 1");
  check(one(entry("a", "U8", "[3]", "[0,3]")), "end at 3");
  check(one(entry("a", "U8", "[2]", "[0,2]") + "," + entry("b", "U8", "[1]", "[3,4]")), "'b' at byte 3");
  check(one(entry("a", "U8", "[3]", "[0,3]") + "," + entry("b", "U8", "[2]", "[2,4]")), "'b' at byte 2");
  check(one(entry("a", "F32", "[4294967296,4294967296]", "[0,4]")), "too many elements");
  check(one(entry("a", "F32", "[4611686018427387904]", "[0,0]")), "too many elements");
  check(one(entry("a", "F32", "[4611686018427387904,4,0]", "[0,0]")), "too many elements");
  check(one(entry("a", "F4", "[3]", "[0,4]")), "no whole number of bytes");
  CHECK(message_of(folder, one(entry("a", "F4", "[8]", "[0,4]"))) == "");
  CHECK(message_of(folder, one(entry("a", "F8_E8M0", "[4]", "[0,4]"))) == "");
  CHECK(message_of(folder, file_of("{}      ")) == "");
}
