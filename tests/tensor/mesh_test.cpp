// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include "meshes.hpp"

namespace {

using meshes::Data;
using meshes::Model;

TEST_CASE("a mesh gives coordinates, neighbours, and a communicator per axis") {
  for (const auto& shape : meshes::shapes)
    meshes::on_mesh(shape, [&](const meshes::Mesh& mesh, meshes::Comm& comm) {
      const auto [data, model] = shape;
      CHECK(mesh.size() == data * model);
      CHECK(mesh.rank() == comm.rank());
      CHECK(mesh.size<Data>() == data);
      CHECK(mesh.coordinate<Data>() == comm.rank() / model);
      CHECK(mesh.coordinate<Model>() == comm.rank() % model);
      CHECK(mesh.neighbour<Model>(1) == comm.rank() / model * model + (comm.rank() + 1) % model);
      CHECK(mesh.neighbour<Data>(-1) == (comm.rank() - model + data * model) % (data * model));
      CHECK(mesh.neighbour<Data>(data) == comm.rank());

      CHECK(mesh.along<Data>().rank() == mesh.coordinate<Data>());
      CHECK(mesh.along<Data>().size() == data);
      CHECK(mesh.along<Model>().rank() == mesh.coordinate<Model>());
      int ranks = comm.rank();
      distx::all_reduce(mesh.along<Model>(), ranks, distx::sum);
      CHECK(ranks == model * (comm.rank() / model * model) + model * (model - 1) / 2);
      CHECK(mesh.communicator().size() == comm.size());

      const meshes::Mesh other = mesh;
      CHECK(other == mesh);
      CHECK(!(meshes::Mesh(comm, {data, model}) == mesh));
    });
}

TEST_CASE("a mesh of four axes works on an AnyCommunicator") {
  distx::spawn(8, [](distx::ThreadConnector& connector) {
    struct A;
    struct B;
    struct C;
    struct D;
    distx::AnyCommunicator<> comm{distx::ThreadCommunicator(connector)};
    const distx::Mesh<A, B, C, D> mesh(comm, {2, 1, 2, 2});
    CHECK(mesh.coordinates() == std::array<int, 4>{comm.rank() / 4, 0, comm.rank() / 2 % 2, comm.rank() % 2});
    CHECK(mesh.along<B>().size() == 1);
    CHECK(mesh.along<C>().size() == 2);
  });
}

TEST_CASE("a mesh rejects sizes whose product is not the number of ranks") {
  meshes::on_mesh({2, 2}, [](const meshes::Mesh&, meshes::Comm& comm) {
    const auto words = [&](int data, int model) {
      return meshes::message_thrown([&] { const meshes::Mesh mesh(comm, {data, model}); });
    };
    CHECK(words(2, 3).find("mesh 2 x 3 does not match the communicator's 4 ranks") != std::string::npos);
    CHECK(words(-2, -2).find("choose positive sizes") != std::string::npos);
    CHECK(words(0, 4).find("choose positive sizes") != std::string::npos);
    CHECK(words(1 << 30, 1 << 30).find("whose product is 4") != std::string::npos);
    CHECK(words(4, 1).empty());
  });
}

}  // namespace
