// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "mesh_flag.hpp"

#include <charconv>

#include <CLI/CLI.hpp>

#include <distx/core/error.hpp>

namespace examples {

namespace {

/// Removes `name=number` from the front and returns the number; 0 if the text does not begin so.
int take(std::string_view& text, std::string_view name) {
  if (text.substr(0, name.size()) != name || text.substr(name.size(), 1) != "=") return 0;
  text.remove_prefix(name.size() + 1);
  int number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end.ec != std::errc() || number < 1) return 0;
  text.remove_prefix(static_cast<std::size_t>(end.ptr - text.data()));
  return number;
}

}  // namespace

void MeshFlag::describe(CLI::App& app) {
  auto* mesh = app.add_option("--mesh", text,
                              "mesh of ranks that batches and weights are split over, such as data=2,model=2; with "
                              "context=2 between them sequences are too, with experts=2 after data experts, with "
                              "pipeline=2 before them blocks [default: only batches]");
  app.add_option("--schedule", schedule, "of the pipeline's micro-batches: gpipe, 1f1b, interleaved or zb-h1")
      ->needs(mesh)
      ->check(CLI::IsMember({"gpipe", "1f1b", "interleaved", "zb-h1"}))
      ->capture_default_str();
  app.add_option("--chunks", chunks, "stages of each rank, with an interleaved schedule")
      ->needs(mesh)
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--untied", untied, "the output layer does not share the embedding's table")->needs(mesh);
  auto* of_experts = app.add_option("--experts", experts, "experts of each block, instead of one MLP for all tokens")
                         ->needs(mesh)
                         ->check(CLI::Range(1, 100000));
  app.add_option("--experts-per-token", experts_per_token, "experts that each token passes")
      ->needs(of_experts)
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--capacity", capacity,
                 "tokens that an expert takes from a rank, as a multiple of their mean number [default: all]")
      ->needs(of_experts)
      ->check(CLI::PositiveNumber);
  app.add_option("--balance", balance, "weight of the loss that is 1 where experts get equally many tokens")
      ->needs(of_experts)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
}

std::variant<distx::pipeline::Schedule, distx::pipeline::SplitSchedule> MeshFlag::schedule_of(int ranks,
                                                                                              int micro_batches) const {
  if (schedule == "gpipe") return distx::pipeline::gpipe(ranks, micro_batches);
  if (schedule == "interleaved") return distx::pipeline::interleaved(ranks, micro_batches, chunks);
  if (schedule == "zb-h1") return distx::pipeline::zero_bubble(ranks, micro_batches);
  return distx::pipeline::one_forward_one_backward(ranks, micro_batches);
}

MeshSizes MeshFlag::sizes(const TrainingFlags& training) const {
  std::string_view left = text;
  MeshSizes sizes;
  bool valid = true;
  const auto next = [&](std::string_view name) {
    const int size = take(left, name);
    valid = valid && size > 0 && left.substr(0, 1) == ",";
    if (!left.empty()) left.remove_prefix(1);
    return size;
  };
  if (pipelined()) sizes.pipeline = next("pipeline");
  sizes.data = next("data");
  if (left.starts_with("experts")) sizes.experts = next("experts");
  if (left.starts_with("context")) sizes.context = next("context");
  valid = valid && !left.empty();
  sizes.model = valid ? take(left, "model") : 0;
  if (sizes.model == 0 || !left.empty())
    throw distx::InvalidArgument("invalid --mesh " + text +
                                 ": give data=2,model=2, the numbers of ranks that batches and weights are split over, "
                                 "or pipeline=2,data=2,context=2,model=2, or data=2,experts=2,context=2,model=2");
  if (sizes.experts > 1 && experts == 0)
    throw distx::InvalidArgument("--mesh " + text + " shards experts, which the model has none of: give --experts");
  if (experts > 0 && pipelined())
    throw distx::InvalidArgument("--experts does not support pipelines: omit it, or pipeline= of --mesh");
  if (experts > 0 && experts_per_token > experts)
    throw distx::InvalidArgument("--experts-per-token " + std::to_string(experts_per_token) + " exceeds --experts " +
                                 std::to_string(experts) + ": choose fewer");
  if (pipelined()) static_cast<void>(schedule_of(sizes.pipeline, static_cast<int>(training.accumulate)));
  if (training.reproducible)
    throw distx::InvalidArgument("--mesh does not support --reproducible: leave one of them out");
  if (training.compress != "none" && training.compress != "bf16")
    throw distx::InvalidArgument("--mesh does not support --compress " + training.compress + ": use --compress bf16");
  return sizes;
}

}  // namespace examples
