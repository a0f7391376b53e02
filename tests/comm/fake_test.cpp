// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>

#include <distx/comm/decorators/metered.hpp>
#include <distx/distx.hpp>
#include <distx/fake.hpp>
#include <distx/parallel/mesh_parallel.hpp>

using namespace std::chrono_literals;
using distx::FakeCommunicator;
using std::vector;

TEST_CASE("a fake rank's calls give what equal operands of all ranks give") {
  FakeCommunicator comm(2, 5);
  vector<float> x{1, -2, 3};
  distx::all_reduce(comm, x, distx::sum);
  CHECK(x == vector<float>{5, -10, 15});
  distx::all_reduce(comm, x, distx::max);
  CHECK(x == vector<float>{5, -10, 15});
  distx::all_reduce(comm, x, distx::average);
  CHECK(x == vector<float>{5, -10, 15});
  const vector<int> mine{7, 8};
  vector<int> all(10);
  distx::all_gather(comm, mine, all);
  CHECK(all == vector<int>{7, 8, 7, 8, 7, 8, 7, 8, 7, 8});
  vector<int> blocks{0, 1, 2, 3, 4}, own(1), received(5, -1);
  distx::reduce_scatter(comm, blocks, own, distx::sum);
  CHECK(own == vector<int>{10});
  distx::all_to_all(comm, blocks, received);
  CHECK(received == vector<int>{2, 2, 2, 2, 2});
  distx::broadcast(comm, own, 4);
  CHECK(own == vector<int>{10});
  distx::send(comm, own, 3);
  distx::receive(comm, own, 1);
  CHECK(own == vector<int>{0});
  distx::scatter(comm, blocks, own, 2);
  CHECK(own == vector<int>{2});
}

TEST_CASE("a fake rank reduces 100,000 operands") {
  FakeCommunicator comm(99'999, 100'000);
  vector<double> x(10'000, 0.5);
  distx::all_reduce(comm, x, distx::sum);
  CHECK(x == vector<double>(10'000, 50'000.0));
}

TEST_CASE("a fake rank's sums of narrow floats are rounded once") {
  FakeCommunicator three(0, 3), many(0, 16'384);
  vector<distx::bfloat16> x{distx::bfloat16(1.0078125f)};  // whose third is not a bfloat16
  distx::all_reduce(three, x, distx::average);
  CHECK(static_cast<float>(x[0]) == 1.0078125f);
  vector<distx::float16> y{distx::float16(100.0f)};
  distx::all_reduce(many, y, distx::average);  // whose sum is not a float16
  CHECK(static_cast<float>(y[0]) == 100.0f);
}

TEST_CASE("a loop of tests ends on a fake rank, and calls of one rank take no time") {
  FakeCommunicator comm(3, 8, distx::WireSpeed{10us, 1e9});
  vector<float> x(1000);
  auto alone = distx::groups(comm, {{3}});
  auto pending = distx::start_all_reduce(comm, x, distx::sum);
  const auto before = comm.now();
  distx::barrier(alone);
  CHECK(comm.now() == before);
  while (!pending.test()) continue;
  CHECK(comm.now() > before);
}

TEST_CASE("a fake rank's calls are checked as those of any other") {
  FakeCommunicator comm(1, 3);
  vector<float> x(3), y(2);
  CHECK_THROWS_AS(distx::all_reduce(comm, x, y, distx::sum), distx::InvalidArgument);
  CHECK_THROWS_AS(distx::all_reduce(comm, x, distx::sum), distx::RevokedError);  // as after any error
  FakeCommunicator other(1, 3);
  CHECK_THROWS_AS(distx::send(other, x, 1), distx::InvalidState);
  CHECK_THROWS_AS(FakeCommunicator(3, 3), distx::InvalidArgument);
  FakeCommunicator third(1, 3);
  CHECK_THROWS_WITH_AS(static_cast<void>(third.split(0, 0)),
                       doctest::Contains("cannot ask the others for their colors"), distx::InvalidArgument);
}

TEST_CASE("simulated time passes with computation and calls, and computation hides calls") {
  FakeCommunicator comm(0, 4, distx::WireSpeed{10us, 1e9});
  vector<float> x(1 << 18);
  distx::all_reduce(comm, x, distx::sum);  // 1 MiB: 2 * 3/4 of it pass the link
  const auto call = 10us + std::chrono::nanoseconds(3 << 19);
  CHECK(comm.now() == call);
  CHECK(comm.waited() == call);
  auto hidden = distx::start_all_reduce(comm, x, distx::sum);
  CHECK_FALSE(hidden.test());
  comm.compute(call + 5us);
  CHECK(hidden.test());
  hidden.wait();
  CHECK(comm.waited() == call + 1us);  // of the first test
  // Two calls occupy the link one after another, groups' as well.
  auto half = distx::groups(comm, {{0, 1}, {2, 3}});
  const auto before = comm.now();
  auto first = distx::start_all_reduce(comm, x, distx::sum);
  distx::barrier(half);
  CHECK(comm.now() == before + call + 10us);
  first.wait();
  CHECK(comm.now() == before + call + 10us);
}

TEST_CASE("groups of a fake rank are those of the grouping") {
  FakeCommunicator comm(5, 8);
  auto pair = distx::groups(comm, {{0, 4}, {7, 5, 1}});
  CHECK(pair.size() == 3);
  CHECK(pair.rank() == 1);
  struct Data {};
  struct Model {};
  FakeCommunicator large(7'123, 16'384);
  distx::Mesh<Data, Model> mesh(large, {2'048, 8});
  CHECK(mesh.along<Model>().size() == 8);
  CHECK(mesh.along<Model>().rank() == 7'123 % 8);
  CHECK(mesh.along<Data>().size() == 2'048);
  CHECK(mesh.along<Data>().rank() == 7'123 / 8);
}
