// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Fused updates on a GPU against the host's, partitioned anywhere, and captured in a graph.
#include <distx/cuda/fused_update.hpp>
#include <distx/optim/adamw.hpp>
#include <distx/optim/fused_update.hpp>
#include <distx/optim/sgd.hpp>

#include "cuda/lion.hpp"
#include "cuda/placed.hpp"

namespace {

using distx::accumulator_t;
using distx::AdamW;
using distx::bfloat16;
using distx::Cuda;
using distx::CudaStream;
using distx::CudaStreamRef;
using distx::DeviceStep;
using distx::float16;
using distx::SGD;
using distx::Span;
using distx::Step;

/// Weights and states after a few steps.
template <class T, std::size_t States>
struct Trained {
  std::vector<T> weight;
  std::array<std::vector<accumulator_t<T>>, States> state;

  [[nodiscard]] bool same_as(const Trained& other) const {
    bool same = same_bits(weight, other.weight);
    for (std::size_t s = 0; s < States; ++s) same = same && same_bits(state[s], other.state[s]);
    return same;
  }
  [[nodiscard]] double from(const Trained& other) const {
    double most = roundings_between(weight, other.weight);
    for (std::size_t s = 0; s < States; ++s) most = std::max(most, roundings_between(state[s], other.state[s]));
    return most;
  }
};

template <class T, class Optimizer>
Trained<T, Optimizer::states> on_host(const Optimizer& optimizer, std::size_t size, const Step& first, int steps) {
  using A = accumulator_t<T>;
  Trained<T, Optimizer::states> result{wave<T>(size), {}};
  const auto gradient = wave<T>(size, 2);
  std::array<Span<A>, Optimizer::states> state;
  for (std::size_t s = 0; s < Optimizer::states; ++s) {
    result.state[s].resize(size);
    state[s] = result.state[s];
  }
  Step step = first;
  for (int i = 0; i < steps; ++i, ++step.number)
    fused_update(distx::HostStream(), optimizer, step, Span<T>(result.weight), Span<const T>(gradient), state);
  return result;
}

/// A model in a GPU's memory, whose arrays begin at these offsets.
template <class T, class Optimizer>
struct OnGpu {
  static constexpr std::size_t states = Optimizer::states;
  using A = accumulator_t<T>;
  Placed<T> weight, gradient;
  std::vector<Placed<A>> state;

  OnGpu(std::size_t size, const std::array<std::size_t, 4>& offsets = {})
      : weight(wave<T>(size), offsets[0]), gradient(wave<T>(size, 2), offsets[1]) {
    for (std::size_t s = 0; s < states; ++s) state.emplace_back(std::vector<A>(size), offsets[2 + s]);
  }
  void update(CudaStreamRef stream, const Optimizer& optimizer, const Step& step, std::size_t begin,
              std::size_t size) const {
    std::array<Span<A, Cuda>, states> here;
    for (std::size_t s = 0; s < states; ++s) here[s] = state[s].span().subspan(begin, size);
    fused_update(stream, optimizer, step, weight.span().subspan(begin, size), gradient.in().subspan(begin, size), here);
  }
  void update(CudaStreamRef stream, const Optimizer& optimizer, const Step& step) const {
    update(stream, optimizer, step, 0, weight.span().size());
  }
  void update(CudaStreamRef stream, const DeviceStep<Optimizer>& step) const {
    std::array<Span<A, Cuda>, states> here;
    for (std::size_t s = 0; s < states; ++s) here[s] = state[s].span();
    fused_update(stream, step, weight.span(), gradient.in(), here);
  }
  [[nodiscard]] Trained<T, states> values(CudaStreamRef stream) const {
    Trained<T, states> result{weight.values(stream), {}};
    for (std::size_t s = 0; s < states; ++s) result.state[s] = state[s].values(stream);
    return result;
  }
};

template <class T, class Optimizer>
void check_everywhere(const Optimizer& optimizer, double roundings) {
  const CudaStream stream;
  const Step first{.learning_rate = 0.01, .weight_decay = 0.1};
  const auto train = [&](const OnGpu<T, Optimizer>& model, const std::vector<std::size_t>& cuts) {
    Step step = first;
    for (int i = 0; i < 3; ++i, ++step.number) {
      std::size_t begin = 0;
      for (const std::size_t end : cuts) {
        model.update(stream, optimizer, step, begin, end - begin);
        begin = end;
      }
    }
    return model.values(stream);
  };
  for (const std::size_t size : {0u, 1u, 3u, 4u, 5u, 2048u, 9001u}) {
    const auto wanted = on_host<T>(optimizer, size, first, 3);
    const auto found = train({size}, {size});
    CHECK(found.from(wanted) <= roundings);
    for (const auto& offsets : {std::array<std::size_t, 4>{1, 1, 1, 1}, {3, 3, 3, 3}, {0, 1, 2, 3}, {0, 0, 0, 1}})
      CHECK(train({size, offsets}, {size}).same_as(found));
    CHECK(train({size, {2, 2, 2, 2}}, {size / 3, size / 3, size - size / 4, size}).same_as(found));
  }
}

TEST_CASE_TEMPLATE("AdamW equals the host's up to rounding, with the same bits however it is partitioned", T, float,
                   double, bfloat16, float16) {
  check_everywhere<T>(AdamW{}, sizeof(T) == 2 ? 2 : 16);
}
TEST_CASE_TEMPLATE("SGD equals the host's up to rounding, with the same bits however it is partitioned", T, float,
                   bfloat16) {
  check_everywhere<T>(SGD{.momentum = 0.9, .nesterov = true}, sizeof(T) == 2 ? 2 : 16);
}
TEST_CASE_TEMPLATE("custom optimizers have the same bits however they are partitioned", T, float, float16) {
  check_everywhere<T>(Lion{}, sizeof(T) == 2 ? 2 : 16);
  check_everywhere<T>(PlainDescent{}, sizeof(T) == 2 ? 2 : 16);
}

TEST_CASE("an update of a million elements equals the host's") {
  const CudaStream stream;
  const std::size_t size = 1000003;
  const OnGpu<float, AdamW> model(size, {1, 1, 1, 1});
  model.update(stream, AdamW{}, Step{.learning_rate = 0.01});
  CHECK(model.values(stream).from(on_host<float>(AdamW{}, size, {.learning_rate = 0.01}, 1)) <= 16);
}

/// Work recorded by f, to be launched again and again.
class Graph {
 public:
  template <class F>
  Graph(const CudaStream& stream, F&& f) {
    using distx::cuda::detail::check;
    check(cudaStreamBeginCapture(stream.native_handle(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    f();
    check(cudaStreamEndCapture(stream.native_handle(), &graph_), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  void launch(const CudaStream& stream) const {
    distx::cuda::detail::check(cudaGraphLaunch(executable_, stream.native_handle()), "cudaGraphLaunch");
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

TEST_CASE_TEMPLATE("a captured update that is replayed equals updates one by one", T, float, bfloat16) {
  const CudaStream stream;
  const std::size_t size = 3001;
  DeviceStep step(AdamW{}, 0.01, 0.1);
  const OnGpu<T, AdamW> model(size), plain(size);
  const Graph graph(stream, [&] {
    step.advance(stream);
    model.update(stream, step);
  });
  CHECK(step.read(stream).number == 0);  // recorded, not done
  for (std::uint64_t number = 1; number <= 5; ++number) {
    const double rate = number < 4 ? 0.01 : 0.002;
    if (number == 4) step.set_learning_rate(stream, rate);
    graph.launch(stream);
    plain.update(stream, AdamW{}, Step{.learning_rate = rate, .number = number, .weight_decay = 0.1});
  }
  const Step now = step.read(stream);
  CHECK(now.number == 5);
  CHECK(now.learning_rate == 0.002);
  CHECK(now.weight_decay == 0.1);
  // The GPU's pow need not round as the host's does.
  CHECK(model.values(stream).from(plain.values(stream)) <= (sizeof(T) == 2 ? 2 : 16));
}

TEST_CASE("DeviceStep changes the decay and the number of steps") {
  const CudaStream stream;
  DeviceStep step(SGD{.weight_decay = 3}, 0.5);
  CHECK(!step.read(stream).weight_decay.has_value());
  step.set_number(stream, 41);
  step.advance(stream);
  step.set_weight_decay(stream, 0.25);
  CHECK(step.read(stream).number == 42);
  CHECK(step.read(stream).weight_decay == 0.25);
  DeviceStep without_decay(SGD{.weight_decay = 3}, 0.5);
  without_decay.advance(stream);
  const OnGpu<double, SGD> model(100), plain(100), own(100), own_plain(100);
  own.update(stream, without_decay);
  own_plain.update(stream, SGD{.weight_decay = 3}, Step{.learning_rate = 0.5});
  CHECK(own.values(stream).same_as(own_plain.values(stream)));
  model.update(stream, step);
  plain.update(stream, SGD{.weight_decay = 3}, Step{.learning_rate = 0.5, .number = 42, .weight_decay = 0.25});
  CHECK(model.values(stream).same_as(plain.values(stream)));
}

TEST_CASE("fused_update rejects different lengths") {
  const CudaStream stream;
  const Placed<float> three(std::vector<float>(3)), four(std::vector<float>(4));
  CHECK_THROWS_AS(fused_update(stream, SGD{}, Step{}, three.span(), four.in(), {three.span()}), distx::InvalidArgument);
  CHECK_THROWS_AS(fused_update(stream, SGD{}, Step{}, three.span(), three.in(), {four.span()}), distx::InvalidArgument);
}

}  // namespace
