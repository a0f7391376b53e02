// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Training in GPUs' memory: all stages give the same bits, on any streams, and the host's up to rounding.
#include <doctest/doctest.h>

#include <distx/comm/decorators/metered.hpp>
#include <distx/cuda_blas.hpp>
#include <distx/optim/lamb.hpp>
#include <distx/optim/mixed.hpp>
#include <distx/optim/muon.hpp>

#include <future>
#include <map>
#include <mutex>
#include <optional>

#include "../cuda/gate.hpp"
#include "../parallel/mesh_model.hpp"
#include "../parallel/stages.hpp"
#include "gpu_toy.hpp"

using namespace distx::literals;

namespace {

using distx::Cuda;
using distx::NcclCommunicator;
using gpu_toy::Result;
using gpu_toy::Training;
using gpu_toy::Way;
using test::Gate;

constexpr int rank_counts[] = {1, 2, 3, 4};

/// Every rank's result, by rank, of the ranks that this process has; empty where there are too few GPUs.
template <class Training = gpu_toy::Training<>, class T = float, class... Optimizer>
std::map<int, Result> train(int ranks, const Way& way, std::optional<distx::NcclRounding> rounding = {},
                            const Optimizer&... optimizer) {
  std::map<int, Result> all;
  std::mutex mutex;
  // NCCL's order of adding more than two operands depends on the message: equal bits need rank order.
  const auto how = rounding.value_or(ranks > 2 ? distx::NcclRounding::once : distx::NcclRounding::native);
  gpu_ranks::on_same_gpus(ranks, how, [&](NcclCommunicator& comm) {
    Result mine = gpu_toy::train<Training, T>(comm, way, optimizer...);
    const std::lock_guard lock(mutex);
    all[comm.rank()] = std::move(mine);
  });
  return all;
}

std::string first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  std::size_t first = 0, all = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0 && all++ == 0) first = i;
  if (all == 0) return "no weight differs";
  return std::to_string(all) + " weights differ, first weight " + std::to_string(first) + ": " +
         std::to_string(a[first]) + " instead of " + std::to_string(b[first]);
}
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, static_cast<double>(std::abs(a[i] - b[i])));
  return most;
}

/// All ranks have the same weights, and those of other ways.
class Same {
 public:
  template <class Training = gpu_toy::Training<>, class T = float, class... Optimizer>
  void as(int ranks, const Way& way, const Optimizer&... optimizer) {
    for (auto& [rank, result] : train<Training, T>(ranks, way, std::nullopt, optimizer...)) {
      if (expected.weights.empty()) {
        expected = result;
        CHECK(expected.weights.size() == 21125);
        CHECK_FALSE(toy::same_bits(expected.weights, toy::Model().weights()));
      }
      INFO("rank ", rank, ": ", first_difference(result.weights, expected.weights));
      CHECK(toy::same_bits(result.weights, expected.weights));
      CHECK(result.norms == expected.norms);
    }
  }
  Result expected;
};

/// Trains on the host.
template <class... Policies, class Optimizer = distx::AdamW>
std::vector<float> on_host(int ranks, const Way& way,
                           const Optimizer& optimizer = distx::AdamW{.weight_decay = 0.125}) {
  std::vector<float> weights;
  toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
    toy::Model model;
    std::vector<distx::ParameterRef<float>> parameters;
    for (std::size_t p = 0; p < toy::sizes.size(); ++p)
      parameters.push_back(distx::ref(model.layers[p].name, model.layers[p].weight, model.layers[p].gradient,
                                      gpu_toy::options_of(p, way.matrices)));
    distx::DataParallel<Policies...> training(
        comm, parameters, optimizer, {.clip_norm = way.options.clip_norm, .group_ranks = way.options.group_ranks});
    std::optional<distx::ExponentialAverage<distx::Host>> average;
    if (way.averages) average.emplace(training.ema(0.75));
    for (std::size_t step = 0; step < way.steps; ++step) {
      for (std::size_t p = toy::sizes.size(); p-- > 0;) {
        model.backward(p, gpu_toy::sample_of(step, 0, comm.rank()), 1);
        training.ready(model.layers[p].weight);
      }
      training.step({.learning_rate = 0.01});
      if (average) average->update();
    }
    if (average) {
      const auto swapped = average->swap_in();
      if (comm.rank() == 0) weights = model.weights();
    } else if (comm.rank() == 0) {
      weights = model.weights();
    }
  });
  return weights;
}

/// Stages 0 to 3, and how buckets, overlap and ownership go with them.
template <class F>
void each_way(F&& f) {
  stages::for_each_way({}, 3,
                       [&](const distx::DataParallelOptions& options, bool borrowed) {
                         f(Way{.options = options, .borrowed = borrowed});
                       },
                       {4_KiB, distx::unlimited});
}

/// How each rank of this process ended.
template <class F>
std::map<int, toy::Ending> endings(int ranks, F&& f) {
  std::map<int, toy::Ending> all;
  std::mutex mutex;
  gpu_ranks::on_gpus(ranks, [&](NcclCommunicator& comm) {
    const toy::Ending mine = toy::ending_of([&] { f(comm); });
    const std::lock_guard lock(mutex);
    all[comm.rank()] = mine;
  });
  return all;
}

}  // namespace

TEST_CASE("training on GPUs: bits depend on no stage, bucket, overlap or ownership, and are close to the host's") {
  for (const int ranks : rank_counts) {
    CAPTURE(ranks);
    Same same;
    each_way([&](Way way) {
      way.in_parts = way.options.bucket_bytes == 4_KiB;
      same.as(ranks, way);
    });
    if (same.expected.weights.empty()) continue;
    const auto host = on_host<distx::ZeRO<0>>(ranks, {});
    CHECK(distance(host, same.expected.weights) < 1e-5);
    if (!gpu_ranks::speaks()) continue;
    for (std::size_t step = 0; step < same.expected.losses.size(); ++step) {
      const auto weights = step == 0 ? toy::Model().weights() : on_host<distx::ZeRO<0>>(ranks, {.steps = step});
      CHECK(std::abs(same.expected.losses[step] - gpu_toy::loss_of(weights, gpu_toy::sample_of(step, 0, 0))) < 1e-4);
    }
  }
}

TEST_CASE("training on GPUs: more than two ranks agree with NCCL's own rounding") {
  const auto host = on_host<distx::ZeRO<0>>(3, {});
  each_way([&](Way way) {
    const auto all = train(3, way, distx::NcclRounding::native);
    for (const auto& [rank, result] : all) {
      CHECK(toy::same_bits(result.weights, all.begin()->second.weights));
      CHECK(distance(host, result.weights) < 1e-5);
    }
  });
}

TEST_CASE("training on GPUs: each call may use another stream") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    Same same;
    same.as(ranks, {.options = {.stage = 0}});
    each_way([&](Way way) {
      way.several_streams = true;
      way.in_parts = !way.options.overlap;
      same.as(ranks, way);
    });
  }
}

TEST_CASE("training on GPUs: clipping equals the host's") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    Same same;
    each_way([&](Way way) {
      way.options.clip_norm = 1;
      way.several_streams = way.options.overlap;
      same.as(ranks, way);
    });
    if (same.expected.weights.empty()) continue;
    CHECK(same.expected.norms[0] > 1);
    Way way{.options = {.clip_norm = 1}};
    const auto host = on_host<distx::ZeRO<1>>(ranks, way);
    double most = 0;
    for (std::size_t i = 0; i < host.size(); ++i)
      most = std::max(most, static_cast<double>(std::abs(host[i] - same.expected.weights[i])));
    CHECK(most < 1e-5);
  }
}

TEST_CASE("training on GPUs: LAMB and Muon give the same bits at every stage, and are close to the host's") {
  const auto check = [](const auto& optimizer) {
    for (const int ranks : {1, 2, 3}) {
      CAPTURE(ranks);
      Same same, masters;
      for (const int stage : {0, 1, 2, 3}) {
        const Way way{
            .options = {.bucket_bytes = stage % 2 == 0 ? distx::unlimited : 4_KiB, .stage = stage, .clip_norm = 1},
            .matrices = true};
        same.as(ranks, way, optimizer);
        if (ranks < 3) masters.as<Training<distx::Precision<float>>, distx::bfloat16>(ranks, way, optimizer);
      }
      if (same.expected.weights.empty()) continue;
      const auto host = on_host<distx::ZeRO<0>>(ranks, {.options = {.clip_norm = 1}, .matrices = true}, optimizer);
      CHECK(distance(host, same.expected.weights) < 1e-5);
    }
  };
  check(distx::LAMB{.weight_decay = 0.125});
  check(distx::Mixed{distx::Muon{.weight_decay = 0.125}, distx::AdamW{}});
}

TEST_CASE("training on GPUs: micro-batches accumulate whole and sharded gradients") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    Same whole, sharded;
    each_way([&](Way way) {
      way.micro_batches = 3;
      way.several_streams = way.options.overlap;
      if (way.options.stage < 2)
        whole.as<Training<distx::Accumulate<distx::Local>>>(ranks, way);
      else
        sharded.as<Training<distx::Accumulate<distx::Sharded>>>(ranks, way);
    });
    for (std::size_t i = 0; i < whole.expected.weights.size(); ++i)
      if (std::abs(whole.expected.weights[i] - sharded.expected.weights[i]) > 1e-5f)
        FAIL_CHECK("weight ", i, ": ", whole.expected.weights[i], " and ", sharded.expected.weights[i]);
  }
}

TEST_CASE("training on GPUs: bfloat16 weights are trained with float masters") {
  using distx::bfloat16;
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    Same same;
    each_way([&](Way way) {
      way.several_streams = way.options.overlap;
      same.as<Training<distx::Precision<float>>, bfloat16>(ranks, way);
    });
  }
}

TEST_CASE("training on GPUs: gradients of float are sent in bfloat16") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    Same same, exact;
    each_way([&](Way way) {
      way.several_streams = way.options.overlap;
      same.as<Training<distx::Compress<distx::bfloat16>>>(ranks, way);
      exact.as(ranks, way);
    });
    CHECK((ranks == 1) == toy::same_bits(same.expected.weights, exact.expected.weights));
  }
}

TEST_CASE("training on GPUs: float16 weights are trained with float16 communication") {
  using distx::float16;
  Same same;
  for (const int stage : {0, 1, 2, 3})
    same.as<Training<distx::Precision<float16>>, float16>(2, {.options = {.stage = stage, .loss_scale = 1}});
}

TEST_CASE("training on GPUs: hybrid sharding equals the host's") {
  Same same;
  for (const int stage : {1, 2, 3})
    for (const bool overlap : {false, true})
      same.as<Training<distx::Hybrid>>(
          4, {.options = {.bucket_bytes = 4_KiB, .overlap = overlap, .stage = stage, .group_ranks = 2},
              .several_streams = overlap});
  if (same.expected.weights.empty()) return;
  const auto host = on_host<distx::ZeRO<1>, distx::Hybrid>(4, {.options = {.group_ranks = 2}});
  CHECK(distance(host, same.expected.weights) < 1e-5);
}

TEST_CASE("training on GPUs: custom kernels can update weights on a custom stream") {
  Same same;
  each_way([&](Way way) {
    way.own_update = true;
    way.several_streams = way.options.overlap;
    same.as(2, way);
  });
}

TEST_CASE("training on GPUs: a moving average of the weights equals the host's") {
  Same same;
  each_way([&](Way way) {
    way.averages = true;
    way.several_streams = way.options.overlap;
    same.as(2, way);
  });
  if (same.expected.weights.empty()) return;
  CHECK(distance(on_host<distx::ZeRO<0>>(2, {.averages = true}), same.expected.weights) < 1e-5);
  CHECK(distance(on_host<distx::ZeRO<0>>(2, {}), same.expected.weights) > 1e-4);
}

TEST_CASE("training on GPUs: threads on which another GPU is current may call a training") {
  for (const int stage : {0, 2, 3}) {
    CAPTURE(stage);
    gpu_ranks::on_gpus(2, [&](NcclCommunicator& comm) {
      const distx::CudaStream stream;
      std::vector<distx::Parameter<float, Cuda>> parameters;
      for (int p = 0; p < 3; ++p) parameters.emplace_back("layer" + std::to_string(p), 100);
      Training<> training(comm, parameters, distx::SGD{}, {.bucket_bytes = 0, .stage = stage, .clip_norm = 1});
      auto ending = std::async(std::launch::async, [&] {  // with GPU 0
        return toy::ending_of([&] {
          for (int step = 0; step < 2; ++step) {
            for (std::size_t p = parameters.size(); p-- > 0;) {
              const auto weights = training.unshard_after(stream, parameters[p]);
              static_cast<void>(training.gradient(parameters[p], stream));
              training.ready_after(stream, parameters[p]);
            }
            training.step({.learning_rate = 0.1}, stream);
          }
        });
      });
      const toy::Ending end = ending.get();
      CHECK_MESSAGE(end.kind == "no error", end.words);
      stream.synchronize();
    });
  }
}

TEST_CASE("training on GPUs: a step does not block the host") {
  for (const auto& [stage, clips] : {std::pair{0, false}, {1, false}, {2, false}, {3, false}, {0, true}, {2, true}}) {
    CAPTURE(stage);
    CAPTURE(clips);
    gpu_ranks::on_gpus(2, [&](NcclCommunicator& comm) {
      const distx::CudaStream stream;
      std::vector<distx::Parameter<float, Cuda>> parameters;
      for (int p = 0; p < 6; ++p) parameters.emplace_back("layer" + std::to_string(p), 5000);
      Training<> training(
          comm, parameters, distx::AdamW{},
          {.bucket_bytes = 0, .stage = stage, .clip_norm = clips ? 1 : distx::DataParallelOptions{}.clip_norm});
      const auto step = [&] {
        for (std::size_t p = parameters.size(); p-- > 0;) {
          const auto weights = training.unshard_after(stream, parameters[p]);
          static_cast<void>(training.gradient(parameters[p], stream));
          training.ready_after(stream, parameters[p]);
        }
        training.step({.learning_rate = 0.1}, stream);
      };
      step();  // first calls may wait
      stream.synchronize();
      Gate gate(stream);
      step();
      if (!clips) step();  // a clipped step begins once the GPU knows the norm of the one before it
      CHECK_FALSE(stream.ref().done());
      gate.open();
      stream.synchronize();
    });
  }
}

TEST_CASE("training on GPUs: bytes sent and held equal the host's") {
  constexpr std::size_t sizes[] = {480, 960, 1440, 1920, 2400, 2880};  // multiples of 6 lines: GPUs' parts are equal
  for (const int ranks : {2, 3})
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(ranks);
      CAPTURE(stage);
      // Threads that map weights send none of them.
      const distx::DataParallelOptions options{.bucket_bytes = 4_KiB, .stage = stage, .map_weights = false};
      const auto step = [&](auto& comm, auto& parameters, auto& training) {
        const auto before = comm.ledger();
        for (std::size_t p = parameters.size(); p-- > 0;) {
          const auto weights = training.unshard(parameters[p]);
          static_cast<void>(training.gradient(parameters[p]));
          training.ready(parameters[p]);
        }
        training.step({.learning_rate = 0.1});
        const auto sent = (comm.ledger() - before).total();
        const auto memory = training.memory();
        return std::array<std::uint64_t, 6>{sent.sent_bytes,       sent.received_bytes,   memory.weights.held,
                                            memory.gradients.held, memory.optimizer.held, memory.in_flight.peak};
      };
      std::vector<std::array<std::uint64_t, 6>> host(static_cast<std::size_t>(ranks));
      toy::on_ranks(ranks, [&](distx::ThreadCommunicator& comm) {
        distx::Metered<distx::ThreadCommunicator> counted(comm.share());
        std::vector<distx::Parameter<float>> parameters;
        for (std::size_t p = 0; p < 6; ++p) parameters.emplace_back("layer" + std::to_string(p), sizes[p]);
        stages::Training training(counted, parameters, distx::AdamW{}, options);
        host[static_cast<std::size_t>(comm.rank())] = step(counted, parameters, training);
      });
      gpu_ranks::on_gpus(ranks, [&](NcclCommunicator& comm) {
        distx::Metered<NcclCommunicator> counted(comm.share());
        std::vector<distx::Parameter<float, Cuda>> parameters;
        for (std::size_t p = 0; p < 6; ++p) parameters.emplace_back("layer" + std::to_string(p), sizes[p]);
        Training<> training(counted, parameters, distx::AdamW{}, options);
        const auto mine = step(counted, parameters, training);
        if (mine != host[static_cast<std::size_t>(comm.rank())]) FAIL_CHECK("rank ", comm.rank());
      });
    }
}

TEST_CASE("training on GPUs: mismatches and errors of one rank throw on all ranks") {
  const auto differ = endings(2, [](NcclCommunicator& comm) {
    std::vector<distx::Parameter<float, Cuda>> parameters;
    parameters.emplace_back("weight", 10 + static_cast<std::size_t>(comm.rank()));
    Training<> training(comm, parameters, distx::SGD{}, {.stage = 1});
  });
  for (const auto& [rank, ending] : differ) {
    CHECK(ending.kind == "mismatch");
    CHECK(toy::says(ending.words, "parameter 0 differs: rank 0 has 'weight', 10 of float32"));
  }
  for (const int stage : {0, 2}) {
    CAPTURE(stage);
    const auto twice = endings(3, [&](NcclCommunicator& comm) {
      const distx::CudaStream stream;
      std::vector<distx::Parameter<float, Cuda>> parameters;
      for (int p = 0; p < 3; ++p) parameters.emplace_back("layer" + std::to_string(p), 3000);
      Training<> training(comm, parameters, distx::SGD{}, {.bucket_bytes = 0, .stage = stage, .clip_norm = 1});
      for (int step = 0; step < 3; ++step) {
        for (std::size_t p = parameters.size(); p-- > 0;) {
          static_cast<void>(training.gradient(parameters[p], stream));
          training.ready_after(stream, parameters[p]);
          if (step == 1 && p == 1 && comm.rank() == 1) training.ready_after(stream, parameters[p]);
        }
        training.step({.learning_rate = 0.1}, stream);
      }
    });
    for (const auto& [rank, ending] : twice) {
      CHECK(ending.kind == (rank == 1 ? "state" : "revoked"));
      CHECK(toy::says(ending.words, "'layer1' is already ready"));
    }
  }
}

TEST_CASE(
    "training on GPUs: a gradient that is not finite leaves the weights unchanged, and is an error on all ranks") {
  // Where it is found: in the next step; before it, by a rank that the other one outruns; in a call between the steps.
  for (const std::string found : {"next", "outrun", "between"}) {
    CAPTURE(found);
    const auto infinite = endings(2, [&](NcclCommunicator& comm) {
      const std::string_view where = found;
      std::vector<distx::Parameter<float, Cuda>> parameters;
      for (int p = 0; p < 3; ++p) parameters.emplace_back("layer" + std::to_string(p), 3000);
      Training<> training(comm, parameters, distx::SGD{}, {.stage = 2, .clip_norm = 1});
      std::vector<float> weights(3000);
      const auto copy_weights = [&] {
        distx::copy(distx::CudaStreamRef(), distx::Span<float>(weights),
                    distx::Span<const float, Cuda>(training.value(parameters[1])));
        distx::CudaStreamRef().synchronize();
      };
      const auto backward = [&](float value) {
        for (std::size_t p = parameters.size(); p-- > 0;) {
          const auto gradient = training.gradient(parameters[p]);
          distx::fill(distx::CudaStreamRef(), gradient, 1.0F);
          if (p == 1 && comm.rank() == 1) distx::fill(distx::CudaStreamRef(), gradient.subspan(2990, 1), value);
          training.ready(parameters[p]);
        }
      };
      backward(2);
      training.step({.learning_rate = 0.1});
      copy_weights();
      const auto before = weights;
      backward(std::numeric_limits<float>::infinity());
      training.step({.learning_rate = 0.1});
      copy_weights();
      CHECK(weights == before);
      CHECK(training.gradient_norm() == std::numeric_limits<double>::infinity());
      if (where == "between") static_cast<void>(training.state());
      if (where == "outrun" && comm.rank() == 1) training.reduce_gradients();
      backward(1);
      training.step({.learning_rate = 0.1});
    });
    for (const auto& [rank, ending] : infinite) {
      CAPTURE(ending.words);
      CHECK(ending.kind == "not finite");
      // Its own, or that of the other rank, which may throw while this one is still in `ready`.
      CHECK(toy::says(ending.words, "step on rank "));
      CHECK(toy::says(ending.words, "the gradient of 'layer1'"));
    }
  }
}

TEST_CASE("training on GPUs: a parameter may lack a gradient on some ranks, or on all") {
  Same same;
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    gpu_ranks::on_gpus(2, [&](NcclCommunicator& comm) {
      const distx::CudaStream stream;
      std::vector<distx::Parameter<float, Cuda>> parameters;
      for (int p = 0; p < 3; ++p)
        parameters.emplace_back("layer" + std::to_string(p), 100, [](distx::Span<float, Cuda> values) {
          distx::fill(distx::CudaStreamRef(), values, 1.0F);
        });
      Training<> training(comm, parameters, distx::SGD{}, {.bucket_bytes = 0, .allow_unused = true, .stage = stage});
      for (std::size_t p : {2U, 1U}) {
        const auto weights = training.unshard_after(stream, parameters[p]);
        if (p == 1 && comm.rank() == 0) continue;
        distx::fill(distx::CudaStreamRef(stream), training.gradient(parameters[p], stream), 2.0F);
        training.ready_after(stream, parameters[p]);
      }
      training.step({.learning_rate = 0.25}, stream);
      const auto weights = gpu_toy::weights_of<float>(training, stream);
      CHECK(weights[0] == 1);
      CHECK(weights[100] == 0.75F);
      CHECK(weights[200] == 0.5F);
    });
  }
}

TEST_CASE("training on GPUs: weights sharded over a mesh equal those of one process") {
  const distx::DataParallelOptions options{.clip_norm = 0.5};
  const mesh_model::Whole expected(options);
  for (const auto shape : {std::array{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 3}}) {
    INFO(shape[0], " x ", shape[1]);
    gpu_ranks::on_gpus(shape[0] * shape[1], [&](NcclCommunicator& comm) {
      const distx::CudaStream stream;
      const mesh_model::Grid mesh(comm, shape, stream);
      mesh_model::train<Cuda, 0>(mesh, options, expected);
      mesh_model::train<Cuda, 1>(mesh, options, expected);
      mesh_model::train<Cuda, 3>(mesh, options, expected);
    });
  }
}
