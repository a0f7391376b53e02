// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Every pair of layouts, as values: each rank's part is what the one-process tensor has there, and the bytes are those
// said before and no more than what the ranks lack.
#include <doctest/doctest.h>

#include <mutex>

#include "distx/comm/decorators/metered.hpp"
#include "distx/tensor.hpp"
#include "distx/tensor/detail/redistribution.hpp"
#include "distx/threads.hpp"
#include "pairs.hpp"

namespace {

using namespace pairs;

std::size_t lacking(const Sharding& from, const Sharding& to, int rank) {
  return (to.box(rank).volume() - (to.box(rank) & from.box(rank)).volume()) * sizeof(Value);
}

/// Returns the bytes of all-reducing whole parts axis by axis and then fetching the missing elements: the most that a
/// redistribution may cost.
std::size_t plain_cost(const Relayout& wanted) {
  std::size_t total = 0;
  for (int rank = 0; rank < wanted.source.mesh().ranks(); ++rank) {
    total += lacking(wanted.source, wanted.target, rank);
    for (std::size_t axis = 0; axis < wanted.source.mesh().axes; ++axis) {
      if ((wanted.partial >> axis & 1U) == 0) continue;
      const std::size_t n = wanted.source.box(rank).volume();
      const auto p = static_cast<std::size_t>(wanted.source.mesh().sizes[axis]);
      const auto place = static_cast<std::size_t>(wanted.source.mesh().coordinates(rank)[axis]);
      const std::size_t block = distx::detail::part_begin(n, place + 1, p) - distx::detail::part_begin(n, place, p);
      total += (n - block + (p - 1) * block) * sizeof(Value);
    }
  }
  return total;
}

struct Case {
  MeshShape mesh;
  std::vector<Sizes> tensors;
};

/// Goes through all pairs of layouts, collecting at most a few complaints. Returns the number of pairs.
std::size_t try_all(const Case& c, std::vector<std::string>& wrong) {
  std::mutex mutex;
  std::size_t pairs = 0;
  using namespace std::chrono_literals;
  distx::spawn(distx::threads(c.mesh.ranks(), 60s), [&](distx::ThreadConnector& connector) {
    distx::Metered<distx::ThreadCommunicator> comm{distx::ThreadCommunicator(connector, 60s)};
    const auto mesh = distx::detail::make_mesh(distx::AnyCommunicator<>(comm.share()), c.mesh, {});
    const auto say = [&](const std::string& what) {
      const std::lock_guard lock(mutex);
      if (wrong.size() < 5) wrong.push_back("rank " + std::to_string(comm.rank()) + ": " + what);
    };
    std::array<distx::calls::AnyOp, distx::detail::max_axes> ops;
    ops.fill(distx::calls::AnyOp::make<Value>(distx::sum));
    std::size_t tried = 0;
    for (const auto& sizes : c.tensors)
      for (const auto& from : all_layouts(c.mesh.axes, sizes.size(), true))
        for (const auto& to : all_layouts(c.mesh.axes, sizes.size(), false)) {
          const Relayout wanted = relayout(c.mesh, sizes, from, to);
          const auto source = part(wanted.source, from, mesh->coordinates);
          const auto expected = part(wanted.target, to, mesh->coordinates);
          std::vector<Value> target(expected.size(), -1);
          const distx::observe::Traffic before = comm.ledger().total();
          const auto barriers = comm.ledger()["barrier"].calls;
          distx::detail::Redistribution<distx::Host> work(*mesh, wanted, ops, distx::Span<const Value>(source),
                                                          distx::Span<Value>(target), {}, {});
          if (++tried % 2 == 0) {
            work.start().wait();
            work.finish();
          } else {
            work.run();
          }
          distx::observe::Traffic moved = comm.ledger().total();
          moved -= before;
          moved.calls -= comm.ledger()["barrier"].calls - barriers;  // of the first use of a group
          const distx::detail::RedistributionPlan plan(wanted, mesh->coordinates);
          const auto said = wire_bytes(plan, c.mesh, sizeof(Value));
          const std::string where = words(c.mesh, sizes, from, to);
          if (target != expected) say("wrong elements: " + where);
          if (moved.sent_bytes != said.sent || moved.received_bytes != said.received)
            say("other bytes than said: " + where);
          if (moved.calls != plan.collectives()) say("other calls than said: " + where);
          if (wanted.partial == 0 && moved.received_bytes != lacking(wanted.source, wanted.target, comm.rank()))
            say("more than it lacks: " + where);
          if (comm.rank() == 0) {
            const auto cost = distx::detail::cost_of(wanted, sizeof(Value));
            if (cost.total > plain_cost(wanted)) say("more than the plain way costs: " + where);
            if (wanted.partial == 0 && cost.collectives > 1) say("more than one collective: " + where);
          }
        }
    if (comm.rank() == 0) pairs = tried;
  });
  return pairs;
}

}  // namespace

TEST_CASE("redistribution between every pair of layouts gives the same tensor") {
  const std::vector<Case> cases{
      {{{1, 1, 1, 1}, 1}, {{5}, {3, 4}, {2, 3, 2}}},       {{{2, 1, 1, 1}, 1}, {{0}, {1}, {7}, {3, 5}, {2, 3, 5}}},
      {{{3, 1, 1, 1}, 1}, {{2}, {7}, {3, 5}, {4, 1, 5}}},  {{{4, 1, 1, 1}, 1}, {{3}, {8}, {3, 5}, {4, 2, 6}}},
      {{{7, 1, 1, 1}, 1}, {{5}, {16}, {9, 5}, {8, 2, 7}}}, {{{2, 2, 1, 1}, 2}, {{3}, {8}, {3, 5}, {2, 3, 5}}},
      {{{2, 3, 1, 1}, 2}, {{5}, {13}, {3, 7}, {4, 3, 5}}}, {{{2, 2, 2, 1}, 3}, {{7}, {3, 9}}},
  };
  for (const auto& c : cases) {
    std::vector<std::string> wrong;
    const std::size_t pairs = try_all(c, wrong);
    MESSAGE(c.mesh.to_string(), ": ", pairs, " pairs");
    for (const auto& words : wrong) FAIL_CHECK(words);
    CHECK(pairs > 0);
  }
}

TEST_CASE("redistribution between every pair of layouts of three dimensions on 2 x 2 x 2 gives the same tensor") {
  std::vector<std::string> wrong;
  CHECK(try_all({{{2, 2, 2, 1}, 3}, {{3, 2, 5}}}, wrong) == 125 * 64);
  for (const auto& words : wrong) FAIL_CHECK(words);
}

TEST_CASE("Partials that are kept are not reduced, and a reduction followed by an exchange is a reduce-scatter") {
  const MeshShape mesh{{2, 2, 1, 1}, 2};
  const auto cost = [&](const Placed& from, const Placed& to) {
    return distx::detail::cost_of(relayout(mesh, {4, 4}, from, to), sizeof(Value));
  };
  // An all-reduce of 32 bytes on each rank, of the half that it wants.
  CHECK(cost({partial, replicated}, {replicated, 0}) == distx::RedistributionCost{32, 32, 128, 1});
  // A reduce-scatter of 64 bytes to 32, then an all-reduce of these.
  CHECK(cost({partial, partial}, {0, replicated}) == distx::RedistributionCost{64, 64, 256, 2});
  // A reduce-scatter of 32 bytes, then what is lacking: 16 bytes on two ranks, 32 on the others.
  CHECK(cost({partial, 0}, {replicated, 1}) == distx::RedistributionCost{48, 48, 160, 2});
  // Both axes' shares of a sum, at once where they belong.
  CHECK(cost({partial, partial}, {0, 1}) == distx::RedistributionCost{48, 48, 192, 2});
}
