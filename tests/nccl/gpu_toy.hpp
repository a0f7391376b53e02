// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/training.hpp>

#include <deque>

#include "../parallel/toy.hpp"
#include "gpu_ranks.hpp"

// The toy model in GPUs' memory, trained at every stage by one text, on one custom stream or on several.
namespace gpu_toy {

using distx::Cuda;
using distx::CudaStreamRef;
using distx::Span;
template <class... Policies>
using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::On<Cuda>, Policies...>;

struct Way {
  distx::DataParallelOptions options{};
  bool borrowed = false;
  bool in_parts = false;
  bool several_streams = false;  ///< two that compute in turns, and one for the steps
  bool own_update = false;       ///< weights are updated by hand, by gradient descent
  std::size_t micro_batches = 1;
  std::size_t steps = 3;
  bool averages = false;  ///< the resulting weights are a moving average
  bool matrices = false;  ///< some weights are matrices, see `options_of`
};

/// The observations of a rank.
struct Result {
  std::vector<float> weights;
  std::vector<double> losses;  ///< of this rank's samples, before each step
  std::vector<double> norms;
  distx::observe::MemoryLedger memory{};
};

/// Matrices with more and with fewer rows than columns, and a square one.
inline distx::ParameterOptions options_of(std::size_t p, bool matrices) {
  const std::size_t size = toy::sizes[p];
  return {.rows = !matrices ? 0U : size == 20000 ? 80U : size == 1000 ? 40U : size == 64 ? 8U : 0U};
}

inline std::size_t sample_of(std::size_t step, std::size_t micro_batch, int rank) {
  return 10 * step + 100 * micro_batch + static_cast<std::size_t>(rank);
}

/// All weights of a training, in the host's memory. Collective.
template <class T, class Training>
std::vector<float> weights_of(Training& training, CudaStreamRef stream) {
  std::vector<float> all;
  training.for_each_full_weight(
      [&](const std::string&, Span<const distx::AnyElement, Cuda> values) {
        std::vector<T> there(values.size());
        distx::copy(stream, Span<T>(there), Span<const T, Cuda>(static_cast<const T*>(values.data()), values.size()));
        stream.synchronize();
        for (const T value : there) all.push_back(static_cast<float>(value));
      },
      stream);
  return all;
}

/// Half the mean square of the distances to a sample's targets.
inline double loss_of(const std::vector<float>& weights, std::size_t sample) {
  double sum = 0;
  std::size_t k = 0;
  for (std::size_t p = 0; p < toy::sizes.size(); ++p)
    for (std::size_t i = 0; i < toy::sizes[p]; ++i, ++k)
      sum += std::pow(static_cast<double>(weights[k]) - toy::target(p, i, sample), 2);
  return sum / 2 / static_cast<double>(weights.size());
}

/// The parameters' first values and the targets, in the GPU's memory.
template <class T>
class Data {
 public:
  /// Enqueued on the stream; the source stays alive.
  distx::Buffer<T, Cuda> upload(CudaStreamRef stream, std::size_t p, double sign,
                                const std::function<double(std::size_t)>& f) {
    auto& host = host_.emplace_back(toy::sizes[p]);
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<T>(static_cast<float>(sign * f(i)));
    distx::Buffer<T, Cuda> there(host.size(), distx::uninitialized, stream);
    distx::copy(stream, there.span(), Span<const T>(host));
    return there;
  }

 private:
  std::deque<std::vector<T>> host_;
};

template <class Training, class T = float, distx::Communicator C, class Optimizer = distx::AdamW>
Result train(C& comm, const Way& way, const Optimizer& optimizer = distx::AdamW{.weight_decay = 0.125}) {
  const std::size_t count = toy::sizes.size();
  Data<T> data;
  const distx::CudaStream first, second, third;  // before the training, which they outlive
  const CudaStreamRef main = first;
  const auto stream_of = [&](std::size_t p) {
    return way.several_streams && p % 2 == 1 ? CudaStreamRef(second) : main;
  };
  const CudaStreamRef steps = way.several_streams ? CudaStreamRef(third) : main;
  const auto ordered = [&](CudaStreamRef earlier, CudaStreamRef later) { distx::detail::order<Cuda>(earlier, later); };

  std::vector<distx::Buffer<T, Cuda>> targets;  // negative
  for (std::size_t step = 0; step < way.steps; ++step)
    for (std::size_t k = 0; k < way.micro_batches; ++k)
      for (std::size_t p = 0; p < count; ++p)
        targets.push_back(data.upload(
            main, p, -1, [&](std::size_t i) { return toy::target(p, i, sample_of(step, k, comm.rank())); }));
  std::vector<distx::Parameter<T, Cuda>> owned;
  std::vector<distx::ParameterRef<T, Cuda>> refs;
  std::size_t all = 0;
  for (const auto size : toy::sizes) all += size;
  const distx::Buffer<T, Cuda> weights(way.borrowed ? all : 0), gradients(way.borrowed ? all : 0);  // one big array
  std::size_t begin = 0;
  for (std::size_t p = 0; p < count; ++p) {
    const std::string name = "block" + std::to_string(p / 3) + ".layer" + std::to_string(p);
    const auto initialize = [&, p](Span<T, Cuda> values) {  // on a stream that nobody else knows
      const distx::CudaStream stream;
      const auto there = data.upload(stream, p, 1, [&](std::size_t i) { return toy::first_weight(p, i); });
      distx::copy(CudaStreamRef(stream), values, Span<const T, Cuda>(there));
    };
    if (way.borrowed) {
      const auto weight = weights.span().subspan(begin, toy::sizes[p]);
      initialize(weight);
      refs.push_back(
          distx::ref(name, weight, gradients.span().subspan(begin, toy::sizes[p]), options_of(p, way.matrices)));
      begin += toy::sizes[p];
    } else {
      owned.emplace_back(name, toy::sizes[p], initialize, options_of(p, way.matrices));
    }
  }
  Training training(comm, way.borrowed ? distx::ParameterList<Cuda>(refs) : distx::ParameterList<Cuda>(owned),
                    optimizer, way.options);
  std::optional<distx::ExponentialAverage<Cuda>> average;
  if (way.averages) average.emplace(training.ema(0.75, steps));

  const auto pass = [&](auto& list, std::size_t number) {
    for (std::size_t p = 0; p < count; ++p) {
      const auto scope = training.unshard_after(stream_of(p), list[p]);
      static_cast<void>(training.value(list[p]));
    }
    for (std::size_t p = count; p-- > 0;) {
      const CudaStreamRef stream = stream_of(p);
      const auto scope = training.unshard_after(stream, list[p]);
      const Span<T, Cuda> value = training.value(list[p]);
      const Span<T, Cuda> gradient = training.gradient(list[p], stream);
      distx::add(stream, gradient, Span<const T, Cuda>(value));
      distx::add(stream, gradient, Span<const T, Cuda>(targets[number * count + p]));
      training.ready_after(stream, list[p]);
    }
  };
  ordered(main, second);
  ordered(main, third);
  Result result;
  for (std::size_t step = 0; step < way.steps; ++step) {
    result.losses.push_back(loss_of(weights_of<T>(training, steps), sample_of(step, 0, comm.rank())));
    for (std::size_t k = 0; k < way.micro_batches; ++k) {
      if constexpr (Training::accumulation != distx::detail::Accumulation::none)
        static_cast<void>(training.micro_batch({.index = k, .count = way.micro_batches}, steps));
      const std::size_t number = step * way.micro_batches + k;
      if (way.borrowed)
        pass(refs, number);
      else
        pass(owned, number);
    }
    if (way.own_update) {
      training.reduce_gradients(steps);
      for (const auto& fragment : training.owned()) {
        const Span<T, Cuda> gradient(static_cast<T*>(fragment.gradient.data()), fragment.gradient.size());
        distx::scale(steps, gradient, -0.25);
        distx::add(steps, fragment.template weights<T>(), Span<const T, Cuda>(gradient));
      }
      training.gather_weights(steps);
    } else if (way.in_parts) {
      training.reduce_gradients(steps);
      training.update_weights({.learning_rate = 0.01},
                              main);  // each part on another stream, which are ordered all the same
      training.gather_weights(steps);
    } else {
      training.step({.learning_rate = 0.01}, steps);
    }
    result.norms.push_back(training.gradient_norm());
    ordered(steps, main);  // for calls that read weights there
    ordered(steps, second);
    if (average) average->update(steps);
  }
  result.memory = training.memory();
  if (average) {
    const auto swapped = average->swap_in(main);
    result.weights = weights_of<T>(training, second);
  } else {
    result.weights = weights_of<T>(training, main);
  }
  return result;
}

}  // namespace gpu_toy
