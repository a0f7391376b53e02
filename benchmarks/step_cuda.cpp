// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The time of a training step of GPT-2 124M's parameters on GPUs, without a forward and a backward pass: gradients are
// zeroed, reduced, clipped, and the weights are updated; at stage 3 they are gathered for either pass. And the time
// that making and destroying a communicator takes.
//
//     build/benchmarks/step_cuda [--steps N] [--stages 0,2,3]     one rank
//     tools/ranks --one-gpu 2 build/benchmarks/step_cuda          processes that share a GPU
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include <distx/cuda.hpp>
#include <distx/distx.hpp>
#include <distx/file.hpp>
#include <distx/nccl.hpp>

#include "timing/on_gpu.hpp"
#include "timing/samples.hpp"

namespace {

using distx::bfloat16;
using distx::Cuda;

/// The 148 parameters, of which each block's belong together.
template <class T>
std::vector<distx::Parameter<T, Cuda>> gpt2() {
  constexpr std::size_t width = 768, vocabulary = 50257, context = 1024;
  std::vector<distx::Parameter<T, Cuda>> parameters;
  const auto add = [&](const std::string& unit, std::initializer_list<std::size_t> sizes) {
    for (int i = 0; const std::size_t size : sizes) parameters.emplace_back(unit + "." + std::to_string(i++), size);
  };
  add("wte", {vocabulary * width});
  add("wpe", {context * width});
  for (int block = 0; block < 12; ++block)
    add("h" + std::to_string(block), {width, width, 3 * width * width, 3 * width, width * width, width,  // attention
                                      width, width, 4 * width * width, 4 * width, 4 * width * width, width});
  add("ln_f", {width, width});
  return parameters;
}

template <class T, class... Policies>
void step_times(distx::NcclCommunicator& comm, const char* what, int steps, distx::DataParallelOptions options) {
  const distx::CudaStream stream;
  auto parameters = gpt2<T>();
  distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::On<Cuda>, Policies...> training(comm, parameters,
                                                                                          distx::AdamW{}, options);
  std::vector<double> whole, of_host;
  for (int step = 0; step < steps + 5; ++step) {
    stream.synchronize();
    distx::barrier(comm);
    const auto begin = timing::clock::now();
    {
      // The weights of one block at a time.
      distx::Unsharded<Cuda> weights;
      for (auto& parameter : parameters) weights = training.unshard_after(stream, parameter);  // the forward pass
      for (std::size_t p = parameters.size(); p-- > 0;) {
        weights = training.unshard_after(stream, parameters[p]);
        static_cast<void>(training.gradient(parameters[p], stream));
        training.ready_after(stream, parameters[p]);
      }
    }
    training.step({.learning_rate = 1e-4}, stream);
    const double enqueued = timing::since(begin);
    stream.synchronize();
    if (step < 5) continue;  // they warm up
    of_host.push_back(enqueued);
    whole.push_back(timing::since(begin));
  }
  if (comm.rank() == 0)
    std::printf("%-44s stage %d %-8s %8.3f ms, of which the host enqueues for %8.3f\n", what, options.stage.value_or(0),
                options.clips() ? "clipped" : "", 1e3 * timing::median(whole), 1e3 * timing::median(of_host));
  std::fflush(stdout);
}

void communicator_times(distx::AnyConnector& world) {
  std::vector<double> made, first, split, destroyed;
  const distx::Buffer<float, Cuda> values(1024);
  for (int round = 0; round < 5; ++round) {
    world.barrier();
    auto begin = timing::clock::now();
    std::optional<distx::NcclCommunicator> comm(std::in_place, world);
    made.push_back(timing::since(begin));
    begin = timing::clock::now();
    distx::all_reduce(*comm, values.span(), distx::sum);
    first.push_back(timing::since(begin));
    begin = timing::clock::now();
    std::optional<distx::NcclCommunicator> part(comm->split(0, comm->rank()));
    split.push_back(timing::since(begin));
    distx::all_reduce(*part, values.span(), distx::sum);
    begin = timing::clock::now();
    part.reset();
    comm.reset();
    destroyed.push_back(timing::since(begin));
  }
  if (world.rank() == 0)
    std::printf("communicator of %d: made in %.3f s, first all-reduce %.4f, split %.3f, both destroyed in %.3f\n",
                world.size(), timing::median(made), timing::median(first), timing::median(split),
                timing::median(destroyed));
  std::fflush(stdout);
}

int run(int steps, const std::string& stages) {
  distx::AnyConnector world = distx::connect();
  distx::cuda::pick_device(world, {.share = true});
  communicator_times(world);
  distx::NcclCommunicator comm(world);
  for (const char stage : stages) {
    if (stage < '0' || stage > '3') continue;
    distx::DataParallelOptions options{.stage = stage - '0'};
    for (const bool clips : {false, true}) {
      if (clips) options.clip_norm = 1;
      step_times<float>(comm, "float32", steps, options);
    }
    step_times<bfloat16, distx::Precision<bfloat16>>(comm, "bfloat16, float32 masters", steps, options);
    step_times<bfloat16, distx::Precision<float>>(comm, "bfloat16, float32 masters and reduction", steps, options);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int steps = 30;
  std::string stages = "0,1,2,3";
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--steps") == 0 && i + 1 < argc)
      steps = std::max(1, std::atoi(argv[++i]));
    else if (std::strcmp(argv[i], "--stages") == 0 && i + 1 < argc)
      stages = argv[++i];
    else {
      std::printf("%s [--steps N] [--stages 0,2,3]\n", argv[0]);
      return std::strcmp(argv[i], "--help") == 0 ? 0 : 1;
    }
  }
  return timing::on_gpu([&] { return run(steps, stages); });
}
