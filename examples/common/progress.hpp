// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include <unistd.h>

namespace examples {

/// How much there is to do.
struct TrainingPlan {
  std::size_t epochs = 1;
  std::size_t steps_per_epoch = 1;
  std::size_t samples_per_step = 1;  ///< of all ranks together
  const char* epoch = "epoch";       ///< what these are called
  const char* samples = "samples";

  [[nodiscard]] constexpr std::size_t steps() const { return epochs * steps_per_epoch; }
};

/// Shows how far a training is: loss, samples per second, time left.
///
/// On a terminal one line is redrawn, at most ten times a second; anywhere else a line is printed at every tenth of
/// the way. The loss is the mean since it was last shown.
class ProgressBar {
 public:
  using clock = std::chrono::steady_clock;

  /// @param out borrowed; must outlive the bar
  /// @param terminal whether `out` can redraw a line
  ProgressBar(std::FILE* out, const TrainingPlan& plan, bool terminal,
              std::function<clock::time_point()> now = clock::now)
      : out_(out), plan_(plan), terminal_(terminal), now_(std::move(now)), start_(now_()), shown_(start_) {}

  ProgressBar(std::FILE* out, const TrainingPlan& plan) : ProgressBar(out, plan, can_redraw(out)) {}

  /// Leaves the terminal on a fresh line, also when the training ended early.
  ~ProgressBar() {
    if (line_open_) std::fputc('\n', out_);
    std::fflush(out_);
  }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// One more step is done, with this loss.
  /// @pre called at most plan.steps() times
  void step(double loss) {
    ++done_;
    loss_sum_ += loss;
    ++losses_;
    const clock::time_point now = now_();
    const std::size_t total = plan_.steps();
    const bool tenth = 10 * done_ / total > 10 * (done_ - 1) / total;
    if (terminal_ ? done_ == total || now - shown_ >= std::chrono::milliseconds(100) : tenth) show(now);
  }

 private:
  static bool can_redraw(std::FILE* out) {
    const char* terminal = std::getenv("TERM");  // launchers give their ranks one, also if they write to a file
    return isatty(fileno(out)) == 1 && terminal != nullptr && std::string(terminal) != "dumb";
  }

  void show(clock::time_point now) {
    const double seconds = std::chrono::duration<double>(now - start_).count();
    const double share = static_cast<double>(done_) / static_cast<double>(plan_.steps());
    const double rate = seconds > 0 ? static_cast<double>(done_ * plan_.samples_per_step) / seconds : 0;
    const auto left = static_cast<long long>(std::ceil(seconds * (1 / share - 1)));
    const std::size_t epoch = (done_ - 1) / plan_.steps_per_epoch + 1;
    const std::size_t filled = bar_width * done_ / plan_.steps();
    const std::string bar = " [" + std::string(filled, '#') + std::string(bar_width - filled, '.') + "]";
    std::array<char, 128> text{};
    const int length =
        std::snprintf(text.data(), text.size(), "%s %zu/%zu%s %3.0f%%  loss %.4f  %.0f %s/s  %lld:%02lld left",
                      plan_.epoch, epoch, plan_.epochs, terminal_ ? bar.c_str() : "", std::floor(100 * share),
                      loss_sum_ / static_cast<double>(losses_), rate, plan_.samples, left / 60, left % 60);
    // On a terminal a shorter line is padded, so that nothing of the one before it remains.
    const int padded = terminal_ ? std::exchange(length_, length) : 0;
    std::fprintf(out_, terminal_ ? "\r%-*s" : "%-*s\n", padded, text.data());
    std::fflush(out_);
    line_open_ = terminal_;
    shown_ = now;
    loss_sum_ = 0;
    losses_ = 0;
  }

  static constexpr std::size_t bar_width = 20;

  std::FILE* out_;
  TrainingPlan plan_;
  bool terminal_;
  std::function<clock::time_point()> now_;
  clock::time_point start_;
  clock::time_point shown_;
  std::size_t done_ = 0;
  double loss_sum_ = 0;
  std::size_t losses_ = 0;
  int length_ = 0;
  bool line_open_ = false;
};

}  // namespace examples
