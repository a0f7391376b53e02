// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Layouts as types: sets of placements.
#include <doctest/doctest.h>

#include "distx/tensor.hpp"
#include "distx/tensor/detail/relayout.hpp"
#include "distx/tensor/placements.hpp"

namespace {

struct Data;
struct Model;
struct Pipeline;
template <int I>
struct Numbered;

using distx::Layout;
using distx::Max;
using distx::Partial;
using distx::Replicated;
using distx::Shard;
using std::is_same_v;

using Here = Layout<Shard<0, Data>, Partial<Model>>;
static_assert(is_same_v<Here, Layout<Partial<Model>, Shard<0, Data>>>);
static_assert(is_same_v<Layout<Shard<1, Numbered<1>>, Shard<1, Numbered<2>>, Shard<0, Numbered<3>>>,
                        Layout<Shard<0, Numbered<3>>, Shard<1, Numbered<2>>, Shard<1, Numbered<1>>>>);
static_assert(!is_same_v<Here, Layout<Shard<1, Data>, Partial<Model>>>);
static_assert(!is_same_v<Here, Layout<Shard<0, Data>, Partial<Model, Max>>>);

// A layout omits replicated axes, and may itself be given in place of its placements.
static_assert(is_same_v<Layout<Replicated<Pipeline>, Shard<0, Data>>, Layout<Shard<0, Data>>>);
static_assert(is_same_v<Layout<Layout<Shard<0, Data>>, Partial<Model>>, Here>);
static_assert(is_same_v<Layout<Here>, Here>);

static_assert(is_same_v<distx::detail::placement_on<Here, Data>, Shard<0, Data>>);
static_assert(is_same_v<distx::detail::placement_on<Here, Model>, Partial<Model>>);
static_assert(is_same_v<distx::detail::placement_on<Here, Pipeline>, Replicated<Pipeline>>);
static_assert(is_same_v<distx::detail::layout_with<Here, Replicated<Model>>, Layout<Shard<0, Data>>>);
static_assert(is_same_v<distx::detail::layout_with<Here, Shard<1, Pipeline>>,
                        Layout<Shard<1, Pipeline>, Shard<0, Data>, Partial<Model>>>);
static_assert(Here::has_partial && !Layout<Shard<0, Data>>::has_partial && !Layout<>::has_partial);

static_assert(distx::detail::axis_name<Data>() == "Data");
static_assert(distx::detail::axis_name<Numbered<3>>() != distx::detail::axis_name<Numbered<4>>());

using Mesh = distx::Mesh<Model, Data>;
static_assert(Mesh::index_of<Data>() == 1 && Mesh::has_axis<Model> && !Mesh::has_axis<Pipeline>);

// Axes cut one dimension in the mesh's order, not in the layout's.
constexpr distx::detail::MeshShape shape{{2, 3, 1, 1}, 2};
constexpr auto both =
    distx::detail::sharding_of<Layout<Shard<0, Data>, Shard<0, Model>>, Mesh>(shape, distx::Extents<1>{12});
static_assert(both.axes(0).axis[0] == 0 && both.axes(0).axis[1] == 1 && both.axes(0).count == 2);

}  // namespace

TEST_CASE("a layout is printed by its placements, and as replicated without any") {
  CHECK(distx::detail::layout_to_string(static_cast<Here*>(nullptr)) == "Shard<0, Data>, Partial<Model>");
  CHECK(distx::detail::layout_to_string(static_cast<Layout<>*>(nullptr)) == "replicated");
}
