// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A wrapper communicator supports the same calls as the communicator inside.
#include <doctest/doctest.h>

#include <type_traits>

#include "distx/comm/decorators/metered.hpp"
#include "distx/comm/decorators/throttled.hpp"
#include "distx/comm/decorators/traced.hpp"
#include "distx/distx.hpp"

namespace {

using distx::AnyElement;
using distx::calls::AnyOp;
using Threads = distx::ThreadCommunicator;

/// A minimal communicator: barriers and sums of floats; only the sums are asynchronous.
class Limited {
 public:
  using space = distx::Host;
  using Sums = distx::calls::AllReduce<float, distx::Sum>;

  explicit Limited(Threads comm) : comm_(std::move(comm)) {}
  [[nodiscard]] int rank() const { return comm_.rank(); }
  [[nodiscard]] int size() const { return comm_.size(); }
  [[nodiscard]] std::string_view backend() const { return comm_.backend(); }
  void execute(const distx::calls::Barrier<>& call) { comm_.execute(call); }
  void execute(const Sums& call) { comm_.execute(call); }
  [[nodiscard]] auto start(const Sums& call, distx::HostStream after = {}) { return comm_.start(call, after); }
  [[nodiscard]] Limited split(int color, int key) { return Limited(comm_.split(color, key)); }
  [[nodiscard]] Limited share() const { return Limited(comm_.share()); }
  template <class T>
  [[nodiscard]] distx::CommunicatorMemory<T> allocate(std::size_t size) {
    return comm_.template allocate<T>(size);
  }
  void revoke(const std::string& reason) { comm_.revoke(reason); }

 private:
  Threads comm_;
};

template <class Outer, class Inner, class... Calls>
constexpr bool as_capable = ((distx::calls::Executes<Outer, Calls> == distx::calls::Executes<Inner, Calls> &&
                              distx::calls::Starts<Outer, Calls> == distx::calls::Starts<Inner, Calls>) &&
                             ...);

/// Checks every call: with two element types, with a type that cannot be averaged, and erased.
template <class Outer, class Inner>
constexpr bool keeps_capabilities =
    distx::Communicator<Outer> && std::is_same_v<typename Outer::space, typename Inner::space> &&
    as_capable<Outer, Inner, distx::calls::AllReduce<float, distx::Sum>, distx::calls::AllReduce<double, distx::Sum>,
               distx::calls::AllReduce<float, distx::Max>, distx::calls::AllReduce<int, distx::Average>,
               distx::calls::AllReduce<AnyElement, AnyOp>, distx::calls::Reduce<float, distx::Sum>,
               distx::calls::Reduce<AnyElement, AnyOp>, distx::calls::ReduceScatter<float, distx::Sum>,
               distx::calls::ReduceScatter<AnyElement, AnyOp>, distx::calls::Broadcast<float>,
               distx::calls::Broadcast<AnyElement>, distx::calls::AllGather<float>, distx::calls::AllGather<AnyElement>,
               distx::calls::AllToAll<float>, distx::calls::AllToAll<AnyElement>, distx::calls::Gather<float>,
               distx::calls::Gather<AnyElement>, distx::calls::Scatter<float>, distx::calls::Scatter<AnyElement>,
               distx::calls::Send<float>, distx::calls::Send<AnyElement>, distx::calls::Receive<float>,
               distx::calls::Receive<AnyElement>, distx::calls::SendReceive<float>,
               distx::calls::SendReceive<AnyElement>, distx::calls::Barrier<>>;

TEST_CASE_TEMPLATE("a wrapper supports exactly the calls of the communicator inside", Outer, distx::Metered<Limited>,
                   distx::Traced<Limited>, distx::Throttled<Limited>, distx::Metered<distx::Traced<Limited>>,
                   distx::Throttled<distx::Metered<Limited>>) {
  CHECK(keeps_capabilities<Outer, Limited>);
  // Both answers occur, so the comparison is meaningful.
  CHECK(distx::calls::HasAllReduce<Outer, float>);
  CHECK_FALSE(distx::calls::HasAllReduce<Outer, double>);
  CHECK_FALSE(distx::calls::HasAllToAll<Outer, float>);
  CHECK_FALSE(distx::calls::HasPointToPoint<Outer, float>);
  CHECK(distx::calls::Starts<Outer, Limited::Sums>);
  CHECK_FALSE(distx::calls::Starts<Outer, distx::calls::Barrier<>>);
}

TEST_CASE_TEMPLATE("a wrapper of a full communicator supports every call", Outer, distx::Metered<Threads>,
                   distx::Traced<Threads>, distx::Throttled<Threads>,
                   distx::Traced<distx::Metered<distx::Throttled<Threads>>>, distx::Metered<distx::AnyCommunicator<>>) {
  CHECK(keeps_capabilities<Outer, Threads>);
  CHECK(distx::calls::HasAllToAll<Outer, float>);
  CHECK_FALSE(distx::calls::Executes<Outer, distx::calls::AllReduce<int, distx::Average>>);
}

TEST_CASE("Metered returns the inner Pending unchanged") {
  const auto pending_of = []<class C>(C* comm) { return decltype(comm->start(distx::calls::Barrier<>{})){}; };
  using Inner = decltype(pending_of(static_cast<Threads*>(nullptr)));
  using Outer = decltype(pending_of(static_cast<distx::Metered<Threads>*>(nullptr)));
  CHECK(std::is_same_v<Inner, Outer>);
}

TEST_CASE("groups of a wrapper are wrapped, groups of its inner communicator are not") {
  distx::spawn(2, [](distx::ThreadConnector& connector) {
    distx::Metered comm{Threads(connector)};
    const distx::Grouping grouping{{1, 0}};
    auto decorated = distx::groups(comm, grouping);
    auto plain = distx::groups(comm.inner(), grouping);
    static_assert(std::is_same_v<decltype(decorated), distx::Metered<Threads>>);
    float one = 1;
    distx::all_reduce(decorated, one, distx::sum);
    distx::all_reduce(plain, one, distx::sum);
    if (decorated.inner() == plain) throw std::runtime_error("the two share a cache of groups, whose types differ");
    if (one != 4) throw std::runtime_error("a group's sum is wrong");
  });
}

TEST_CASE("AnyCommunicator rejects calls that a wrapper's inner communicator does not support") {
  distx::SelfConnector self;
  distx::AnyCommunicator<> any{distx::Traced(Limited(Threads(self)))};
  std::vector<float> values(3);
  CHECK_THROWS_AS(distx::broadcast(any, values, 0), distx::InvalidArgument);
}

}  // namespace
