// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// train_gpt with GPUs; a separate program, because NCCL and cuBLAS take long to load:
//   build/examples/train_gpt_cuda --device cuda --ranks 2 --mesh data=2,model=1 --zero 3
//   tools/distx-run -n 4 build/examples/train_gpt_cuda --device cuda --mesh data=2,model=2 --precision bf16
//   build/examples/train_gpt_cuda --device cuda --ranks 2 --mesh data=2,model=1 --zero 2 --capture
#include <distx/cuda_blas.hpp>
#include <distx/nccl.hpp>
#include <distx/shm.hpp>
#include <distx/threads.hpp>

#include "common/gpt_training.hpp"

namespace {

template <class C>
void train_rank(C& connector, distx::AnyCommunicator<> host, const examples::GptSettings& settings,
                const examples::GptTask& task) {
  using distx::Cuda;
  distx::cuda::pick_device(connector);
  const distx::CudaStream stream;
  std::optional<distx::cuda::AllowTF32> tf32;
  if (settings.tf32) tf32.emplace();
  const auto sizes = settings.mesh.sizes(settings.training);
  const distx::Metered<distx::NcclCommunicator> metered{distx::NcclCommunicator(connector)};
  auto counted = metered.share();
  const examples::Grid mesh(counted, sizes.grid(), stream), of_host(host, sizes.grid());
  examples::with_model(settings, [&]<class Weight, bool Recompute>() {
    examples::train_on_mesh<Weight, Recompute, distx::On<Cuda>>(host, mesh, of_host.along<examples::Data>(), metered,
                                                                settings, task);
  });
}

}  // namespace

void examples::train_gpt_on_gpus(distx::AnyConnector& connector, const GptSettings& settings, const GptTask& task) {
  on_every_rank(connector, [] {
    if (const auto reason = distx::cuda::why_no_gpu(); !reason.empty())
      throw distx::Error(reason + "; --device cpu trains without one");
  });
  if (connector.size() > 1)
    return train_rank(connector, distx::AnyCommunicator<>(distx::ShmCommunicator(connector)), settings, task);
  distx::spawn(settings.backend.ranks, [&](distx::ThreadConnector& self) {
    train_rank(self, distx::AnyCommunicator<>(distx::ThreadCommunicator(self)), settings, task);
  });
}
