// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The laws of cuts and boxes, for every way in which a mesh can cut a tensor.
#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "distx/tensor/detail/sharding.hpp"

namespace {

using distx::Extents;
using distx::detail::Box;
using distx::detail::Coordinates;
using distx::detail::MeshShape;
using distx::detail::Sharding;

constexpr MeshShape mesh_2_3{{2, 3, 1, 1}, 2};

constexpr Sharding cut_twice(std::size_t n) {
  Sharding sharding(mesh_2_3, Extents<1>{n});
  sharding.shard(0, 0);
  sharding.shard(0, 1);
  return sharding;
}
// 7 = 3 + 4, then 3 = 1 + 1 + 1 and 4 = 1 + 1 + 2.
static_assert(cut_twice(7).box(2).begin[0] == 2 && cut_twice(7).box(2).size[0] == 1);
static_assert(cut_twice(7).box(5).begin[0] == 5 && cut_twice(7).box(5).size[0] == 2);
static_assert(mesh_2_3.rank({1, 2, 0, 0}) == 5 && mesh_2_3.coordinates(4) == Coordinates{1, 1, 0, 0});

const std::vector<MeshShape> meshes{{{1, 1, 1, 1}, 1}, {{2, 1, 1, 1}, 1}, {{7, 1, 1, 1}, 1}, {{2, 2, 1, 1}, 2},
                                    {{2, 3, 1, 1}, 2}, {{3, 2, 1, 1}, 2}, {{2, 2, 2, 1}, 3}, {{2, 1, 3, 2}, 4}};

/// All ways to have each axis cut one of two dimensions, or none.
std::vector<Sharding> all_cuts(const MeshShape& mesh, const Extents<2>& extents) {
  std::vector<Sharding> all{Sharding(mesh, extents)};
  for (std::size_t axis = 0; axis < mesh.axes; ++axis) {
    std::vector<Sharding> more;
    for (const auto& one : all)
      for (int dim = -1; dim < 2; ++dim) {
        more.push_back(one);
        if (dim >= 0) more.back().shard(static_cast<std::size_t>(dim), axis);
      }
    all = std::move(more);
  }
  return all;
}

template <class F>
void for_each_sharding(F&& f) {
  for (const auto& mesh : meshes)
    for (const auto& extents : {Extents<2>{5, 7}, Extents<2>{1, 12}, Extents<2>{3, 0}, Extents<2>{8, 2}})
      for (const auto& sharding : all_cuts(mesh, extents)) f(sharding, extents);
}

}  // namespace

TEST_CASE("the parts of an extent are consecutive and differ by at most one") {
  for (std::size_t p = 1; p < 9; ++p)
    for (std::size_t n = 0; n < 30; ++n) {
      CHECK(distx::detail::part_begin(n, 0, p) == 0);
      CHECK(distx::detail::part_begin(n, p, p) == n);
      for (std::size_t i = 0; i < p; ++i) {
        const std::size_t begin = distx::detail::part_begin(n, i, p), end = distx::detail::part_begin(n, i + 1, p);
        CHECK(begin == n * i / p);
        CHECK(end - begin >= n / p);
        CHECK(end - begin <= (n + p - 1) / p);
      }
    }
}

TEST_CASE("a rank's coordinates identify the rank") {
  for (const auto& mesh : meshes)
    for (int rank = 0; rank < mesh.ranks(); ++rank) CHECK(mesh.rank(mesh.coordinates(rank)) == rank);
}

TEST_CASE("each element is held exactly by the ranks with the same coordinates on the sharded axes") {
  for_each_sharding([](const Sharding& sharding, const Extents<2>& extents) {
    const MeshShape& mesh = sharding.mesh();
    const auto on_sharded_axes = [&](int rank) {
      Coordinates coordinates = mesh.coordinates(rank);
      for (std::size_t axis = 0; axis < mesh.axes; ++axis)
        if ((sharding.sharded_axes() >> axis & 1U) == 0) coordinates[axis] = 0;
      return coordinates;
    };
    for (std::size_t i = 0; i < extents[0]; ++i)
      for (std::size_t j = 0; j < extents[1]; ++j) {
        const Box element{2, {i, j}, {1, 1}};
        std::vector<bool> holds;
        for (int rank = 0; rank < mesh.ranks(); ++rank) holds.push_back((sharding.box(rank) & element) == element);
        const auto first = std::find(holds.begin(), holds.end(), true);
        REQUIRE(first != holds.end());
        const Coordinates owner = on_sharded_axes(static_cast<int>(first - holds.begin()));
        for (int rank = 0; rank < mesh.ranks(); ++rank)
          CHECK(holds[static_cast<std::size_t>(rank)] == (on_sharded_axes(rank) == owner));
      }
  });
}

TEST_CASE("the parts of all ranks add up to whole copies") {
  for_each_sharding([](const Sharding& sharding, const Extents<2>& extents) {
    std::size_t all = 0, copies = 1;
    for (int rank = 0; rank < sharding.mesh().ranks(); ++rank) all += sharding.box(rank).volume();
    for (std::size_t axis = 0; axis < sharding.mesh().axes; ++axis)
      if ((sharding.sharded_axes() >> axis & 1U) == 0) copies *= static_cast<std::size_t>(sharding.mesh().sizes[axis]);
    CHECK(all == copies * distx::volume(extents));
  });
}

TEST_CASE("the intersection of boxes is what both contain") {
  const Box a{2, {1, 2}, {3, 4}}, b{2, {2, 0}, {5, 3}}, far{2, {9, 9}, {1, 1}};
  CHECK((a & b) == Box{2, {2, 2}, {2, 1}});
  CHECK((a & b) == (b & a));
  CHECK((a & far).volume() == 0);
}

TEST_CASE("is_contiguous_in and offset_in describe row-major memory") {
  const Box whole{3, {0, 0, 0}, {2, 3, 4}};
  CHECK(distx::detail::is_contiguous_in(whole, {3, {1, 0, 0}, {1, 3, 4}}));
  CHECK(distx::detail::is_contiguous_in(whole, {3, {1, 1, 0}, {1, 2, 4}}));
  CHECK(distx::detail::is_contiguous_in(whole, {3, {1, 2, 1}, {1, 1, 3}}));
  CHECK(!distx::detail::is_contiguous_in(whole, {3, {0, 0, 0}, {2, 2, 4}}));
  CHECK(!distx::detail::is_contiguous_in(whole, {3, {0, 0, 0}, {2, 3, 2}}));
  CHECK(distx::detail::offset_in(whole, {3, {1, 2, 1}, {1, 1, 3}}) == 21);
}
