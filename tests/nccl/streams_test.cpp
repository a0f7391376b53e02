// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Training in GPU memory with calls on several streams: each waits for the work that it depends on, and memory is freed
// after its last use.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include "../cuda/gate.hpp"
#include "gpu_toy.hpp"

namespace {

using distx::Cuda;
using distx::CudaStreamRef;
using distx::NcclCommunicator;
using gpu_toy::Training;
using test::Gate;

/// Whether the stream comes to its end soon, though something holds it up.
bool ends(CudaStreamRef stream) {
  const auto last = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
  while (!stream.done() && std::chrono::steady_clock::now() < last) std::this_thread::yield();
  return stream.done();
}

/// Four weights, zeros at first, whose gradients two streams write, each one half.
struct Tied {
  explicit Tied(int uses) : list{distx::ref("tied", weight.span(), gradient.span(), {.uses = uses})} {}
  static void write(CudaStreamRef stream, distx::Span<float, Cuda> gradient, std::size_t part) {
    distx::fill(stream, gradient.subspan(2 * part, 2), 1.0F);
  }
  distx::Buffer<float, Cuda> weight{4}, gradient{4};
  std::vector<distx::ParameterRef<float, Cuda>> list;
};
const std::vector<float> descended(4, -1.0F);  // by gradients of one at a rate of one

}  // namespace

TEST_CASE("training on GPUs: a step runs after all streams that a gradient of several uses is ready on") {
  for (const bool held_last : {false, true}) {
    CAPTURE(held_last);
    gpu_ranks::on_gpus(1, [&](NcclCommunicator& comm) {
      const distx::CudaStream held, free, steps;
      const Tied tied(2);
      Training<> training(comm, tied.list, distx::SGD{}, {.stage = 0});
      Gate gate(held);
      Tied::write(held, tied.gradient, 0);
      Tied::write(free, tied.gradient, 1);
      training.ready_after(held_last ? free : held, tied.list);
      training.ready_after(held_last ? held : free, tied.list);
      training.step({.learning_rate = 1}, steps);
      CHECK_FALSE(ends(steps));
      gate.open();
      CHECK(gpu_toy::weights_of<float>(training, steps) == descended);
    });
  }
}

TEST_CASE("training on GPUs: a step runs after the streams of all its micro-batches") {
  gpu_ranks::on_gpus(1, [&](NcclCommunicator& comm) {
    const distx::CudaStream held, free, steps;
    const Tied tied(1);
    Training<distx::Accumulate<distx::Local>> training(comm, tied.list, distx::SGD{}, {.stage = 0});
    Gate gate(held);
    for (const std::size_t number : {0U, 1U}) {
      const CudaStreamRef stream = number == 0 ? held : free;
      const auto scope = training.micro_batch({.index = number, .count = 2}, free);
      Tied::write(stream, tied.gradient, number);
      training.ready_after(stream, tied.list);
    }
    training.step({.learning_rate = 1}, steps);
    CHECK_FALSE(ends(steps));
    gate.open();
    CHECK(gpu_toy::weights_of<float>(training, steps) == descended);
  });
}

TEST_CASE("training on GPUs: a gradient is zeroed before any stream writes into it") {
  const auto written_on_two = [](NcclCommunicator& comm, const auto& list, int stage) {
    const distx::CudaStream held, free, steps;
    Training<> training(comm, list, distx::SGD{}, {.stage = stage});
    Gate gate(held);
    Tied::write(held, training.gradient(list[0], held), 0);
    Tied::write(free, training.gradient(list[0], free), 1);
    CHECK_FALSE(ends(free));
    gate.open();
    training.ready_after(free, list);
    training.ready_after(held, list);
    training.step({.learning_rate = 1}, steps);
    CHECK(gpu_toy::weights_of<float>(training, steps) == descended);
  };
  gpu_ranks::on_gpus(1, [&](NcclCommunicator& comm) {
    written_on_two(comm, Tied(2).list, 0);
    std::vector<distx::Parameter<float, Cuda>> owned;
    owned.emplace_back("tied", 4, distx::ParameterOptions{.uses = 2});
    written_on_two(comm, owned, 2);
  });
}

TEST_CASE("training on GPUs: a step waits until all unsharded weights have been read") {
  gpu_ranks::on_gpus(1, [&](NcclCommunicator& comm) {
    const distx::CudaStream reads, steps;
    const Tied model(1);
    const distx::Buffer<float, Cuda> kept(4);
    Training<> training(comm, model.list, distx::SGD{}, {.stage = 0});
    Gate gate(reads);
    training.for_each_full_weight(
        [&](const std::string&, distx::Span<const distx::AnyElement, Cuda> values) {
          const distx::Span<const float, Cuda> weights(static_cast<const float*>(values.data()), values.size());
          distx::copy(CudaStreamRef(reads), kept.span(), weights);
        },
        reads);
    for (const std::size_t part : {0U, 1U}) Tied::write(steps, model.gradient, part);
    training.ready_after(steps, model.list);
    training.step({.learning_rate = 1}, steps);
    CHECK_FALSE(ends(steps));
    gate.open();
    reads.synchronize();
    std::vector<float> before(4, 7.0F);
    distx::copy(CudaStreamRef(reads), distx::Span<float>(before), distx::Span<const float, Cuda>(kept));
    reads.synchronize();
    CHECK(before == std::vector<float>(4));
    CHECK(gpu_toy::weights_of<float>(training, steps) == descended);
  });
}

TEST_CASE("training on GPUs: a second training continues with the weights of the first") {
  for (const int stage : {0, 1, 3}) {
    CAPTURE(stage);
    gpu_ranks::on_gpus(1, [&](NcclCommunicator& comm) {
      const distx::CudaStream stream;
      std::vector<distx::Parameter<float, Cuda>> parameters;
      parameters.emplace_back("weight", 1 << 20,
                              [](distx::Span<float, Cuda> values) { distx::fill(CudaStreamRef(), values, 3.0F); });
      {
        Training<> first(comm, parameters, distx::SGD{}, {.stage = stage});
        if (stage == 3) first.release(stream);
      }
      Training<> second(comm, parameters, distx::SGD{}, {.stage = stage});
      CHECK(gpu_toy::weights_of<float>(second, stream) == std::vector<float>(1 << 20, 3.0F));
    });
  }
}
