// expect: optimizers of whole parameters (LAMB, Muon, Mixed) support host memory only; use an ElementwiseOptimizer, such as AdamW or SGD, on a GPU
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/distx.hpp"

/// Stands for a GPU's memory.
struct Elsewhere {
  using stream = distx::HostStream;
  using event = distx::HostEvent;
  static constexpr std::string_view name = "elsewhere";
  static constexpr bool host_accessible = false;
};

void train(distx::AnyCommunicator<Elsewhere>& comm, const distx::ParameterList<Elsewhere>& parameters) {
#ifndef DISTX_POSITIVE
  distx::DataParallel<distx::On<Elsewhere>> training(comm, parameters, distx::LAMB{});
#else
  static_cast<void>(comm.rank());
  static_cast<void>(parameters);
#endif
}
