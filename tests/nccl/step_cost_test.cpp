// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Launches of kernels, host waits and allocations of a training step, counted by the stand-in for CUDA.
#include <doctest/doctest.h>

#include <deque>

#include "distx/distx.hpp"
#include "nccl/ranks.hpp"
#include "standin/standin.hpp"

using distx::bfloat16;
using distx::Cuda;
using nccl_test::on_ranks;

namespace {

/// The sizes of GPT-2 124M's 148 parameters, divided by 4096: the number of parameters and buckets is the model's.
std::vector<std::size_t> gpt2_sizes() {
  constexpr std::size_t width = 12, vocabulary = 785, context = 16;
  std::vector<std::size_t> sizes{vocabulary * width, context * width};
  for (int block = 0; block < 12; ++block)
    sizes.insert(sizes.end(), {width, width, 3 * width * width, 3 * width, width * width, width,  // attention
                               width, width, 4 * width * width, 4 * width, 4 * width * width, width});
  sizes.insert(sizes.end(), {width, width});
  return sizes;
}

struct Cost {
  std::size_t launches = standin::calls("cudaLaunchKernelEx");
  std::size_t waits = standin::host_waits();
  std::size_t memsets = standin::calls("cudaMemsetAsync");
  std::size_t copies = standin::calls("cudaMemcpyAsync");
  std::size_t blocking_allocations =
      standin::calls("cudaMalloc") + standin::calls("cudaMallocHost") + standin::calls("cudaFree");
  std::size_t allocations = blocking_allocations + standin::calls("cudaMallocFromPoolAsync");
  std::size_t events = standin::calls("cudaEventRecord") + standin::calls("cudaStreamWaitEvent") +
                       standin::calls("cudaEventQuery") + standin::calls("cudaEventCreateWithFlags");
  std::size_t collectives =
      standin::calls("ncclAllReduce") + standin::calls("ncclReduceScatter") + standin::calls("ncclAllGather");
};

/// Runs steps of a clipped training; `check(step, before backward, before step, after step)`, of all ranks.
template <class T, class... Policies, class F>
void count_steps(distx::DataParallelOptions options, F&& check, int ranks = 2) {
  options.bucket_bytes = 6400;
  options.clip_norm = 1;
  on_ranks(ranks, [&](auto& connector) {
    distx::NcclCommunicator comm(connector);
    const distx::CudaStream stream;
    std::vector<distx::Parameter<T, Cuda>> parameters;
    for (const std::size_t size : gpt2_sizes()) parameters.emplace_back(std::to_string(parameters.size()), size);
    distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::On<Cuda>, Policies...> training(comm, parameters,
                                                                                            distx::AdamW{}, options);
    for (int step = 0; step < 3; ++step) {
      const auto all_ranks = [&] {
        stream.synchronize();
        connector.barrier();
        const Cost now;
        connector.barrier();
        return now;
      };
      const Cost begin = all_ranks();
      for (std::size_t p = parameters.size(); p-- > 0;) {
        const auto weights = training.unshard_after(stream, parameters[p]);
        static_cast<void>(training.gradient(parameters[p], stream));
        training.ready_after(stream, parameters[p]);
      }
      connector.barrier();
      const Cost before;
      connector.barrier();
      training.step({.learning_rate = 0.1}, stream);
      connector.barrier();
      const Cost after;
      connector.barrier();
      if (step == 2 && comm.rank() == 0) check(training.bucket_count(), begin, before, after);
    }
    stream.synchronize();
  });
}

}  // namespace

TEST_CASE(
    "a clipped step of 148 parameters zeroes each bucket at once, launches one update per bucket and four kernels for "
    "the norm, and never blocks the host") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const auto check = [&](std::size_t buckets, const Cost& begin, const Cost& before, const Cost& after) {
      CHECK(buckets > 10);
      const std::size_t launches = after.launches - before.launches;
      if (stage < 3)
        CHECK(launches == 2 * (buckets + 4));
      else
        CHECK(launches < 2 * (buckets + 4));  // of a bucket that fits one line, one of the ranks has nothing
      CHECK(before.launches == begin.launches);
      CHECK(before.memsets - begin.memsets == 2 * buckets);
      CHECK(after.waits == begin.waits);
      CHECK(after.allocations == begin.allocations);
    };
    count_steps<float>({.stage = stage}, check);
  }
}

TEST_CASE(
    "on one rank stages 2 and 3 call no collective and launch, zero, copy and order by events per bucket what stage 0 "
    "does") {
  std::array<std::size_t, 4> beside_buckets{};  // the launches, memsets, copies and events of stage 0
  for (const int stage : {0, 2, 3}) {
    CAPTURE(stage);
    const auto check = [&](std::size_t buckets, const Cost& begin, const Cost&, const Cost& after) {
      const std::array<std::size_t, 4> made{after.launches - begin.launches - buckets,
                                            after.memsets - begin.memsets - buckets, after.copies - begin.copies,
                                            after.events - begin.events};
      if (stage == 0) beside_buckets = made;
      CHECK(made == beside_buckets);
      CHECK(after.waits == begin.waits);
      CHECK(after.allocations == begin.allocations);
      CHECK(after.collectives == begin.collectives);
    };
    count_steps<float>({.stage = stage}, check, 1);
  }
}

TEST_CASE("a clipped step with master weights launches one update per bucket and four kernels for the norm") {
  const auto check = [](std::size_t buckets, const Cost&, const Cost& before, const Cost& after) {
    CHECK(after.launches - before.launches == 2 * (buckets + 4));
    CHECK(after.waits == before.waits);
  };
  count_steps<bfloat16, distx::Precision<bfloat16>>({.stage = 2}, check);
  count_steps<bfloat16, distx::Precision<float>>({.stage = 2}, check);
}

TEST_CASE("gradients that the pool has no memory for are allocated stream-ordered") {
  count_steps<float>({.overlap = false, .allow_unused = true, .stage = 3},
                     [](std::size_t, const Cost& begin, const Cost&, const Cost& after) {
                       CHECK(after.allocations > begin.allocations);
                       CHECK(after.blocking_allocations == begin.blocking_allocations);
                     });
}

TEST_CASE("small borrowed arrays, and short operands of a list, are packed by one kernel and unpacked by another") {
  constexpr std::size_t arrays = 30;
  on_ranks(2, [](auto& connector) {
    distx::NcclCommunicator comm(connector);
    const distx::CudaStream stream;
    std::deque<distx::Buffer<float, Cuda>> weights, gradients;  // of different sizes, none next to another
    std::vector<distx::ParameterRef<float, Cuda>> parameters;
    std::vector<distx::Span<float, Cuda>> list;
    for (std::size_t p = 0; p < arrays; ++p) {
      weights.emplace_back(3 + p);
      gradients.emplace_back(3 + p);
      parameters.push_back(distx::ref(std::to_string(p), weights.back().span(), gradients.back().span()));
      list.push_back(gradients.back().span());
    }
    distx::DataParallel<distx::ZeRO<1>, distx::On<Cuda>> training(comm, parameters, distx::AdamW{});
    const auto of_all_ranks = [&](auto&& f) {
      stream.synchronize();
      connector.barrier();
      const Cost before;
      connector.barrier();
      f();
      connector.barrier();
      const Cost after;
      connector.barrier();
      CHECK(after.copies == before.copies);
      return after.launches - before.launches;
    };
    const auto step = [&] {
      training.ready_after(stream, parameters);
      training.step({.learning_rate = 0.1}, stream);
    };
    for (int first = 0; first < 2; ++first) step();
    // Of the gradients, of this rank's shard of the weights, and of all weights; and the update.
    const std::size_t launches = of_all_ranks(step);
    if (comm.rank() == 0) CHECK(launches == 2 * 4);
    const auto reduce = [&] { distx::all_reduce(comm, list, distx::sum); };
    reduce();
    const std::size_t of_list = of_all_ranks(reduce);
    if (comm.rank() == 0) CHECK(of_list == 2 * 2);
    stream.synchronize();
  });
}

TEST_CASE("a communicator loads the kernels when it is made") {
  on_ranks(1, [](auto& connector) {
    const std::size_t before = standin::calls("cudaFuncGetAttributes");
    const distx::NcclCommunicator comm(connector);
    CHECK(standin::calls("cudaFuncGetAttributes") > before + 50);
  });
}
