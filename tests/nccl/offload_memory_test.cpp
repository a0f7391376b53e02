// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The memory of GPUs and of the host, as the stand-in counts it, of trainings with optimizer states in host memory.
#include <doctest/doctest.h>

#include "distx/distx.hpp"
#include "nccl/ranks.hpp"
#include "parallel/toy.hpp"
#include "standin/standin.hpp"

using distx::bfloat16;
using distx::Cuda;
using nccl_test::on_ranks;

namespace {

using Training = distx::DataParallel<distx::ZeRO<distx::Dynamic>, distx::On<Cuda>, distx::Precision<float>>;
using Parameters = std::vector<distx::Parameter<bfloat16, Cuda>>;

constexpr std::size_t elements = std::size_t{1} << 14;  // of each parameter: whole lines on each rank

Parameters model() {
  Parameters parameters;
  for (const char* name : {"a", "b"}) parameters.emplace_back(name, elements);
  return parameters;
}
void make_step(Training& training, Parameters& parameters) {
  for (auto& parameter : parameters) {
    const auto weights = training.unshard(parameter);
    static_cast<void>(training.gradient(parameter));
    training.ready(parameter);
  }
  training.step({.learning_rate = 0.1});
  distx::CudaStreamRef::synchronize_all();
}
std::uint64_t used_bytes() {
  std::size_t free = 0, total = 0;
  distx::cuda::detail::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return total - free;
}

/// The bytes of this rank's GPU after construction and each step of a training, and the training's own count.
struct Use {
  std::vector<std::uint64_t> bytes;
  distx::observe::MemoryLedger ledger{};
};
Use use_of(distx::NcclCommunicator& comm, const distx::DataParallelOptions& options) {
  const auto before = used_bytes();
  auto parameters = model();
  Training training(comm, parameters, distx::AdamW{}, options);
  Use use;
  for (int step = 0; step < 3; ++step) {
    use.bytes.push_back(used_bytes() - before);
    make_step(training, parameters);
  }
  use.bytes.push_back(used_bytes() - before);
  use.ledger = training.memory();
  return use;
}

}  // namespace

TEST_CASE("states in host memory leave the GPU's to the rest of the training, as the ledger and the plan count") {
  for (const int ranks : {1, 2})
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(ranks);
      CAPTURE(stage);
      on_ranks(ranks, [&](auto& connector) {
        distx::NcclCommunicator comm(connector);
        use_of(comm, {.stage = stage});  // first calls allocate what the communicator keeps
        const auto held = use_of(comm, {.stage = stage});
        const auto offloaded = use_of(comm, {.stage = stage, .offload = true});
        const auto plan = distx::plan(2 * elements, static_cast<std::uint64_t>(ranks), stage, distx::mixed_precision<>,
                                      {.offload = true});
        CHECK(offloaded.ledger.offloaded.held == plan.offloaded);
        CHECK(offloaded.ledger.offloaded.peak == plan.offloaded);
        CHECK(offloaded.ledger.optimizer.peak == 0);
        CHECK(held.ledger.optimizer.held == plan.offloaded);
        for (std::size_t i = 0; i < held.bytes.size(); ++i) CHECK(offloaded.bytes[i] == held.bytes[i] - plan.offloaded);
      });
    }
}

TEST_CASE("host memory that one rank does not get is a MemoryError on every rank that names that rank and the bytes") {
  on_ranks(2, [](auto& connector) {
    distx::NcclCommunicator comm(connector);
    if (comm.rank() == 1) standin::page_locked(64 << 10);
    std::string words;
    try {
      auto parameters = model();
      const Training training(comm, parameters, distx::AdamW{}, {.stage = 1, .offload = true});
    } catch (const distx::MemoryError& error) {
      words = error.what();
    }
    CAPTURE(words);
    CHECK(toy::says(words, "rank 1 could not allocate") == (comm.rank() == 0));
    CHECK(toy::says(words, "cannot allocate 196608 bytes of page-locked host memory") == (comm.rank() == 1));
    CHECK(toy::says(words, "omit .offload") == (comm.rank() == 1));
    CHECK(toy::says(words, "this rank holds weights 65536 bytes"));
  });
}
