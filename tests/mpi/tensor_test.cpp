// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tensors sharded across processes, over MPI and over shared memory.
#include <doctest/doctest.h>

#include <distx/distx.hpp>
#include <distx/shm.hpp>

#include "mpi/world.hpp"

namespace {

struct Data;
struct Model;
using Mesh = distx::Mesh<Data, Model>;
using distx::Partial;
using distx::Shard;

template <class X>
bool same(const X& x, const X& y) {
  return std::equal(x.local().begin(), x.local().end(), y.local().begin(), y.local().end());
}

template <class C>
void go_round(C& comm) {
  const int model = comm.size() % 2 == 0 ? 2 : 1;
  const Mesh mesh(comm, {comm.size() / model, model});
  constexpr distx::Extents<2> extents{37, 50};
  const auto number = [](const auto& index) { return index[0] * 100 + index[1]; };
  const auto rows = distx::generate<float, Shard<0, Data>>(mesh, extents, number);
  const auto blocks = distx::redistribute<Shard<1, Data>, Shard<0, Model>>(rows);
  CHECK(same(blocks, distx::generate<float, Shard<1, Data>, Shard<0, Model>>(mesh, extents, number)));
  CHECK(same(distx::redistribute<Shard<0, Data>>(blocks), rows));
  CHECK(same(distx::redistribute<>(blocks), distx::generate<float>(mesh, extents, number)));

  // One term per rank along Data.
  const auto columns = distx::generate<float, Shard<1, Model>>(mesh, extents, number);
  const auto terms = distx::from_local<Partial<Data>, Shard<1, Model>>(mesh, extents, columns.local());
  auto pending = distx::start_redistribute<Shard<0, Data>>(terms);
  const auto sums = pending.wait();
  bool right = true;
  for (std::size_t i = 0; i < sums.local().size(); ++i)
    right = right && sums.local()[i] == rows.local()[i] * static_cast<float>(mesh.size<Data>());
  CHECK(right);

  const auto whole = distx::gather(blocks, comm.size() - 1);
  const auto again = distx::scatter<Shard<0, Data>>(mesh, whole, comm.size() - 1);
  CHECK(same(again, rows));
}

TEST_CASE("tensors over MPI") {
  distx::MpiCommunicator comm(world());
  go_round(comm);
}

TEST_CASE("tensors in shared memory") {
  distx::ShmCommunicator comm(world());
  go_round(comm);
}

}  // namespace
