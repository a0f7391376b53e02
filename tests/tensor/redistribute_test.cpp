// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Redistribution by type: in place, started, into given memory; ops that differ; collectives along axes and dimensions.
#include <doctest/doctest.h>

#include "distx/comm/decorators/sum_over_ranks.hpp"
#include "meshes.hpp"

namespace {

using meshes::agrees;
using meshes::Comm;
using meshes::Data;
using meshes::five_by_seven;
using meshes::Layout;
using meshes::Mesh;
using meshes::Model;
using meshes::Partial;
using meshes::Shard;

/// This rank's term of the whole tensor along Model: all of it on the first rank there, else opposite numbers.
template <class... Ps>
auto terms(const Mesh& mesh) {
  auto x = distx::distribute<Ps...>(mesh, meshes::whole(five_by_seven));
  const int n = mesh.size<Model>(), place = mesh.coordinate<Model>();
  for (float& value : x.local()) value = place == 0 ? value + static_cast<float>(n - 1) : -1.0F;
  return distx::from_local<Ps..., Partial<Model>>(mesh, five_by_seven, x.local());
}

template <class X>
auto element_of(const X& x, std::size_t at = 0) {
  return x.local()[at];
}

TEST_CASE("a Partial is reduced to Replicated or Shard with the fewest collectives, also asynchronously") {
  for (const auto& shape : meshes::shapes)
    meshes::on_mesh(shape, [](const Mesh& mesh, Comm& comm) {
      const auto all = meshes::whole(five_by_seven);
      const auto x = terms<Shard<0, Data>>(mesh);
      const auto before = comm.ledger();
      const auto y = distx::redistribute<Shard<0, Data>>(x);
      const auto after = comm.ledger() - before;
      CHECK(agrees(y, all));
      CHECK(after["all_reduce"].calls == (mesh.size<Model>() > 1 ? 1 : 0));
      CHECK(after.total().calls == after["all_reduce"].calls);
      const auto cost = distx::redistribution_cost<decltype(x)::layout_type, Layout<Shard<0, Data>>>(mesh, {5, 7});
      const distx::observe::Ledger sum = distx::sum_over_ranks(after, comm.inner());
      CHECK(cost.total == sum.total().sent_bytes);
      CHECK(cost.collectives == after.total().calls);
      CHECK(after.total().received_bytes <= cost.largest_received);

      CHECK(agrees(distx::redistribute<Shard<1, Model>, Shard<0, Data>>(x), all));
      CHECK(agrees(distx::redistribute<Shard<1, Data>>(x), all));

      auto pending = distx::start_redistribute<Shard<0, Data>>(x);
      auto other = distx::start_redistribute<Shard<0, Model>, Shard<1, Data>>(x);
      while (!pending.test()) std::this_thread::yield();
      CHECK(agrees(pending.wait(), all));
      CHECK(agrees(other.wait(), all));
      { const auto abandoned = distx::start_redistribute<Shard<0, Data>>(x); }
    });
}

TEST_CASE("redistribute reuses the memory of an rvalue and of a target") {
  meshes::on_mesh({2, 2}, [](const Mesh& mesh, Comm&) {
    const auto all = meshes::whole(five_by_seven);
    auto x = terms<Shard<0, Data>>(mesh);
    const float* memory = x.local().data();
    const auto y = distx::redistribute<Shard<0, Data>>(std::move(x));
    CHECK(y.local().data() == memory);
    CHECK(agrees(y, all));
    auto z = distx::redistribute<Shard<0, Model>>(terms<Shard<0, Data>>(mesh));
    CHECK(agrees(z, all));

    const auto again = terms<>(mesh);
    auto to = distx::zeros<float, Shard<1, Model>>(mesh, five_by_seven);
    memory = to.local().data();
    distx::redistribute(again, to);
    CHECK(to.local().data() == memory);
    CHECK(agrees(to, all));
    auto small = distx::zeros<float, Shard<1, Model>>(mesh, {5, 6});
    CHECK(meshes::message_thrown([&] { distx::redistribute(again, small); }).find("extents 5 x 7, the target 5 x 6") !=
          std::string::npos);
  });
}

TEST_CASE("Partials over two axes are reduced together or one at a time") {
  meshes::on_mesh({2, 3}, [](const Mesh& mesh, Comm&) {
    const float mine = static_cast<float>(mesh.rank());  // 0 1 2 along the first place, 3 4 5 along the second
    const auto sums = distx::from_local<Partial<Data>, Partial<Model>>(mesh, {3}, std::vector<float>(3, mine));
    CHECK(element_of(distx::redistribute<>(sums), 1) == 15);
    const auto kept = distx::redistribute<Partial<Data>, Shard<0, Model>>(sums);
    CHECK(kept.local().size() == 1);
    CHECK(kept.local()[0] == (mesh.coordinate<Data>() == 0 ? 3 : 12));
    CHECK(element_of(distx::redistribute<>(kept), 2) == 15);
    // Of two ops, that of the mesh's first axis is done first: sums of 4, 5 and 3; largest of 5 and 4.
    const std::array<float, 6> of_ranks{0, 5, 1, 4, 0, 2};
    const std::vector<float> one(3, of_ranks[static_cast<std::size_t>(mesh.rank())]);
    const auto mixed = distx::from_local<Partial<Data>, Partial<Model, distx::Max>>(mesh, {3}, one);
    CHECK(element_of(distx::redistribute<>(mixed), 0) == 5);
    CHECK(element_of(distx::redistribute<Shard<0, Model>>(mixed), 0) == 5);
    const auto mixed_too = distx::from_local<Partial<Data, distx::Max>, Partial<Model>>(mesh, {3}, one);
    CHECK(element_of(distx::redistribute<>(mixed_too), 0) == 11);
    CHECK(element_of(distx::redistribute<Shard<0, Model>>(mixed_too), 0) == 11);
    const auto mean = distx::from_local<Partial<Data, distx::Average>, Partial<Model, distx::Average>>(
        mesh, {3}, std::vector<float>(3, mine));
    CHECK(element_of(distx::redistribute<Shard<0, Data>>(mean), 0) == 2.5F);
    // Element types without arithmetic are supported if nothing is reduced.
    struct Pair {
      int a, b;
    };
    const auto pairs = distx::generate<Pair, Shard<0, Model>>(
        mesh, {5}, [](const auto& i) { return Pair{static_cast<int>(i[0]), -static_cast<int>(i[0])}; });
    const auto moved = distx::redistribute<>(pairs);
    CHECK(moved.local()[3].b == -3);
    const auto number = distx::from_local<Partial<Model>>(mesh, distx::Extents<0>{}, std::vector<double>{2});
    CHECK(element_of(distx::redistribute<>(number), 0) == 6);
  });
}

TEST_CASE("all_reduce, reduce_scatter, all_gather and all_to_all along an axis call that collective") {
  meshes::on_mesh({2, 2}, [](const Mesh& mesh, Comm& comm) {
    const auto all = meshes::whole(five_by_seven);
    const auto calls_of = [&](auto&& f, std::string_view name) {
      const auto before = comm.ledger();
      f();
      const auto after = comm.ledger() - before;
      CHECK(after.total().calls == 1);
      CHECK(after[name].calls == 1);
    };
    const auto x = terms<Shard<0, Data>>(mesh);
    calls_of([&] { CHECK(agrees(distx::all_reduce<Model>(x), all)); }, "all_reduce");
    calls_of([&] { CHECK(agrees(distx::reduce_scatter<Model, 1>(x), all)); }, "reduce_scatter");
    const auto y = distx::reduce_scatter<Model, 1>(x);
    calls_of([&] { CHECK(agrees(distx::all_gather<Model>(y), all)); }, "all_gather");
    calls_of([&] { CHECK(agrees(distx::all_to_all<Model, 0>(y), all)); }, "all_to_all");
    static_assert(std::is_same_v<distx::detail::layout_of<decltype(distx::all_to_all<Model, 0>(y))>,
                                 Layout<Shard<0, Data>, Shard<0, Model>>>);
  });
}

TEST_CASE("collectives along a dimension concatenate and split whole tensors") {
  for (const int ranks : {1, 2, 3, 4, 7})
    meshes::on_mesh({ranks, 1}, [&](const Mesh& mesh, Comm& comm) {
      const auto all = meshes::whole(distx::Extents<3>{4, 9, 5});
      const auto p = static_cast<std::size_t>(ranks);
      const auto check = [&]<std::size_t Dim>(std::integral_constant<std::size_t, Dim>) {
        const auto part = distx::distribute<Shard<Dim, Data>>(mesh, all);
        std::vector<std::size_t> sizes;
        for (std::size_t i = 0; i < p; ++i)
          sizes.push_back(distx::detail::part_begin(all.extent(Dim), i + 1, p) -
                          distx::detail::part_begin(all.extent(Dim), i, p));
        const auto gathered = distx::all_gather(comm, part.view(), Dim, sizes);
        CHECK(gathered.extents() == all.extents());
        CHECK(std::equal(gathered.values().begin(), gathered.values().end(), all.values().begin()));

        const auto reduced = distx::reduce_scatter(comm, all, distx::max, Dim);
        CHECK(reduced.extents() == part.local_extents());
        CHECK(std::equal(reduced.values().begin(), reduced.values().end(), part.local().begin()));

        const auto turned = distx::all_to_all(comm, part.view(), 1, Dim, sizes);
        if constexpr (Dim != 1) {
          const auto expected = distx::distribute<Shard<1, Data>>(mesh, all);
          CHECK(turned.extents() == expected.local_extents());
          CHECK(std::equal(turned.values().begin(), turned.values().end(), expected.local().begin()));
        }
      };
      check(std::integral_constant<std::size_t, 0>{});
      check(std::integral_constant<std::size_t, 1>{});
      check(std::integral_constant<std::size_t, 2>{});
      // Alike on all ranks: no sizes are needed.
      const auto twice = distx::all_gather(comm, all, 1);
      CHECK(twice.extents() == distx::Extents<3>{4, 9 * p, 5});
      CHECK(twice(3, 9 * (p - 1) + 8, 4) == all(3, 8, 4));
      CHECK(meshes::message_thrown([&] {
              (void)distx::all_gather(comm, all, 3);
            }).find("invalid dimension 3: must be in [0, 3)") != std::string::npos);
    });
}

}  // namespace
