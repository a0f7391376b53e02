// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <boost/mpi/communicator.hpp>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <string>

#include <distx/distx.hpp>
#include <distx/mpi/detail/handles.hpp>

#include "connect/words.hpp"
#include "forked_process.hpp"
#include "mpi/world.hpp"

using namespace distx;
using test::contains;
using test::error_of;

namespace {

/// A subset of the world, as a host program might provide it: even or odd ranks, each in opposite order.
struct Lent {
  Lent() { MPI_Comm_split(MPI_COMM_WORLD, world().rank() % 2, -world().rank(), &comm); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() { MPI_Comm_free(&comm); }
  MPI_Comm comm = MPI_COMM_NULL;
};

void handled_by_the_host(MPI_Comm*, int*, ...) {}

static_assert(Connector<MpiConnector>);
static_assert(!std::copyable<MpiConnector>);

}  // namespace

TEST_CASE("the connector reports MPI's ranks and sizes") {
  int rank = -1;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  CHECK(world().rank() == rank);
  CHECK(world().size() == size);
  CHECK(world().root_rank() == 0);
  CHECK(world().local_rank() == rank);  // the tests run on one host
  CHECK(world().local_size() == size);
  int granted = -1;
  MPI_Query_thread(&granted);
  CHECK(static_cast<int>(world().thread_level()) == granted);
  CHECK(boost::mpi::communicator(world().native_handle(), boost::mpi::comm_attach).rank() == rank);
}

TEST_CASE("control messages reach every rank") {
  const int size = world().size();
  for (int root = 0; root < size; ++root)
    CHECK(broadcast_value(world(), world().rank() * 10 + 3, root) == root * 10 + 3);
  const auto ranks = all_gather_values(world(), world().rank());
  std::vector<int> expected(static_cast<std::size_t>(size));
  std::iota(expected.begin(), expected.end(), 0);
  CHECK(ranks == expected);
  world().broadcast({}, 0);
  world().all_gather({}, {});

  std::vector<std::byte> large(1 << 20, std::byte(world().rank()));
  world().broadcast(large, size - 1);
  CHECK(large.front() == std::byte(size - 1));
  CHECK(large.back() == std::byte(size - 1));
}

TEST_CASE("invalid control messages are rejected on every rank") {
  std::byte one{};
  CHECK_THROWS_AS(world().broadcast({&one, 1}, world().size()), InvalidArgument);
  CHECK_THROWS_AS(world().broadcast({&one, 1}, -1), InvalidArgument);
  std::vector<std::byte> receive(static_cast<std::size_t>(world().size()) + 1);
  CHECK_THROWS_AS(world().all_gather({&one, 1}, receive), InvalidArgument);
  if (world().size() > 1) {
    std::vector<std::byte> odd(world().rank() == 1 ? 5 : 4);
    CHECK(contains(error_of<MismatchError>([&] { world().broadcast(odd, 0); }),
                   world().rank() == 1 ? "rank 0 passes 4" : "rank 1 passes 5"));
  }
  CHECK(broadcast_value(world(), world().rank(), 0) == 0);  // the ranks still make the same calls
}

TEST_CASE("no rank leaves a barrier before the last one has entered") {
  using clock = std::chrono::steady_clock;  // one clock for all processes of a host
  for (int repeat = 0; repeat < 20; ++repeat) {
    const auto came = clock::now();
    world().barrier();
    const auto went = clock::now();
    const auto all_came = all_gather_values(world(), came);
    const auto all_went = all_gather_values(world(), went);
    REQUIRE(*std::max_element(all_came.begin(), all_came.end()) <= *std::min_element(all_went.begin(), all_went.end()));
  }
}

TEST_CASE("MPI is initialized once") {
  int argc = 0;
  char* none_at_all[] = {nullptr};
  char** argv = none_at_all;
  const auto said = error_of<ConnectError>([&] { MpiConnector second(argc, argv); });
  CHECK(contains(said, "MPI is already initialised"));
  CHECK(contains(said, "MpiConnector(MPI_COMM_WORLD)"));
}

TEST_CASE("a host program's communicator is duplicated and remains unchanged") {
  const Lent host;
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_create_errhandler(&handled_by_the_host, &handler);
  MPI_Comm_set_errhandler(host.comm, handler);
  int size = 0;
  int rank = -1;
  MPI_Comm_size(host.comm, &size);
  MPI_Comm_rank(host.comm, &rank);
  std::optional<MpiCommunicator> comm;
  {
    MpiConnector connector(host.comm);
    CHECK(connector.rank() == rank);
    CHECK(connector.size() == size);
    int same = MPI_UNEQUAL;
    MPI_Comm_compare(host.comm, connector.native_handle(), &same);
    CHECK(same == MPI_CONGRUENT);  // the same ranks in a different context
    comm.emplace(connector);
  }
  // A communicator may outlive its connector.
  std::vector<int> ones(3, 1);
  all_reduce(*comm, ones, sum);
  CHECK(ones == std::vector<int>(3, size));
  auto direct = MpiCommunicator::from_native_handle(host.comm);
  CHECK(direct.rank() == rank);
  comm.reset();

  MPI_Errhandler now = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(host.comm, &now);
  CHECK(now == handler);
  MPI_Errhandler ours = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(direct.native_handle(), &ours);
  CHECK(ours == MPI_ERRORS_RETURN);
  CHECK(detail::mpi::is_up());
  MPI_Errhandler_free(&ours);
  MPI_Errhandler_free(&now);
  MPI_Errhandler_free(&handler);
}

TEST_CASE("MpiConnector rejects MPI_COMM_NULL") { CHECK_THROWS_AS(MpiConnector(MPI_COMM_NULL), ConnectError); }

TEST_CASE("MpiConnector rejects an intercommunicator" * needs_ranks(2)) {
  const Lent half;
  MPI_Comm between = MPI_COMM_NULL;
  // The first rank of each half; halves are in reverse order, so these are the last even and the last odd rank.
  const int last = world().size() - 1;
  const int other = world().rank() % 2 == last % 2 ? last - 1 : last;
  MPI_Intercomm_create(half.comm, 0, MPI_COMM_WORLD, other, 7, &between);
  CHECK(contains(error_of<ConnectError>([&] { MpiConnector connector(between); }), "intercommunicator"));
  MPI_Comm_free(&between);
}

TEST_CASE("a rank that does not join times out on the others" * needs_ranks(2)) {
  MpiConnector connector(MPI_COMM_WORLD, {.deadline = std::chrono::milliseconds(100)});
  if (connector.rank() != 0) CHECK_THROWS_AS(connector.barrier(), TimeoutError);
  world().barrier();
  // A connector stays unusable after a timeout, because its ranks no longer make the same calls.
  if (connector.rank() != 0) CHECK_THROWS_AS(connector.barrier(), RevokedError);
}

TEST_CASE("AnyConnector finds the MpiConnector inside") {
  AnyConnector any = MpiConnector(MPI_COMM_WORLD);
  MpiCommunicator comm(any);
  CHECK(comm.size() == world().size());
  CHECK(comm.backend() == "mpi");
}

TEST_CASE("a single rank needs no MpiConnector; several ranks of another connector are rejected") {
  AnyConnector self = SelfConnector();
  MpiCommunicator comm(self);
  CHECK(comm.size() == 1);
  std::vector<float> x{1, 2};
  all_reduce(comm, x, average);
  CHECK(x == std::vector<float>{1, 2});

  const auto said =
      error_of<Error>([] { spawn(2, [](ThreadConnector& connector) { MpiCommunicator none_such(connector); }); });
  CHECK(contains(said, "mpirun"));
  CHECK(contains(said, "ThreadCommunicator"));
}

TEST_CASE("a process forked from a rank is rejected by the connector") {
  const int wrong = test::in_forked_process([] {
    const auto rejects = [](auto&& call) {
      return error_of<InvalidState>(call).find("was made by process") == std::string::npos ? 1 : 0;
    };
    int bits = rejects([] { world().barrier(); });
    std::byte one{};
    bits |= 2 * rejects([&] { world().broadcast({&one, 1}, 0); });
    std::vector<std::byte> all(static_cast<std::size_t>(world().size()));
    bits |= 4 * rejects([&] { world().all_gather({&one, 1}, all); });
    bits |= 8 * rejects([] { const MpiCommunicator comm(world()); });
    return bits;
  });
  CHECK(wrong == 0);
  world().barrier();
}
