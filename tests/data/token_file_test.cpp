// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <sys/sysinfo.h>
#include <distx/data/file/token_file.hpp>
#include <distx/training.hpp>

#include <cstring>
#include <fstream>
#include <numeric>

namespace {

using distx::TokenFile;

/// A file in a temporary folder, removed at the end.
class File {
 public:
  explicit File(std::span<const std::byte> bytes = {}) {
    std::string name = (std::filesystem::temp_directory_path() / "distx-tokens-XXXXXX").string();
    const int descriptor = ::mkstemp(name.data());
    REQUIRE(descriptor >= 0);
    path = name;
    REQUIRE(::write(descriptor, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
    ::close(descriptor);
  }
  File(File&&) = delete;
  ~File() { std::filesystem::remove(path); }
  std::filesystem::path path;
};

template <class Token>
std::vector<Token> counted(std::size_t n) {
  std::vector<Token> tokens(n);
  std::iota(tokens.begin(), tokens.end(), Token{0});
  return tokens;
}

/// Returns the bytes of mapped files in memory, which do not include the shadow memory of sanitizers.
std::size_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::size_t kibibytes = 0;
  for (std::string word; status >> word;)
    if (word == "RssFile:") status >> kibibytes;
  return kibibytes << 10;
}

}  // namespace

TEST_CASE_TEMPLATE("windows at any offset are the file's tokens", Token, std::uint16_t, std::uint32_t) {
  const auto tokens = counted<Token>(10000);
  const File file(std::as_bytes(std::span(tokens)));
  const TokenFile<Token> mapped(file.path);
  CHECK(mapped.size() == 10000);
  for (const std::size_t offset : {0u, 1u, 2047u, 2048u, 4097u, 9999u, 10000u})
    for (const std::size_t length : {0u, 1u, 33u, 5000u}) {
      if (offset + length > tokens.size()) continue;
      CHECK(std::ranges::equal(mapped.window(offset, length), std::span(tokens).subspan(offset, length)));
    }
  CHECK(mapped.windows(10000, 7) == 1);
  CHECK(mapped.windows(10001, 7) == 0);
  CHECK(mapped.windows(101, 100) == 99);
  CHECK(mapped.window(100 * 98, 101).back() == 9900);
  const auto before = mapped.window(5, 1);
  TokenFile<Token> moved = std::move(const_cast<TokenFile<Token>&>(mapped));
  CHECK(moved.window(5, 1).data() == before.data());
}

TEST_CASE("the low byte of a token is first") {
  const std::uint8_t bytes[] = {1, 2, 3, 4};
  const File file(std::as_bytes(std::span(bytes)));
  CHECK(TokenFile<std::uint16_t>(file.path).window(0, 2)[1] == 0x0403);
  CHECK(TokenFile<std::uint32_t>(file.path).window(0, 1)[0] == 0x04030201);
}

TEST_CASE("windows beyond the file throw InvalidArgument, also where offset and length overflow") {
  const auto tokens = counted<std::uint16_t>(100);
  const File file(std::as_bytes(std::span(tokens)));
  const TokenFile<std::uint16_t> mapped(file.path);
  for (const auto& [offset, length] : {std::pair<std::size_t, std::size_t>{0, 101},
                                       {100, 1},
                                       {101, 0},
                                       {50, 51},
                                       {2, ~std::size_t{0}},
                                       {~std::size_t{0}, 2}})
    CHECK_THROWS_WITH_AS(static_cast<void>(mapped.window(offset, length)), doctest::Contains("has 100 tokens"),
                         distx::InvalidArgument);
}

TEST_CASE("files that are absent, empty, not whole or not regular throw DataError with the path") {
  const auto opens = [](const std::filesystem::path& path) { const TokenFile<std::uint32_t> file(path); };
  const File empty, odd(std::as_bytes(std::span("abcde")));  // with the terminating zero, 6 bytes
  CHECK_THROWS_WITH_AS(opens("/absent/file.bin"), doctest::Contains("cannot open '/absent/file.bin' (No such file"),
                       distx::DataError);
  CHECK_THROWS_WITH_AS(opens(empty.path), doctest::Contains("is empty"), distx::DataError);
  CHECK_THROWS_WITH_AS(opens(odd.path), doctest::Contains("has 6 bytes, not a multiple of the 4 of a token"),
                       distx::DataError);
  CHECK_THROWS_WITH_AS(opens(empty.path.parent_path()), doctest::Contains("Is a directory"), distx::DataError);
  CHECK_THROWS_AS(opens("/dev/null"), distx::DataError);
}

TEST_CASE("check reports the first token beyond the vocabulary, with its position") {
  std::vector<std::uint16_t> tokens(20'000'000, 41);  // more than are read at once
  const auto position = tokens.size() - 3;
  tokens[position] = 50000;
  const File file(std::as_bytes(std::span(tokens)));
  const TokenFile<std::uint16_t> mapped(file.path);
  CHECK_NOTHROW(mapped.check(50001));
  CHECK_THROWS_WITH_AS(mapped.check(50000),
                       doctest::Contains(("has the token 50000 at position " + std::to_string(position) +
                                          ", and the vocabulary has 50000 tokens")
                                             .c_str()),
                       distx::DataError);
  CHECK_THROWS_WITH_AS(mapped.check(41), doctest::Contains("at position 0,"), distx::DataError);
}

TEST_CASE("a file that is truncated while it is open throws DataError from the next window, in a loader's worker too") {
  const auto tokens = counted<std::uint16_t>(100000);
  const File file(std::as_bytes(std::span(tokens)));
  const TokenFile<std::uint16_t> mapped(file.path);
  const distx::DistributedSampler sampler(mapped.windows(100, 100), 0, 1, {.batch_size = 1});
  const distx::DataLoader loader(sampler, [&](std::size_t i) { return mapped.window(100 * i, 100)[0]; });
  CHECK_NOTHROW(static_cast<void>(loader.epoch(0).next()));
  std::filesystem::resize_file(file.path, 1000);
  const char* const message = "was truncated from 200000 to 1000 bytes";
  CHECK_THROWS_WITH_AS(static_cast<void>(mapped.window(0, 1)), doctest::Contains(message), distx::DataError);
  CHECK_THROWS_WITH_AS(mapped.check(65536), doctest::Contains(message), distx::DataError);
  CHECK_THROWS_WITH_AS(static_cast<void>(loader.epoch(0).next()), doctest::Contains(message), distx::DataError);
}

TEST_CASE("a file larger than memory is sampled with little resident memory") {
  struct sysinfo system {};
  REQUIRE(::sysinfo(&system) == 0);
  const std::size_t memory = (system.totalram + system.totalswap) * system.mem_unit;
  constexpr std::size_t window = 1 << 16;
  const std::size_t windows = (memory + (std::size_t{64} << 30)) / (sizeof(std::uint16_t) * window);
  const File file;
  std::error_code error;
  std::filesystem::resize_file(file.path, windows * window * sizeof(std::uint16_t), error);  // without blocks
  if (error) {
    MESSAGE("skipped: the file system of " << file.path << " has no files larger than memory: " << error.message());
    return;
  }
  {
    std::fstream end(file.path, std::ios::in | std::ios::out | std::ios::binary);
    end.seekp(-2, std::ios::end);
    end.write("\x39\x30", 2);
  }
  const TokenFile<std::uint16_t> mapped(file.path);
  REQUIRE(mapped.windows(window, window) == windows);
  const std::size_t before = resident_bytes();
  CHECK(mapped.window(mapped.size() - 1, 1)[0] == 12345);
  const distx::DistributedSampler sampler(windows, 1, 3, {.batch_size = 4, .seed = 2});
  const distx::DataLoader loader(sampler, [&](std::size_t i) { return mapped.window(window * i, window); });
  std::size_t sum = 0;
  auto epoch = loader.epoch(0);
  const std::size_t sampling = resident_bytes();
  for (int batch = 0; batch < 50; ++batch) {
    const auto samples = epoch.next();
    REQUIRE(samples.has_value());
    for (const auto& tokens : *samples) sum = std::accumulate(tokens.begin(), tokens.end(), sum);
  }
  CHECK((sum == 0 || sum == 12345));
  const std::size_t touched = std::size_t{50} * 4 * window * sizeof(std::uint16_t);
  CHECK(resident_bytes() > sampling);  // it is measured at all
  CHECK(resident_bytes() < sampling + touched + (std::size_t{4} << 20));
  MESSAGE("a file of " << (mapped.size() >> 29) << " GiB, " << (memory >> 30) << " GiB of memory and swap: resident "
                       << ((resident_bytes() - before) >> 20) << " MiB more");
}
