// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "targets.hpp"

namespace {

namespace fs = std::filesystem;

/// Gives a target every file of its corpus, and returns their number.
std::size_t replay(const char* target, void (*run)(fuzz::Input)) {
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(FUZZ_CORPUS) / target)) {
    CAPTURE(entry.path().string());
    std::string content(static_cast<std::size_t>(fs::file_size(entry.path())), '\0');
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(entry.path().c_str(), "rb"), &std::fclose);
    REQUIRE(file != nullptr);
    REQUIRE(std::fread(content.data(), 1, content.size(), file.get()) == content.size());
    CHECK_NOTHROW(run(std::as_bytes(std::span(content))));
    ++files;
  }
  return files;
}

}  // namespace

TEST_CASE("every input of the fuzzers' corpora is read or rejected") {
  CHECK(replay("safetensors", fuzz::safetensors) > 10);
  CHECK(replay("manifest", fuzz::manifest) > 10);
  CHECK(replay("idx", fuzz::idx) > 10);
  CHECK(replay("csv", fuzz::csv) > 5);
  CHECK(replay("frames", fuzz::frames) > 5);
}
