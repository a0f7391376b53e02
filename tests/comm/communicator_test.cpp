// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Tests which types satisfy Communicator, and which collectives a communicator supports.
#include "distx/comm/communicator.hpp"

#include <doctest/doctest.h>

#include "distx/distx.hpp"

namespace {

struct Far {
  using stream = distx::HostStream;
  using event = distx::HostEvent;
  static constexpr std::string_view name = "far";
  static constexpr bool host_accessible = false;
};

/// The minimum that a custom communicator must implement: one rank, with barriers and sums of floats.
template <class Self>
struct MinimalOf {
  using space = distx::Host;

  MinimalOf() = default;
  MinimalOf(MinimalOf&&) = default;
  MinimalOf& operator=(MinimalOf&&) = default;

  int rank() const { return 0; }
  int size() const { return 1; }
  std::string_view backend() const { return "minimal"; }
  Self split(int, int) { return {}; }
  Self share() const { return {}; }
  template <class T>
  distx::CommunicatorMemory<T> allocate(std::size_t size) {
    return distx::CommunicatorMemory<T>::plain(size);
  }
  void revoke(const std::string&) {}
  void execute(const distx::calls::Barrier<>&) {}
  void execute(const distx::calls::AllReduce<float, distx::Sum>& call) {
    distx::copy(distx::HostStream{}, call.receive, call.send);
    ++calls;
  }

  int calls = 0;
};
struct Minimal : MinimalOf<Minimal> {};

// Types that differ from a communicator in one property each.
struct Copyable : MinimalOf<Copyable> {
  Copyable() = default;
  Copyable(const Copyable&) {}
  Copyable(Copyable&&) = default;
  Copyable& operator=(const Copyable&) { return *this; }
  Copyable& operator=(Copyable&&) = default;
};
struct NoBarrier : MinimalOf<NoBarrier> {
  void execute(const distx::calls::AllReduce<float, distx::Sum>&) {}
};
struct NoShare : MinimalOf<NoShare> {
  NoShare share() const = delete;
};
struct SharesAnother : MinimalOf<Minimal> {};
struct WideSize : MinimalOf<WideSize> {
  std::size_t size() const { return 1; }
};
struct NoName : MinimalOf<NoName> {
  int backend() const { return 0; }
};
struct NoSpace : MinimalOf<NoSpace> {
  using space = int;
};
struct WrongMemory : MinimalOf<WrongMemory> {
  template <class T>
  distx::Buffer<T> allocate(std::size_t size) {
    return distx::Buffer<T>(size);
  }
};
struct NoRevoke : MinimalOf<NoRevoke> {
  void revoke() {}
};

using distx::Communicator;
static_assert(Communicator<Minimal> && Communicator<distx::ThreadCommunicator>);
static_assert(Communicator<distx::SerialCommunicator> && Communicator<distx::AnyCommunicator<>>);
static_assert(!Communicator<Copyable> && !Communicator<NoBarrier> && !Communicator<NoShare>);
static_assert(!Communicator<SharesAnother> && !Communicator<WideSize> && !Communicator<NoName>);
static_assert(!Communicator<NoSpace> && !Communicator<WrongMemory> && !Communicator<NoRevoke>);
static_assert(!Communicator<int> && !Communicator<distx::ThreadConnector>);

// The supported collectives follow from `execute`.
static_assert(distx::calls::HasAllReduce<Minimal, float> && !distx::calls::HasAllReduce<Minimal, double>);
static_assert(!distx::calls::HasAllReduce<Minimal, float, distx::Max> && !distx::calls::HasBroadcast<Minimal, float>);
static_assert(!distx::calls::HasPointToPoint<Minimal, float> &&
              !distx::calls::Starts<Minimal, distx::calls::Barrier<>>);

struct Point {
  float x, y;
};
struct Owner {
  std::string name;
};
template <class C, class T>
concept MovesEverything =
    distx::calls::HasBroadcast<C, T> && distx::calls::HasAllGather<C, T> && distx::calls::HasAllToAll<C, T> &&
    distx::calls::HasGather<C, T> && distx::calls::HasScatter<C, T> && distx::calls::HasPointToPoint<C, T>;
template <class C, class T, class Op>
concept ReducesEverything = distx::calls::HasAllReduce<C, T, Op> && distx::calls::HasReduce<C, T, Op> &&
                            distx::calls::HasReduceScatter<C, T, Op>;
template <class C>
constexpr bool check_backend() {
  static_assert(MovesEverything<C, float> && MovesEverything<C, Point> && MovesEverything<C, std::int8_t>);
  static_assert(ReducesEverything<C, float, distx::Sum> && ReducesEverything<C, distx::bfloat16, distx::Average>);
  static_assert(ReducesEverything<C, std::uint64_t, distx::Product>);
  // No average of integers, no sum of structs, nothing in another memory space.
  static_assert(!distx::calls::HasAllReduce<C, int, distx::Average> &&
                !distx::calls::HasAllReduce<C, Point, distx::Sum>);
  static_assert(!distx::calls::Executes<C, distx::calls::Barrier<Far>> &&
                !distx::calls::Executes<C, distx::calls::AllReduce<float, distx::Sum, Far>>);
  static_assert(distx::calls::Starts<C, distx::calls::Barrier<>> &&
                distx::calls::Starts<C, distx::calls::AllReduce<float, distx::Sum>>);
  return true;
}
static_assert(check_backend<distx::ThreadCommunicator>() && check_backend<distx::SerialCommunicator>());
static_assert(check_backend<distx::AnyCommunicator<>>());

// Types that are, or are not, reduction ops.
struct Stateful {
  double factor, offset;
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct TooLarge {
  double a, b, c;
  float operator()(float x, float) const { return x; }
};
struct NotCopied {
  std::string name;
  float operator()(float x, float) const { return x; }
};
struct OneOperand {
  float operator()(float x) const { return x; }
};
struct NoResult {
  void operator()(float, float) const {}
};
using distx::ReductionOp;
static_assert(ReductionOp<Stateful, float> && ReductionOp<Stateful, distx::float16>);
static_assert(!ReductionOp<TooLarge, float> && !ReductionOp<NotCopied, float>);
static_assert(!ReductionOp<OneOperand, float> && !ReductionOp<NoResult, float>);
static_assert(!ReductionOp<distx::Average, int> && ReductionOp<distx::Average, double>);
static_assert(!ReductionOp<distx::Sum, Point> && !ReductionOp<distx::Sum, bool>);

// Types that are, or are not, elements of a collective or a list of them.
using distx::ListArgument;
using distx::SpanArgument;
static_assert(SpanArgument<std::vector<float>&> && SpanArgument<float&> && SpanArgument<float (&)[3]>);
static_assert(SpanArgument<distx::Span<float, Far>> && SpanArgument<distx::Buffer<float>&>);
static_assert(SpanArgument<std::vector<Point>&> && SpanArgument<distx::CommunicatorMemory<double>&>);
// Mistakes are accepted, and then diagnosed with one message.
static_assert(distx::detail::MistakenSpan<std::vector<std::string>> && distx::detail::MistakenSpan<std::string*>);
static_assert(distx::detail::MistakenSpan<std::vector<bool>> && !SpanArgument<Owner&>);
static_assert(ListArgument<std::vector<std::vector<float>>&> && ListArgument<std::vector<distx::Span<float>>&>);
static_assert(!ListArgument<std::vector<float>&> && !ListArgument<float&>);
static_assert(!SpanArgument<std::vector<std::vector<float>>&> && !SpanArgument<std::vector<distx::Span<float>>&>);

// Handles on collectives in flight.
struct Waits {
  Waits() = default;
  Waits(Waits&&) = default;
  Waits& operator=(Waits&&) = default;
  void wait() {}
  void wait(distx::HostStream) {}
  bool test() { return true; }
};
struct CopiedWaits {
  void wait() {}
  void wait(distx::HostStream) {}
  bool test() { return true; }
};
struct NoStream : Waits {
  void wait() {}
};
static_assert(distx::PendingCollective<Waits> && !distx::PendingCollective<CopiedWaits>);
static_assert(!distx::PendingCollective<NoStream> && !distx::PendingCollective<int>);
static_assert(distx::PendingCollective<distx::Pending<distx::Host>>);

TEST_CASE("a custom communicator works with the functions of the collectives that it implements") {
  Minimal comm;
  std::vector<float> values{1, 2};
  distx::all_reduce(comm, values, distx::sum);
  distx::barrier(comm);
  CHECK(comm.calls == 1);
  CHECK(values[1] == 2);
}

TEST_CASE("AnyCommunicator rejects calls that the communicator inside does not support") {
  distx::AnyCommunicator<> any{Minimal()};
  CHECK(any.backend() == "minimal");
  distx::barrier(any);
  std::vector<float> values(2);
  CHECK_THROWS_AS(distx::all_reduce(any, values, distx::sum), distx::InvalidArgument);
  try {
    distx::broadcast(any, values, 0);
    FAIL("broadcast did not throw");
  } catch (const distx::InvalidArgument& error) {
    CHECK(std::string(error.what())
              .find("distx: broadcast on rank 0 of 1 (minimal): this communicator does not support") == 0);
  }
}

TEST_CASE("allocate throws MemoryError for impossible sizes, also through AnyCommunicator") {
  // The size in bytes overflows by 8.
  constexpr std::size_t absurd = (std::size_t{1} << 61) + 1;
  distx::SelfConnector self;
  distx::SerialCommunicator serial(self);
  CHECK_THROWS_AS((void)serial.allocate<double>(absurd), distx::MemoryError);
  distx::AnyCommunicator<> any(serial.share());
  CHECK_THROWS_AS((void)any.allocate<double>(absurd), distx::MemoryError);
}

TEST_CASE("communicator memory is movable and outlives the communicator") {
  distx::CommunicatorMemory<int> memory;
  CHECK(memory.size() == 0);
  {
    distx::SelfConnector self;
    distx::SerialCommunicator comm(self);
    memory = comm.allocate<int>(3);
  }
  memory[2] = 5;
  auto moved = std::move(memory);
  CHECK(moved[2] == 5);
  CHECK(memory.size() == 0);
  CHECK(moved.span().size() == 3);
}

}  // namespace
