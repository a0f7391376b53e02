// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "comm/made_up_machines.hpp"
#include "distx/comm/hierarchical.hpp"
#include "distx/shm.hpp"
#include "mpi/world.hpp"
#include "parallel/kinds.hpp"

using namespace distx::literals;

namespace {

/// Whether to overlap. Without MPI_THREAD_MULTIPLE, asynchronous calls are MPI's own, which add in MPI's order.
std::vector<bool> overlaps() {
  return world().thread_level() == distx::MpiConnectorOptions::ThreadLevel::multiple ? std::vector{false, true}
                                                                                     : std::vector{false};
}

/// Returns the weights of the same training on threads, which add in rank order.
template <class F>
auto on_threads(F&& train) {
  decltype(train(std::declval<distx::ThreadCommunicator&>())) first;
  toy::on_ranks(world().size(), [&](distx::ThreadCommunicator& comm) {
    auto mine = train(comm);
    if (comm.rank() == 0) first = std::move(mine);
  });
  return first;
}

}  // namespace

TEST_CASE("training produces the bits of threads at every stage") {
  distx::MpiCommunicator comm(world());
  const auto expected = on_threads([](distx::ThreadCommunicator& threads) {
    return stages::train(threads, {.options = {.overlap = false, .stage = 0, .clip_norm = 1}, .steps = 5});
  });
  for (const int stage : {0, 1, 2, 3})
    for (const bool overlap : overlaps())
      for (const std::size_t bytes : {4_KiB, distx::unlimited}) {
        CAPTURE(stage);
        CAPTURE(overlap);
        CAPTURE(bytes);
        const distx::DataParallelOptions options{
            .bucket_bytes = bytes, .overlap = overlap, .stage = stage, .clip_norm = 1};
        CHECK(toy::same_bits(stages::train(comm, {.options = options, .steps = 5}), expected));
      }
}

TEST_CASE("training with norms and whole matrices produces the bits of threads at every stage") {
  distx::MpiCommunicator comm(world());
  const kinds::Mixture mixture{distx::Muon{.iterations = 2}};
  const kinds::Way plain{{.overlap = false, .stage = 0}};
  const auto norms = on_threads(
      [&](distx::ThreadCommunicator& threads) { return kinds::train(threads, distx::LAMB{}, plain).weights; });
  const auto matrices =
      on_threads([&](distx::ThreadCommunicator& threads) { return kinds::train(threads, mixture, plain).weights; });
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const kinds::Way way{{.bucket_bytes = 4_KiB, .overlap = overlaps().back(), .stage = stage}};
    CHECK(toy::same_bits(kinds::train(comm, distx::LAMB{}, way).weights, norms));
    CHECK(toy::same_bits(kinds::train(comm, mixture, way).weights, matrices));
  }
}

TEST_CASE("processes of a host read one copy of gathered or shared weights, with the bits of copies" * needs_ranks(3) *
          needs_threads()) {
  const int size = world().size();
  const auto machines = std::string_view(size == 4 ? "0011" : "0112223").substr(0, static_cast<std::size_t>(size));
  test::MadeUpMachines made_up(world(), machines);
  auto [inner, outer] = distx::detail::make_levels(
      made_up, [](auto& machine) { return distx::ShmCommunicator(machine); },
      [](auto&) { return distx::MpiCommunicator(world()); });
  distx::Hierarchical comm(std::move(inner), std::move(outer));
  for (const int stage : {1, 2, 3})
    for (const bool overlap : {false, true}) {
      CAPTURE(stage);
      CAPTURE(overlap);
      const auto train = [&](bool shares) {
        return stages::train(comm, {.options = {.bucket_bytes = 4_KiB,
                                                .overlap = overlap,
                                                .stage = stage,
                                                .map_weights = shares,
                                                .share_weights = stage < 3 && shares}});
      };
      const auto expected = train(false);
      CHECK(toy::same_bits(train(true), expected));
    }
}
