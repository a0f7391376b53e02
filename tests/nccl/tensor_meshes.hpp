// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <distx/distx.hpp>
#include <distx/nccl.hpp>
#include <distx/shm.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "cuda/gate.hpp"
#include "message_thrown.hpp"
#include "nccl/gpu_ranks.hpp"

// The ranks of the tests of tensors on GPUs: threads, each with a GPU, or the processes that a launcher has started, as
// a mesh of two axes; and the same ranks as a mesh of the host's memory, whose results are what the GPUs' must be.
namespace gpu_meshes {

struct Data;
struct Model;
using Mesh = distx::Mesh<Data, Model>;

inline constexpr std::array<std::pair<int, int>, 5> shapes{{{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 1}}};

/// The meshes of a rank.
struct Rank {
  Mesh gpus;
  Mesh host;
  distx::NcclCommunicator& comm;
  distx::CudaStreamRef stream;  ///< the mesh's, which waits for no other
};

/// Runs `f(rank)` on every rank, where that many can be had here; no wait in it lasts longer than 20 seconds.
/// @return whether it was run
template <class F>
bool on_mesh(std::pair<int, int> shape, F&& f) {
  using namespace std::chrono_literals;
  const int ranks = shape.first * shape.second;
  const auto run = [&](auto& connector, auto host) {
    const distx::CudaStream stream;
    distx::NcclCommunicator comm(connector, {.deadline = 20s});
    Rank rank{Mesh(comm, {shape.first, shape.second}, stream), Mesh(host, {shape.first, shape.second}), comm, stream};
    f(rank);
  };
  if (auto& world = gpu_ranks::world(); world.size() > 1) {
    if (ranks != world.size()) return false;
    distx::cuda::pick_device(world, {.share = true});
    run(world, distx::ShmCommunicator(world, 20s));
    return true;
  }
  if (ranks > distx::cuda::device_count()) return false;
  distx::spawn(distx::threads(ranks, 20s), [&](distx::ThreadConnector& connector) {
    const distx::cuda::DeviceGuard guard(connector.rank());
    run(connector, distx::ThreadCommunicator(connector, 20s));
  });
  return true;
}
template <class F>
void on_meshes(F&& f) {
  for (const auto& shape : shapes) on_mesh(shape, f);
}

/// Whether two spans of the host's memory have the same bits.
template <class T>
bool same_bits(distx::Span<const T> a, distx::Span<const T> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
/// Whether the GPU's tensor is the host's, and lies as it does.
template <class X, class Y>
bool same(const X& on_gpu, const Y& on_host) {
  static_assert(std::same_as<typename X::space, distx::Cuda> && std::same_as<typename Y::space, distx::Host>);
  static_assert(std::same_as<distx::detail::layout_of<X>, distx::detail::layout_of<Y>>);
  const auto there = distx::to_space<distx::Host>(on_gpu);
  return there.extents() == on_host.extents() &&
         same_bits(std::as_const(there).local(), distx::Span<const distx::detail::value_of<Y>>(on_host.local()));
}

using test::Gate;
using test::message_thrown;

}  // namespace gpu_meshes
