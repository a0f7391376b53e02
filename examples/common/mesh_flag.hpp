// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <optional>
#include <string>
#include <variant>

#include <distx/parallel/pipeline/schedules.hpp>
#include <distx/tensor.hpp>

#include "training_flags.hpp"

namespace examples {

/// The axes of a mesh that a model is split over: batches, batches and experts, the tokens of a sequence, and weights.
struct Data {};
struct Experts {};
struct Context {};
struct Model {};
using Grid = distx::Mesh<Data, Context, Model>;
using GridOfExperts = distx::Mesh<Data, Experts, Context, Model>;
/// The axes of all ranks of a pipeline: its stages, and a Grid for each.
struct Stages {};
struct InStage {};

/// Numbers of ranks.
struct MeshSizes {
  int pipeline = 1;
  int data = 1, experts = 1, context = 1, model = 1;

  [[nodiscard]] std::array<int, 3> grid() const { return {data, context, model}; }
  [[nodiscard]] std::array<int, 4> grid_of_experts() const { return {data, experts, context, model}; }
};

/// The flags that say over which mesh a model is split, and how a pipeline works.
struct MeshFlag {
  std::string text;  ///< `data=2,model=2` or `pipeline=2,data=2,context=2,model=2`; nothing where it is not split
  std::string schedule = "1f1b";
  int chunks = 2;           ///< stages of each rank, with an interleaved schedule
  bool untied = false;      ///< the output layer does not share the embedding's table
  std::size_t experts = 0;  ///< of each block; 0: one MLP for all tokens
  std::size_t experts_per_token = 2;
  std::optional<double> capacity{};
  double balance = 0.01;

  void describe(CLI::App& app);
  [[nodiscard]] bool given() const { return !text.empty(); }
  [[nodiscard]] bool pipelined() const { return text.starts_with("pipeline"); }
  /// @throws distx::InvalidArgument for an invalid mesh, or flags that a mesh does not support
  [[nodiscard]] MeshSizes sizes(const TrainingFlags& training) const;
  /// @throws distx::InvalidArgument for a schedule that does not support these numbers
  [[nodiscard]] std::variant<distx::pipeline::Schedule, distx::pipeline::SplitSchedule> schedule_of(
      int ranks, int micro_batches) const;
};

}  // namespace examples
