// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/comm/decorators/metered.hpp>
#include <distx/distx.hpp>

#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "message_thrown.hpp"

// The ranks of the tests of tensors: threads, whose calls are counted, as a mesh of two axes.
namespace meshes {

struct Data;
struct Model;
using Mesh = distx::Mesh<Data, Model>;
using Comm = distx::Metered<distx::ThreadCommunicator>;

/// The extents of most tensors here: no axis of several ranks divides either.
inline constexpr distx::Extents<2> five_by_seven{5, 7};

using distx::Layout;
using distx::Partial;
using distx::Shard;

inline constexpr std::array<std::pair<int, int>, 6> shapes{{{1, 1}, {2, 1}, {1, 3}, {2, 2}, {2, 3}, {4, 1}}};

/// Runs `f(mesh, comm)` on every rank; no wait in it lasts longer than 20 seconds.
template <class F>
void on_mesh(std::pair<int, int> shape, F&& f) {
  using namespace std::chrono_literals;
  distx::spawn(distx::threads(shape.first * shape.second, 20s), [&](distx::ThreadConnector& connector) {
    Comm comm{distx::ThreadCommunicator(connector, 20s)};
    const Mesh mesh(comm, {shape.first, shape.second});
    f(mesh, comm);
  });
}

/// A number for each element of a tensor, by its place in it.
inline float element(std::size_t at) { return static_cast<float>(at) * 0.5F - 3.0F; }

template <std::size_t Rank>
distx::Tensor<float, Rank> whole(const distx::Extents<Rank>& extents) {
  distx::Tensor<float, Rank> made(extents);
  for (std::size_t i = 0; i < made.values().size(); ++i) made.values()[i] = element(i);
  return made;
}

/// Whether a distributed tensor's part is what the whole one has there.
template <class X, class Whole>
bool agrees(const X& x, const Whole& all) {
  if (x.extents() != all.extents()) return false;
  std::size_t at = 0;
  bool same = true;
  distx::detail::for_each_index<distx::detail::rank_of<X>>(distx::detail::sharding_of(x).box(x.mesh().rank()),
                                                           [&](const auto& index) {
                                                             std::size_t place = 0;
                                                             for (std::size_t d = 0; d < index.size(); ++d)
                                                               place = place * x.extents()[d] + index[d];
                                                             same = same && x.local()[at++] == all.values()[place];
                                                           });
  return same && at == x.local().size();
}

using test::message_thrown;

}  // namespace meshes
