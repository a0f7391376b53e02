// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "gpt_training.hpp"

namespace examples {

namespace {

struct Batches {};
struct Others {};

}  // namespace

void train_gpt_of_experts(distx::AnyCommunicator<>& comm, const distx::Metered<distx::AnyCommunicator<>>& metered,
                          const GptSettings& settings, const GptTask& task) {
  const auto sizes = settings.mesh.sizes(settings.training);
  auto counted = metered.share();
  const GridOfExperts mesh(counted, sizes.grid_of_experts());
  const distx::Mesh<Batches, Others> both(counted, {sizes.data * sizes.experts, sizes.context * sizes.model});
  with_model(settings, [&]<class Weight, bool Recompute>() {
    train_on_mesh<Weight, Recompute>(comm, mesh, both.along<Batches>(), metered, settings, task);
  });
}

}  // namespace examples
