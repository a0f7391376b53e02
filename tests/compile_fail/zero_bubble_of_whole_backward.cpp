// expect: distx::pipeline::Pipeline: this schedule splits backward passes, and the stage has no backward_input and backward_weight; see pipeline::SplitBackward, or choose another schedule
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "distx/parallel/pipeline/pipeline.hpp"

struct Data {};
struct Training {};

struct Stage {
  using edge = distx::DistTensor<float, 2, distx::Mesh<Data>, distx::Layout<>>;
  struct activations {};

  edge::spec_type edge_spec() const;
  distx::layers::Forward<std::optional<edge>, activations> forward(std::optional<edge>, int, Training&) const;
  std::optional<edge> backward(activations, std::optional<edge>, int, Training&) const;
};

void train(distx::AnyCommunicator<>& along, const Stage& stage, Training& training) {
#ifndef DISTX_POSITIVE
  distx::pipeline::Pipeline pipeline(along, distx::pipeline::zero_bubble(2, 4), stage, training);
#else
  distx::pipeline::Pipeline pipeline(along, distx::pipeline::gpipe(2, 4), stage, training);
#endif
}
