// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Predicts the memory that training a model takes on each rank, by ZeRO stage and number of ranks.
//   build/examples/plan_memory --parameters 7.5e9 --ranks 64 --precision mixed
#include <cmath>
#include <set>
#include <string>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <distx/training.hpp>

#include "common/run.hpp"

namespace {

constexpr double most_parameters = 1e17;

std::string readable(std::uint64_t bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 999.95 && unit < 6; ++unit) value /= 1000;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : value < 99.95 ? 2 : 1, units[unit]);
}

void print_table(std::uint64_t parameters, std::uint64_t ranks, const distx::BytesPerParameter& bytes,
                 const distx::PlanOptions& options) {
  const auto planned = [&](std::uint64_t count, int stage) {
    return distx::plan(parameters, count, stage, bytes, options);
  };
  fmt::print("Memory of one rank, without activations and buffers in flight\n\n{:>10}", "ranks");
  for (int stage = 0; stage <= 3; ++stage) fmt::print("{:>12}", fmt::format("stage {}", stage));
  fmt::print("\n");
  std::set<std::uint64_t> counts{ranks};
  for (std::uint64_t count = 1; count < ranks; count *= 4) counts.insert(count);
  for (const auto count : counts) {
    fmt::print("{:>10}", count);
    for (int stage = 0; stage <= 3; ++stage) fmt::print("{:>12}", readable(planned(count, stage).total()));
    fmt::print("\n");
  }
  fmt::print("\nOn {} rank{}:\n\n{:>10}{:>12}{:>12}{:>12}{:>12}{:>16}\n", ranks, ranks == 1 ? "" : "s", "stage",
             "weights", "gradients", options.offload ? "offloaded" : "optimizer", "total", "sent per step");
  for (int stage = 0; stage <= 3; ++stage) {
    const auto plan = planned(ranks, stage);
    fmt::print("{:>10}{:>12}{:>12}{:>12}{:>12}{:>16}\n", stage, readable(plan.weights), readable(plan.gradients),
               readable(plan.optimizer + plan.offloaded), readable(plan.total()), readable(plan.sent));
  }
}

nlohmann::json as_json(std::uint64_t parameters, std::uint64_t ranks, const std::string& precision,
                       const distx::BytesPerParameter& bytes, const distx::PlanOptions& options) {
  nlohmann::json stages = nlohmann::json::array();
  for (int stage = 0; stage <= 3; ++stage) {
    const auto plan = distx::plan(parameters, ranks, stage, bytes, options);
    stages.push_back({{"stage", stage},
                      {"weights", plan.weights},
                      {"gradients", plan.gradients},
                      {"optimizer", plan.optimizer},
                      {"offloaded", plan.offloaded},
                      {"total", plan.total()},
                      {"sent", plan.sent}});
  }
  return {{"parameters", parameters}, {"ranks", ranks}, {"precision", precision}, {"stages", std::move(stages)}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Predicts the memory of training with AdamW on each rank, for every ZeRO stage", "plan_memory");
  double parameters = 0;
  std::uint64_t ranks = 1;
  std::string precision = "f32";
  distx::PlanOptions options;
  bool json = false;
  const auto whole = [](const std::string& text) -> std::string {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value) || !(value >= 1 && value <= most_parameters) ||
        value != std::floor(value))
      return "'" + text + "' is not a number of parameters: give a whole number from 1 to 1e17, such as 7.5e9";
    return "";
  };
  const auto count = [](const std::string& text) -> std::string {
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    if (!digits || text.size() > 9 || text.find_first_not_of('0') == std::string::npos)
      return "'" + text + "' is not a number of ranks: give a whole number from 1 to 999999999";
    return "";
  };
  app.add_option("--parameters", parameters, "parameters of the model, such as 7.5e9")
      ->required()
      ->check(CLI::Validator(whole, "", "whole"));
  app.add_option("--ranks", ranks, "ranks that train the model")
      ->check(CLI::Validator(count, "", "count"))
      ->capture_default_str();
  app.add_option("--precision", precision, "f32, or mixed: 2 bytes for weights and gradients, float32 in the optimizer")
      ->check(CLI::IsMember({"f32", "mixed"}))
      ->capture_default_str();
  app.add_flag("--share-memory", options.map_weights,
               "the ranks are threads or use shared memory: at stage 3 they send no weights");
  app.add_flag("--offload", options.offload,
               "optimizer states and master weights are in files, or of GPUs in host memory: the total excludes them");
  app.add_flag("--json", json, "print one JSON object with the bytes of each stage instead of tables");

  return examples::run(app, argc, argv, [&] {
    const auto bytes = precision == "mixed" ? distx::mixed_precision<> : distx::full_precision<>;
    const auto number = static_cast<std::uint64_t>(parameters);
    if (json)
      fmt::print("{}\n", as_json(number, ranks, precision, bytes, options).dump(2));
    else
      print_table(number, ranks, bytes, options);
  });
}
