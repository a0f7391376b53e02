// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "common/progress.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include <doctest/doctest.h>

using namespace examples;
using namespace std::chrono_literals;

namespace {

/// A file that keeps what is printed, and a clock that goes when told.
struct Stage {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::tmpfile(), &std::fclose};
  ProgressBar::clock::time_point time{};

  [[nodiscard]] std::string printed() const {
    std::fflush(file.get());
    std::rewind(file.get());
    std::string text;
    for (int byte = std::fgetc(file.get()); byte != EOF; byte = std::fgetc(file.get())) text += static_cast<char>(byte);
    return text;
  }
};

}  // namespace

TEST_CASE("where no line can be redrawn, one is printed at every tenth of the way") {
  Stage stage;
  {
    ProgressBar bar(stage.file.get(), {4, 25, 64}, false, [&] { return stage.time; });
    for (int step = 0; step < 100; ++step) {
      stage.time += 2s;
      bar.step(step);  // so the ten last losses have the mean 10 k + 4.5
    }
  }
  const std::string text = stage.printed();
  CHECK(std::ranges::count(text, '\n') == 10);
  CHECK(text.find('\r') == std::string::npos);
  CHECK(text.starts_with("epoch 1/4  10%  loss 4.5000  32 samples/s  3:00 left\n"));
  CHECK(text.find("\nepoch 2/4  50%  loss 44.5000  32 samples/s  1:40 left\n") != std::string::npos);
  CHECK(text.ends_with("\nepoch 4/4 100%  loss 94.5000  32 samples/s  0:00 left\n"));
}

TEST_CASE("fewer steps than tenths: one line each") {
  Stage stage;
  ProgressBar bar(stage.file.get(), {3, 1, 1}, false, [&] { return stage.time; });
  for (int step = 0; step < 3; ++step) bar.step(1);  // no time passes: no rate, and no division by zero
  CHECK(stage.printed() ==
        "epoch 1/3  33%  loss 1.0000  0 samples/s  0:00 left\n"
        "epoch 2/3  66%  loss 1.0000  0 samples/s  0:00 left\n"
        "epoch 3/3 100%  loss 1.0000  0 samples/s  0:00 left\n");
}

TEST_CASE("epochs and samples are shown under the names that the plan gives") {
  Stage stage;
  ProgressBar bar(stage.file.get(), {1, 1, 64, "step", "characters"}, false, [&] { return stage.time; });
  stage.time += 2s;
  bar.step(1);
  CHECK(stage.printed() == "step 1/1 100%  loss 1.0000  32 characters/s  0:00 left\n");
}

TEST_CASE("on a terminal one line is redrawn, ten times a second at most and at the end") {
  Stage stage;
  {
    ProgressBar bar(stage.file.get(), {1, 40, 8}, true, [&] { return stage.time; });
    for (int step = 0; step < 30; ++step) {
      stage.time += 10ms;
      bar.step(1);
    }
    std::string text = stage.printed();
    CHECK(std::ranges::count(text, '\r') == 3);
    CHECK(text.find('\n') == std::string::npos);
    CHECK(text.starts_with("\repoch 1/1 [#####...............]  25%  loss 1.0000  800 samples/s  0:01 left\r"));
    for (int step = 30; step < 40; ++step) bar.step(0.5);
    text = stage.printed();
    CHECK(std::ranges::count(text, '\r') == 4);
    CHECK(text.ends_with("\repoch 1/1 [####################] 100%  loss 0.5000  1067 samples/s  0:00 left"));
  }
  CHECK(stage.printed().ends_with(" left\n"));
}

TEST_CASE("a shorter line covers the longer one before it") {
  Stage stage;
  ProgressBar bar(stage.file.get(), {1, 2, 1}, true, [&] { return stage.time; });
  stage.time += 1000s;
  bar.step(12345.0);
  bar.step(1);
  const std::string text = stage.printed();
  const std::size_t second = text.rfind('\r');
  CHECK(text.size() - second >= second);
}

TEST_CASE("a training that ends early leaves the terminal on a fresh line, once something was drawn") {
  Stage stage;
  {
    ProgressBar bar(stage.file.get(), {1, 100, 1}, true, [&] { return stage.time; });
    bar.step(1);  // too early to draw
  }
  CHECK(stage.printed().empty());
  {
    ProgressBar bar(stage.file.get(), {1, 100, 1}, true, [&] { return stage.time; });
    stage.time += 1s;
    bar.step(1);
  }
  CHECK(stage.printed().ends_with("left\n"));
}

TEST_CASE("a file is not a terminal") {
  Stage stage;
  {
    ProgressBar bar(stage.file.get(), {1, 1, 1});
    bar.step(1);
  }
  CHECK(stage.printed().starts_with("epoch 1/1 100%  loss 1.0000  "));
}
