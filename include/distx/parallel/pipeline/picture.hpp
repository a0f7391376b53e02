// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cmath>

#include "distx/parallel/pipeline/schedule.hpp"

namespace distx::inline DISTX_ABI::pipeline {

/// Draws a timeline in characters, a line for each rank: forward passes as the last digit of their micro-batch,
/// backward passes as letters (a for micro-batch 0), backward_weight as capitals, and waiting as dots.
/// @param unit  the time of a character; > 0
[[nodiscard]] inline std::string picture(const Timeline& timeline, double unit) {
  const double first = begin_of(timeline);
  const auto at = [&](double time) { return static_cast<std::size_t>(std::lround((time - first) / unit)); };
  std::string text;
  for (std::size_t rank = 0; rank < timeline.size(); ++rank) {
    std::string line(at(first + length(timeline)), '.');
    for (const auto& [step, begin, end] : timeline[rank]) {
      if (is_message(step.action)) continue;
      const char base = step.action == Action::forward ? '0' : step.action == Action::backward_weight ? 'A' : 'a';
      const int count = base == '0' ? 10 : 26;
      const std::size_t from = std::min(at(begin), line.size());
      line.replace(from, at(end) - from, at(end) - from, static_cast<char>(base + step.micro_batch % count));
    }
    text += "rank " + std::to_string(rank) + " |" + line + "|\n";
  }
  return text;
}

}  // namespace distx::inline DISTX_ABI::pipeline
