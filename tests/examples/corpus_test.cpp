// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "data/corpus.hpp"

#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "temporary_folder.hpp"

using namespace examples;

namespace corpus_test {

namespace {

std::vector<Token> listed(const TokenSpan& tokens) {
  std::vector<Token> all;
  for (std::size_t i = 0; i < tokens.size(); ++i) all.push_back(tokens[i]);
  return all;
}

}  // namespace

TEST_CASE("the last tenth is held out") {
  const Corpus corpus(numbered("abcdefghijklmnopqrstuvwxy"));
  CHECK(corpus.training().size() == 23);
  CHECK(listed(corpus.held_out()) == std::vector<Token>{23, 24});
  CHECK(Corpus(numbered("abc")).held_out().size() == 0);
}

TEST_CASE("a token file has little-endian tokens of 2 or 4 bytes") {
  const TemporaryFolder folder;
  const auto path = folder.write("tokens.bin", std::string("\x01\x00\xff\xff\x03\x02\x01\x80", 8));
  CHECK(listed(TokenFile(path, 2).tokens()) == std::vector<Token>{1, 0xffff, 0x203, 0x8001});
  CHECK(listed(TokenFile(path, 4).tokens()) == std::vector<Token>{0xffff0001, 0x80010203});
  const auto copy = [&] { return TokenFile(path, 2); }();
  CHECK(copy.tokens().subspan(1, 2)[1] == 0x203);
}

TEST_CASE("a token file that is absent, empty or cut off is rejected with its name") {
  const TemporaryFolder folder;
  const auto odd = folder.write("odd.bin", "abc"), empty = folder.write("empty.bin", "");
  CHECK(contains(complaint([&] { TokenFile(folder.path() / "none.bin", 2); }), "none.bin' (No such"));
  CHECK(contains(complaint([&] { TokenFile(folder.path(), 2); }), "(Is a directory)"));
  CHECK(contains(complaint([&] { TokenFile(odd, 2); }), "odd.bin' has 3 bytes, not a multiple of the 2 of a token"));
  CHECK(contains(complaint([&] { TokenFile(empty, 4); }), "empty.bin' is empty"));
}

TEST_CASE("sequences of a text begin at each character, those of a token file follow one another") {
  const TemporaryFolder folder;
  std::string bytes;
  for (char token = 0; token < 12; ++token) bytes += {token, 1};
  const Corpus file(TokenFile(folder.write("tokens.bin", bytes), 2)), text(numbered("abcdefghijkl"));
  CHECK(file.vocabulary() == 256 + 12);
  CHECK(text.vocabulary() == 12);
  CHECK(complaint([&] { file.check(268); }) == "");
  CHECK(contains(complaint([&] { file.check(267); }), "token 267 at index 11 of --tokens is not among the 267"));
  CHECK(file.sequences(3) == 3);  // of the 11 tokens that are not held out
  CHECK(text.sequences(3) == 8);
  const std::vector<std::size_t> numbers{2, 0};
  CHECK(file.batch(numbers, 3).tokens == std::vector<Token>{262, 263, 264, 256, 257, 258});
  CHECK(file.batch(numbers, 3).targets == std::vector<Token>{263, 264, 265, 257, 258, 259});
  CHECK(text.batch(numbers, 3).tokens == std::vector<Token>{2, 3, 4, 0, 1, 2});
}

TEST_CASE("a sample is written as characters, or as the numbers of tokens") {
  const TemporaryFolder folder;
  const Corpus text(numbered("a\nb")), file(TokenFile(folder.write("tokens.bin", "\x07\x01"), 2));
  CHECK(text.prompt() == 0);
  CHECK(file.prompt() == 263);
  const std::vector<Token> sample{1, 2, 0};
  CHECK(text.to_string(sample) == "ab\n");
  CHECK(file.to_string(sample) == "1 2 0");
}

}  // namespace corpus_test
