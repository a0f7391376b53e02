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
  app.add_option(
      "--mesh", text,
      "mesh of ranks that batches and weights are split over, such as data=2,model=2 [default: only batches]");
}

std::array<int, 2> MeshFlag::sizes(const TrainingFlags& training) const {
  std::string_view left = text;
  const int data = take(left, "data");
  const bool apart = left.substr(0, 1) == ",";
  if (apart) left.remove_prefix(1);
  const int model = apart ? take(left, "model") : 0;
  if (data == 0 || model == 0 || !left.empty())
    throw distx::InvalidArgument("invalid --mesh " + text +
                                 ": give data=2,model=2, the numbers of ranks that batches and weights are split over");
  if (training.reproducible)
    throw distx::InvalidArgument("--mesh does not support --reproducible: leave one of them out");
  if (training.compress != "none")
    throw distx::InvalidArgument("--mesh does not support --compress: leave one of them out");
  if (training.optimizer != "adamw" && training.optimizer != "sgd")
    throw distx::InvalidArgument("--mesh does not support --optimizer " + training.optimizer +
                                 ", which needs whole weights: use --optimizer adamw or sgd");
  return {data, model};
}

}  // namespace examples
