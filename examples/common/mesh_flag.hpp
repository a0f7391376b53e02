// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <array>
#include <string>

#include <distx/tensor.hpp>

#include "training_flags.hpp"

namespace examples {

/// The axes of a mesh that a model is split over: batches over the one, weights over the other.
struct Data {};
struct Model {};
using Grid = distx::Mesh<Data, Model>;

/// The flag that says over which mesh a model is split.
struct MeshFlag {
  std::string text;  ///< `data=2,model=2`; nothing where it is not split

  void describe(CLI::App& app);
  [[nodiscard]] bool given() const { return !text.empty(); }
  /// @throws distx::InvalidArgument for an invalid mesh, or flags that a mesh does not support
  [[nodiscard]] std::array<int, 2> sizes(const TrainingFlags& training) const;
};

}  // namespace examples
