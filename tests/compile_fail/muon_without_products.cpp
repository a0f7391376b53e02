// expect: distx::Muon: matrix products in GPU memory are cuBLAS's; include <distx/cuda_blas.hpp>
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/optim/muon.hpp"

/// Stands for a GPU's memory.
struct Elsewhere {
  using stream = distx::HostStream;
  using event = distx::HostEvent;
  static constexpr std::string_view name = "elsewhere";
  static constexpr bool host_accessible = false;
};
#ifndef DISTX_POSITIVE
using Space = Elsewhere;
#else
using Space = distx::Host;
#endif

double transform(distx::Span<float, Space> direction, distx::Span<float, Space> scratch) {
  return distx::Muon{}.transform(Space::stream{}, {2, 3}, direction, scratch);
}
