// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The time of an optimizer's fused update relative to kernels that only move the same memory, alternating on one core.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <distx/memory/buffer.hpp>
#include <distx/optim/adamw.hpp>
#include <distx/optim/fused_update.hpp>
#include <distx/optim/sgd.hpp>

namespace {

/// Reads a weight, its gradient and its states, writes the weight and the states, and computes next to nothing.
template <std::size_t States>
struct Move {
  static constexpr std::size_t states = States;
  template <class T>
  int coefficients(const distx::Step&) const {
    return 0;
  }
  template <class V, class... S>
  static constexpr void update(int, V& weight, V gradient, V& first, S&... others) {
    const V kept = first;
    ((first = others, others = kept), ...);
    first = first + gradient;
    weight = kept;
  }
};

struct Arrays {
  distx::Buffer<float> weight, gradient, first, second;

  explicit Arrays(std::size_t n) : weight(n), gradient(n), first(n), second(n) {
    for (std::size_t i = 0; i < n; ++i) gradient[i] = 1e-3f * static_cast<float>(i % 1000) - 0.5f;
  }
};

/// The plain loop for AdamW's 28 bytes of each parameter: no help for the memory but the processor's own.
[[gnu::noinline]] void move_plainly(float* weight, const float* gradient, float* first, float* second, std::size_t n) {
  using V = distx::lanes::Lanes<float>;
  for (std::size_t i = 0; i < n; i += V::size) {
    const V w = V::load(weight + i), g = V::load(gradient + i), m = V::load(first + i), v = V::load(second + i);
    m.store(weight + i);
    (v + g).store(first + i);
    w.store(second + i);
  }
}

template <class Optimizer>
void update(const Optimizer& optimizer, Arrays& arrays) {
  const distx::Step step{.learning_rate = 1e-3};
  std::array<distx::Span<float>, Optimizer::states> states;
  const std::array<distx::Span<float>, 2> all{arrays.first.span(), arrays.second.span()};
  std::copy_n(all.begin(), states.size(), states.begin());
  distx::fused_update(distx::HostStream{}, optimizer, step, arrays.weight.span(),
                      distx::Span<const float>(arrays.gradient), states);
}

/// The same on registers that every processor has.
template <class Optimizer>
void update_on_common_lanes(const Optimizer& optimizer, Arrays& arrays) {
  const std::size_t widest = std::exchange(distx::detail::lane_bytes(), distx::detail::common_lane_bytes);
  update(optimizer, arrays);
  distx::detail::lane_bytes() = widest;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Subject {
  std::string name;
  std::size_t bytes;  // moved for each parameter
  std::function<void()> pass;
  std::size_t mover;  // the subject that this one is held against
  std::vector<double> seconds{};
};

nlohmann::json measure(std::size_t elements, int rounds) {
  Arrays arrays(elements);
  std::vector<Subject> subjects{
      {"move 28 bytes, plain loop", 28,
       [&] {
         move_plainly(arrays.weight.data(), arrays.gradient.data(), arrays.first.data(), arrays.second.data(),
                      elements / 4 * 4);
       },
       0},
      {"move 28 bytes", 28, [&] { update(Move<2>{}, arrays); }, 1},
      {"AdamW", 28, [&] { update(distx::AdamW{}, arrays); }, 1},
      {"AdamW, 16-byte registers", 28, [&] { update_on_common_lanes(distx::AdamW{}, arrays); }, 1},
      {"move 20 bytes", 20, [&] { update(Move<1>{}, arrays); }, 4},
      {"SGD", 20, [&] { update(distx::SGD{.momentum = 0.9}, arrays); }, 4},
  };
  const std::size_t passes = std::max<std::size_t>(1, (std::size_t{1} << 24) / elements);
  for (int round = 0; round <= rounds; ++round)
    for (std::size_t turn = 0; turn < subjects.size(); ++turn) {
      // The order changes from round to round.
      Subject& subject = subjects[round % 2 == 0 ? turn : subjects.size() - 1 - turn];
      const auto begin = std::chrono::steady_clock::now();
      for (std::size_t pass = 0; pass < passes; ++pass) subject.pass();
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (round > 0) subject.seconds.push_back(seconds / static_cast<double>(passes));  // the first one warms up
    }
  nlohmann::json rows = nlohmann::json::array();
  const auto ratio = [&](const Subject& subject, std::size_t mover) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < subject.seconds.size(); ++i)
      ratios.push_back(subject.seconds[i] / subjects[mover].seconds[i]);
    return median(ratios);
  };
  for (const auto& subject : subjects) {
    rows.push_back({{"name", subject.name},
                    {"elements", elements},
                    {"seconds", median(subject.seconds)},
                    {"bytes_per_element", subject.bytes},
                    {"over_mover", ratio(subject, subject.mover)}});
    if (subject.bytes == 28) rows.back()["over_plain_mover"] = ratio(subject, 0);
  }
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Times fused updates, float32 on one core, beside kernels that only move the same memory", "optimizer");
  std::vector<std::size_t> sizes{std::size_t{1} << 20, std::size_t{1} << 24};
  int rounds = 21;
  bool json = false;
  app.add_option("--elements", sizes, "parameters; several sizes may follow")->check(CLI::Range(64, 1 << 30));
  app.add_option("--rounds", rounds, "of all kernels in turns; medians are shown")->check(CLI::Range(1, 10000));
  app.add_flag("--json", json, "print one JSON array instead of the table");
  CLI11_PARSE(app, argc, argv);

  nlohmann::json all = nlohmann::json::array();
  for (const std::size_t elements : sizes)
    for (auto& row : measure(elements, rounds)) all.push_back(std::move(row));
  if (json) {
    fmt::print("{}\n", all.dump(2));
    return 0;
  }
  fmt::print("{:>10}  {:26} {:>9} {:>8}  {:>10}  {:>16}\n", "parameters", "kernel", "ms", "GB/s", "over mover",
             "over plain mover");
  for (const auto& row : all) {
    const double seconds = row["seconds"];
    const auto elements = row["elements"].get<std::size_t>();
    const double bytes = row["bytes_per_element"].get<double>() * static_cast<double>(elements);
    fmt::print("{:>10}  {:26} {:>9.3f} {:>8.1f}  {:>10.3f}  {:>16}\n", elements, row["name"].get<std::string>(),
               1e3 * seconds, 1e-9 * bytes / seconds, row["over_mover"].get<double>(),
               row.contains("over_plain_mover") ? fmt::format("{:.3f}", row["over_plain_mover"].get<double>()) : "");
  }
}
