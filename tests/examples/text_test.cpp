// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "data/text.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "temporary_folder.hpp"

using namespace examples;

namespace text_test {

namespace {

using Tokens = std::vector<std::uint8_t>;

}  // namespace

TEST_CASE("the bytes that occur are numbered in their order, above 127 too") {
  const Text text = numbered("banana\xff\n");
  CHECK(text.vocabulary == "\nabn\xff");
  CHECK(text.tokens == Tokens{2, 1, 3, 1, 3, 1, 4, 0});
  std::string all;
  for (int byte = 255; byte >= 0; --byte) all.push_back(static_cast<char>(byte));
  const Text whole = numbered(all);
  REQUIRE(whole.vocabulary.size() == 256);
  CHECK(whole.tokens.front() == 255);
  CHECK(whole.vocabulary[200] == static_cast<char>(200));
}

TEST_CASE("files are read one after another") {
  const TemporaryFolder folder;
  const auto one = folder.write("one", "ab");
  const auto two = folder.write("two", std::string("c\0a", 3));
  const Text text = read_text({one, two});
  CHECK(text.vocabulary == std::string("\0abc", 4));
  CHECK(text.tokens == Tokens{1, 2, 3, 0, 1});
}

TEST_CASE("a file that cannot be read is named, and so is the lack of any text") {
  const TemporaryFolder folder;
  const auto there = folder.write("there", "x"), empty = folder.write("empty", "");
  const auto absent = folder.path() / "none.txt";
  CHECK(contains(complaint([&] { read_text({there, absent}); }), "none.txt cannot be opened (No such file"));
  CHECK(contains(complaint([&] { read_text({folder.path()}); }), "cannot be opened (Is a directory)"));
  CHECK(contains(complaint([&] { read_text({empty}); }), "the text is empty"));
  CHECK(contains(complaint([&] { read_text({}); }), "the text is empty"));
  CHECK(complaint([&] { read_text({empty, there}); }) == "");
}

TEST_CASE("a project's headers and pages are found in the order of their names, and nothing else") {
  const TemporaryFolder folder;
  CHECK(headers_and_pages(folder.path()).empty());
  for (const char* name : {"docs", "include", "include/b", "include/a"}) {
    std::filesystem::create_directory(folder.path() / name);
  }
  for (const char* name : {"include/b.hpp", "include/b/c.hpp", "include/a/d.hpp", "docs/e.md", "docs/f.txt", "g.md"}) {
    folder.write(name, "text");
  }
  std::vector<std::string> names;
  for (const auto& path : headers_and_pages(folder.path())) {
    names.push_back(path.lexically_relative(folder.path()).generic_string());
  }
  CHECK(names == std::vector<std::string>{"docs/e.md", "include/a/d.hpp", "include/b/c.hpp", "include/b.hpp"});
}

TEST_CASE("a batch has its sequences side by side, and what follows each token") {
  const Tokens tokens{0, 1, 2, 3, 4, 5, 6};
  const std::vector<std::size_t> places{3, 0};
  const TextBatch batch = sequences(TokenSpan(tokens), places, 3);
  CHECK(batch.length == 3);
  CHECK(batch.tokens == std::vector<Token>{3, 4, 5, 0, 1, 2});
  CHECK(batch.targets == std::vector<Token>{4, 5, 6, 1, 2, 3});
}

}  // namespace text_test
