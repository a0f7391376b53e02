// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// If a rank fails, the other ranks throw a typed error and never hang.
#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include <distx/distx.hpp>
#include <distx/mpi/detail/handles.hpp>

#include "connect/words.hpp"
#include "logged.hpp"
#include "mpi/world.hpp"

using namespace distx;
using test::contains;
using test::error_of;
using namespace std::chrono_literals;

namespace {

struct Trouble : std::runtime_error {
  Trouble() : std::runtime_error("trouble on this rank") {}
};

/// Throws on one rank only, inside MPI's reduction.
struct Throwing {
  static constexpr bool commutative = true;
  bool now;
  float operator()(float a, float b) const {
    if (now) throw Trouble();
    return a + b;
  }
};

/// Throws on rank 0 only.
struct ThrowsOnRankZero {
  static constexpr bool commutative = true;
  static inline bool now = false;
  float operator()(float a, float b) const {
    if (now) throw Trouble();
    return a + b;
  }
};

/// Blocks rank 0 once, in the middle of a call, until a message of rank 1 arrives that MPI carries outside of distx.
struct WaitsOnRankZero {
  static constexpr bool commutative = true;
  static inline bool now = false;
  float operator()(float a, float b) const {
    int nothing = 0;
    if (std::exchange(now, false)) MPI_Recv(&nothing, 1, MPI_INT, 1, 77, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return a + b;
  }
};

}  // namespace

TEST_CASE("a custom op that throws on one rank ends a large call on every rank" * needs_ranks(2)) {
  for (const std::size_t n : {std::size_t{10000}, std::size_t{1000000}}) {
    MpiCommunicator comm(world());
    std::vector<float> x(n, 1.0f);
    ThrowsOnRankZero::now = comm.rank() == 0;
    if (comm.rank() == 0)
      CHECK_THROWS_AS(all_reduce(comm, x, ThrowsOnRankZero{}), Trouble);
    else
      CHECK_THROWS_AS(all_reduce(comm, x, ThrowsOnRankZero{}), RevokedError);
    world().barrier();
  }
}

TEST_CASE("a rank that stops in the middle of a large call ends it on the others within the deadline" *
          needs_ranks(2)) {
  MpiCommunicator comm(world(), {.deadline = std::chrono::milliseconds(500)});
  std::vector<float> x(1000000, 1.0f);
  WaitsOnRankZero::now = comm.rank() == 0;
  std::string said;
  try {
    all_reduce(comm, x, WaitsOnRankZero{});
  } catch (const TimeoutError& error) {
    said = error.what();
  } catch (const RevokedError& error) {
    said = error.what();  // carries the text of the rank that timed out
  }
  const int done = 1;
  if (comm.rank() == 1) MPI_Send(&done, 1, MPI_INT, 0, 77, MPI_COMM_WORLD);
  CHECK(contains(said, "timed out after 0.5 s: rank 0 did not continue the call"));
  world().barrier();
}

TEST_CASE("with DISTX_LOG=info a wait says once, after a quarter of its deadline, which ranks are missing" *
          needs_ranks(2)) {
  const auto warns = [](auto&& call, const std::string& missing) {
    if (world().rank() == 0) {
      const auto said = test::logged([&] { CHECK_THROWS_AS(call(), TimeoutError); });
      CAPTURE(said);
      const auto first = said.find("waiting for 0.2 s: " + missing);
      CHECK(first != std::string::npos);
      CHECK(said.find("waiting for", first + 1) == std::string::npos);
    }
    world().barrier();
  };
  const std::string joined = world().size() == 2 ? "rank 1 did not join" : "ranks 1";
  for (const bool vendor : {false, true}) {
    const MpiOptions options{.deadline = 800ms,
                             .collectives = vendor ? MpiCollectives::vendor : MpiCollectives::by_size};
    MpiCommunicator blocking(world(), options), started(world(), options), messages(world(), options);
    int value = 0;
    warns([&] { barrier(blocking); }, joined);
    warns([&] { start_barrier(started).wait(); }, joined);
    warns([&] { receive(messages, value, 1, 3); }, "rank 1 did not send a message with tag 3");
  }
  MpiConnector connector(MPI_COMM_WORLD, {.deadline = 800ms});
  warns([&] { connector.barrier(); }, joined);
}

TEST_CASE("with DISTX_LOG=info the first rank of a communicator says whose collectives it uses" * needs_ranks(2)) {
  for (const bool vendor : {false, true}) {
    const auto said = test::logged([&] {
      MpiCommunicator comm(world(), {.collectives = vendor ? MpiCollectives::vendor : MpiCollectives::by_size});
    });
    const std::string expected =
        vendor ? "MPI makes large collectives" : "distx makes large collectives, in rank order";
    CHECK(contains(said, expected) == (world().rank() == 0));
  }
}

TEST_CASE("options that differ between ranks are a mismatch on every rank" * needs_ranks(2)) {
  const bool odd = world().rank() == 1;
  for (const MpiOptions& options : {MpiOptions{.collectives = odd ? MpiCollectives::vendor : MpiCollectives::by_size},
                                    MpiOptions{.check = odd ? Check::off : Check::every_call}}) {
    const auto said = error_of<MismatchError>([&] { MpiCommunicator comm(world(), options); });
    CHECK(contains(said, "the ranks differ in MpiOptions"));
  }
  MpiCommunicator comm(world());
  barrier(comm);
}

TEST_CASE("an invalid call on one rank revokes the communicator on all ranks" * needs_ranks(2)) {
  MpiCommunicator comm(world());
  std::vector<float> send(10), receive(8);
  if (comm.rank() == 1) {
    const auto said = error_of<InvalidArgument>([&] { all_reduce(comm, send, receive, sum); });
    CHECK(contains(said, "send has 10 elements, receive has 8"));
    CHECK(contains(said, "rank 1 of"));
  } else {
    const auto said = error_of<RevokedError>([&] { all_reduce(comm, send, sum); });
    CHECK(contains(said, "rank 1 revoked the communicator"));
    CHECK(contains(said, "send has 10 elements, receive has 8"));
  }
  // Every later call of every rank throws the same reason, and another communicator is unaffected.
  CHECK(contains(error_of<RevokedError>([&] { barrier(comm); }), "rank 1 revoked the communicator"));
  CHECK_THROWS_AS((void)start_barrier(comm), RevokedError);
  CHECK_THROWS_AS(send_receive(comm, send, comm.rank(), receive, comm.rank()), RevokedError);
  world().barrier();
}

TEST_CASE("a revocation reaches ranks that wait for a message or an asynchronous call" * needs_ranks(2)) {
  for (const bool message : {true, false}) {
    MpiCommunicator comm(world());
    int number = 0;
    if (comm.rank() == 0) {
      comm.revoke("enough");
      comm.revoke("and again");  // the first reason is kept
    } else if (message) {
      CHECK(contains(error_of<RevokedError>([&] { receive(comm, number, 0); }), "communicator: enough"));
    } else {
      const auto said = error_of<RevokedError>([&] {
        auto pending = start_all_reduce(comm, number, sum);
        pending.wait();
      });
      CHECK(contains(said, "communicator: enough"));
    }
    CHECK_THROWS_AS(barrier(comm), RevokedError);
    world().barrier();
  }
}

TEST_CASE("test returns true for an asynchronous call once the communicator is revoked" * needs_ranks(2)) {
  MpiCommunicator comm(world());
  std::vector<float> x(1000);
  if (comm.rank() == 0) {
    world().barrier();
    comm.revoke("enough");
  } else {
    auto pending = start_all_reduce(comm, x, sum);
    world().barrier();
    distx::detail::wait_until(20s, [&] { return pending.test(); }, [] { return false; });
    CHECK(pending.test());
    CHECK(contains(error_of<RevokedError>([&] { pending.wait(); }), "rank 0 revoked the communicator: enough"));
  }
  world().barrier();
}

TEST_CASE("a rank that unwinds revokes the communicator" * needs_ranks(2)) {
  std::vector<int> x(4, 1);
  std::string said;
  try {
    MpiCommunicator comm(world());
    if (comm.rank() == 0) throw Trouble();
    all_reduce(comm, x, sum);
  } catch (const Trouble&) {
    said = "trouble";
  } catch (const RevokedError& error) {
    said = error.what();
  }
  if (world().rank() == 0)
    CHECK(said == "trouble");
  else
    CHECK(contains(said, "destroyed by an exception"));
  world().barrier();

  // The same if the rank keeps the communicator and destroys a Pending.
  MpiCommunicator comm(world());
  if (comm.rank() == 0) {
    try {
      auto pending = start_all_reduce(comm, x, sum);
      throw Trouble();
    } catch (const Trouble&) {
    }
    CHECK_THROWS_AS(barrier(comm), RevokedError);
  } else {
    CHECK(contains(error_of<RevokedError>([&] { barrier(comm); }), "rank 0 revoked the communicator"));
  }
  world().barrier();
}

TEST_CASE("a call that a rank does not join times out on the others" * needs_ranks(2)) {
  for (const bool message : {false, true}) {
    MpiCommunicator comm(world(), {.deadline = 100ms});
    const int last = comm.size() - 1;
    int number = 0;
    const auto begun = std::chrono::steady_clock::now();
    if (comm.rank() != last) {
      try {
        if (message)
          receive(comm, number, last);
        else
          all_reduce(comm, number, sum);
        FAIL("nothing was thrown");
      } catch (const TimeoutError& error) {
        CHECK(contains(error.what(), "after 0.1 s"));
        CHECK(contains(error.what(), message ? "receive" : "all_reduce"));
        if (!message && comm.size() == 2) CHECK(contains(error.what(), "rank 1 did not join"));
      } catch (const RevokedError&) {
        CHECK(comm.size() > 2);  // another rank's deadline has passed first
      }
      CHECK(std::chrono::steady_clock::now() - begun >= 100ms * (comm.size() == 2));
    }
    world().barrier();
    // A rank that missed the call learns of it in its next call, from the revocation or from the mismatch.
    if (comm.rank() == last && !message)
      CHECK_THROWS_AS(barrier(comm), Error);
    else
      CHECK_THROWS_AS(barrier(comm), RevokedError);
    world().barrier();
  }
}

TEST_CASE("a message that times out names the rank and the tag" * needs_ranks(2)) {
  constexpr std::size_t large = 1 << 18;  // MPI does not send it before it is received
  for (const std::size_t n : {std::size_t{1}, large})
    for (const bool started : {false, true})
      for (const std::string what : {"send", "receive", "both"}) {
        if (what == "send" && n == 1) continue;  // is complete once MPI has a copy
        CAPTURE(n);
        CAPTURE(started);
        CAPTURE(what);
        MpiCommunicator comm(world(), {.deadline = 100ms});
        std::vector<int> values(n), others(n);
        if (comm.rank() == 0) {
          const auto said = error_of<TimeoutError>([&] {
            Pending<> pending;
            if (what == "send" && started) pending = start_send(comm, values, 1, 3);
            if (what == "receive" && started) pending = start_receive(comm, values, 1, 3);
            if (what == "both" && started) pending = start_send_receive(comm, others, 1, values, 1);
            if (what == "send" && !started) send(comm, values, 1, 3);
            if (what == "receive" && !started) receive(comm, values, 1, 3);
            if (what == "both" && !started) send_receive(comm, others, 1, values, 1);
            if (started) pending.wait();
          });
          std::string expected = "timed out after 0.1 s: ";
          if (what == "receive") expected += "rank 1 did not send a message with tag 3";
          if (what == "send") expected += "rank 1 did not receive a message with tag 3";
          if (what == "both") expected += "rank 1 did not send a message with tag 0";
          if (what == "both" && n == large) expected += " and rank 1 did not receive a message with tag 0";
          CHECK_MESSAGE(contains(said, expected), said);
        }
        world().barrier();
      }
}

TEST_CASE("an asynchronous call that a rank does not join times out in wait" * needs_ranks(2)) {
  MpiCommunicator comm(world(), {.deadline = 100ms});
  int number = 1;
  if (comm.rank() == 0) {
    auto pending = start_receive(comm, number, 1);
    CHECK_FALSE(pending.test());
    CHECK_THROWS_AS(pending.wait(), TimeoutError);
    CHECK(pending.test());  // it is complete
    pending.wait();
  }
  world().barrier();
}

namespace {

template <class F>
bool awaited(F&& f) {
  return distx::detail::wait_until(20s, f, [] { return false; }) == distx::detail::WaitEnd::ready;
}

/// A folder that rank 0 names, and in which ranks leave files: ranks wait for each other there without calling MPI.
class Notes {
 public:
  Notes() {
    std::random_device seed;
    const auto name = broadcast_value(world(), std::uint64_t{seed()} << 32 | seed(), 0);
    folder_ = std::filesystem::temp_directory_path() / ("distx-test-" + std::to_string(name));
    std::filesystem::create_directories(folder_);
  }
  /// Collective.
  ~Notes() {
    world().barrier();
    if (world().rank() == 0) std::filesystem::remove_all(folder_);
  }
  void leave() { std::ofstream(folder_ / std::to_string(world().rank())) << "note"; }
  /// Waits until all other ranks have left a note.
  void await_others() {
    CHECK(awaited([&] {
      const std::filesystem::directory_iterator files(folder_);
      return std::distance(begin(files), end(files)) == world().size() - 1;
    }));
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace

TEST_CASE("an asynchronous collective completes while a rank calls neither MPI nor distx" * needs_ranks(2)) {
  Notes notes;
  MpiCommunicator comm(world(), {.deadline = 20s});
  std::vector<float> values(1'000'000, 1.0F);
  auto pending = start_all_reduce(comm, values, sum);
  if (comm.rank() == 0) {
    notes.await_others();
    CHECK(awaited([&] { return pending.test(); }));  // its own part
  }
  pending.wait();
  CHECK(values.back() == static_cast<float>(comm.size()));
  if (comm.rank() != 0) notes.leave();
}

TEST_CASE("MPI does not write to the program's memory after a call was given up" * needs_ranks(2)) {
  for (const bool vendor : {false, true}) {
    Notes notes;
    std::vector<float16> send(1'000'000, float16(1.0f)), receive(send.size());
    std::vector<std::vector<float>> own;
    try {
      MpiCommunicator comm(
          world(), {.deadline = 500ms, .collectives = vendor ? MpiCollectives::vendor : MpiCollectives::by_size});
      // Until the others have given up, rank 0 does not start the call, or makes no call of MPI after its start.
      if (comm.rank() == 0 && !vendor) notes.await_others();
      auto pending = start_all_reduce(comm, send, receive, sum);
      if (comm.rank() == 0 && vendor) notes.await_others();
      pending.wait();
      CHECK(comm.rank() == 0);  // MPI on the other ranks may still do rank 0's part
      CHECK(vendor);
    } catch (const Error&) {
    }
    if (world().rank() != 0) {
      for (std::size_t i = 0; i < 4; ++i) own.emplace_back(send.size() + 1000 * i, 7.0f);
      notes.leave();
    }
    for (int round = 0; round < 100; ++round) world().barrier();  // MPI progresses in these
    for (const auto& values : own) CHECK(std::count(values.begin(), values.end(), 7.0f) == std::ssize(values));
  }
}

/// A sum that rank 0 does not end while it is held.
struct HeldSum {
  static constexpr bool commutative = true;
  static inline std::atomic<bool> held{false};
  float operator()(float a, float b) const {
    while (held) std::this_thread::yield();
    return a + b;
  }
};

TEST_CASE("a blocking collective of MPI's own that does not end throws at the deadline" * needs_ranks(2)) {
  static std::vector<float> values(1'000'000, 1.0f);  // MPI keeps it
  HeldSum::held = world().rank() == 0;
  const auto began = std::chrono::steady_clock::now();
  const auto said = error_of<Error>([&] {
    MpiConnector connector(MPI_COMM_WORLD);  // which notes that MPI cannot be finalized
    MpiCommunicator comm(connector, {.deadline = 500ms, .collectives = MpiCollectives::vendor});
    all_reduce(comm, values, HeldSum{});
  });
  CAPTURE(said);
  CHECK(contains(said, "timed out after 0.5 s: not all ranks joined and continued the call; MPI keeps its operands"));
  CHECK(std::chrono::steady_clock::now() - began < 30s);
  world().barrier();
  HeldSum::held = false;
}

TEST_CASE("a training that times out frees no memory that MPI accesses later, and a late rank is notified" *
          needs_ranks(2)) {
  for (const auto& [sharded, vendor] : {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    std::vector<std::vector<float>> own;
    const bool late = world().rank() == world().size() - 1;
    bool failed = false, joined = !late;
    try {
      MpiCommunicator comm(
          world(), {.deadline = 300ms, .collectives = vendor ? MpiCollectives::vendor : MpiCollectives::by_size});
      std::vector<Parameter<float>> parameters;
      Parameter<float>& weight = parameters.emplace_back("weight", 500'000);
      const auto train = [&](auto& training) {
        std::fill(weight.gradient().begin(), weight.gradient().end(), 1.0f);
        // By the barrier of the late rank the others have given up and freed their memory.
        const auto join = [&] {
          joined = true;
          world().barrier();
        };
        if (late && !vendor) join();
        training.ready(weight);
        if (late && vendor) join();
        training.step({.learning_rate = 0.1});
      };
      if (sharded) {
        DataParallel<ZeRO<1>> training(comm, parameters, SGD{});
        train(training);
      } else {
        DataParallel<ZeRO<0>> training(comm, parameters, SGD{});
        train(training);
      }
    } catch (const Error&) {
      failed = true;
    }
    CHECK(failed);
    if (!joined) world().barrier();  // a busy host may delay ranks for longer than the deadline
    if (!late) {
      for (std::size_t i = 0; i < 6; ++i) own.emplace_back(500'000 + 100 * i, 7.0f);
      world().barrier();
    }
    for (int round = 0; round < 100; ++round) world().barrier();  // MPI progresses in these
    for (const auto& values : own) CHECK(std::count(values.begin(), values.end(), 7.0f) == std::ssize(values));
  }
}

TEST_CASE("a shorter or longer message than expected is an error" * needs_ranks(2)) {
  for (const int sent : {3, 5, 0, 40000}) {
    for (const bool straight : {false, true}) {
      if (straight && sent == 40000) continue;  // the sender has no deadline and would wait indefinitely
      MpiCommunicator comm(world(), {.deadline = straight ? Timeout(no_timeout) : default_deadline});
      std::vector<int> out(static_cast<std::size_t>(sent), 1);
      std::vector<int> in(4);
      if (comm.rank() == 0) {
        auto sending = start_send(comm, out, 1);
        world().barrier();
        try {
          sending.wait();
        } catch (const Error&) {
          CHECK(sent == 40000);  // a rendezvous message may be interrupted by the receiver's end
        }
      } else {
        if (comm.rank() == 1) {
          const auto said = error_of<MismatchError>([&] { receive(comm, in, 0); });
          CHECK(contains(said,
                         "expects 4 elements of type int32, rank 0 sends " + std::to_string(sent) + " elements of"));
          CHECK_THROWS_AS(barrier(comm), RevokedError);
        }
        world().barrier();
      }
      world().barrier();
    }
  }
}

TEST_CASE("an asynchronous receive that is too small writes nothing past its end" * needs_ranks(2)) {
  constexpr std::size_t wanted = 1 << 17;
  for (const std::size_t sent : {wanted + 1, 2 * wanted}) {
    MpiCommunicator comm(world());
    std::vector<int> values(2 * wanted, comm.rank());
    if (comm.rank() == 0) {
      world().barrier();
      CHECK_THROWS_AS(send(comm, std::span(values).first(sent), 1), MismatchError);
    } else if (comm.rank() == 1) {
      auto receiving = start_receive(comm, std::span(values).first(wanted), 0);
      world().barrier();  // MPI has the receive before the message is sent
      const auto said = error_of<MismatchError>([&] { receiving.wait(); });
      CHECK(contains(said, "expects " + std::to_string(wanted) + " elements of type int32, rank 0 sends " +
                               std::to_string(sent) + " elements"));
      CHECK(std::count(values.begin() + wanted, values.end(), 1) == std::ptrdiff_t{wanted});
    } else {
      world().barrier();
    }
    world().barrier();
  }
}

TEST_CASE("a message whose receive does not match it is not replaced by the next one" * needs_ranks(2)) {
  constexpr std::size_t large = 1 << 18;
  // What rank 1 sends first, and what rank 0 expects first; the second messages match.
  for (const auto& [sent, expected] : {std::pair{large, std::size_t{10}}, std::pair{std::size_t{10}, large}}) {
    for (const bool blocking : {false, true}) {
      MpiCommunicator comm(world());
      if (comm.rank() == 1) {
        const std::vector<int> first(sent, 1), second(large, 2);
        CHECK_THROWS_AS(
            [&] {
              auto sending = blocking ? Pending<>() : start_send(comm, first, 0);
              if (blocking) send(comm, first, 0);
              send(comm, second, 0);
              sending.wait();
              barrier(comm);
            }(),
            Error);
      } else if (comm.rank() == 0) {
        std::vector<int> first(expected), second(large);
        auto receiving = start_receive(comm, first, 1);
        const auto said = error_of<MismatchError>([&] {
          if (blocking)
            receive(comm, second, 1);
          else
            start_receive(comm, second, 1).wait();
        });
        CHECK(contains(said, "expects " + std::to_string(expected) + " elements of type int32, rank 1 sends " +
                                 std::to_string(sent) + " elements"));
        CHECK_THROWS_AS(receiving.wait(), MismatchError);
      }
      world().barrier();
    }
  }
}

TEST_CASE("blocks of different sizes are a mismatch on every rank" * needs_ranks(2)) {
  for (const std::size_t count : {4u, 40000u}) {
    MpiCommunicator comm(world());
    std::vector<int> mine(comm.rank() == 1 ? count - 1 : count);
    std::vector<int> all(comm.rank() == 0 ? count * static_cast<std::size_t>(comm.size()) : 0);
    const auto said = error_of<MismatchError>([&] { gather(comm, mine, all, 0); });
    CHECK(contains(said, "rank 1 sends " + std::to_string(count - 1) + " elements to rank 0, which receives " +
                             std::to_string(count)));
    world().barrier();
  }
}

TEST_CASE("different asynchronous collectives are a mismatch on every rank" * needs_ranks(2)) {
  for (const std::size_t count : {4u, 300000u}) {
    for (const bool other_call : {false, true}) {
      MpiCommunicator comm(world());
      const bool odd = comm.rank() == 1;
      std::vector<float> values(odd && !other_call ? count + 1 : count, 1.0f);
      const auto said = error_of<MismatchError>([&] {
        auto pending = odd && other_call ? start_broadcast(comm, values, 0) : start_all_reduce(comm, values, sum);
        pending.wait();
      });
      if (!odd)
        CHECK(contains(said, other_call ? "rank 1 calls broadcast" : "rank 1 passes " + std::to_string(count + 1)));
      world().barrier();
    }
  }
}

TEST_CASE("a block that only its sender has elements for is a mismatch, and does not reach the next call" *
          needs_ranks(2)) {
  MpiCommunicator comm(world());
  auto pair = comm.split(comm.rank() < 2 ? 0 : 1, 0);
  if (comm.rank() < 2) {
    const std::vector<std::size_t> mine =
        pair.rank() == 0 ? std::vector<std::size_t>{1, 1} : std::vector<std::size_t>{1, 1};
    const std::vector<std::size_t> theirs =
        pair.rank() == 0 ? std::vector<std::size_t>{1, 1} : std::vector<std::size_t>{0, 1};
    std::vector<int> send{100 * (pair.rank() + 1), 100 * (pair.rank() + 1) + 1};
    std::vector<int> receive(theirs[0] + theirs[1]);
    CHECK(contains(error_of<MismatchError>([&] { all_to_all(pair, send, receive, mine, theirs); }),
                   "rank 0 sends 1 elements to rank 1, which receives 0"));
  }
  world().barrier();
}

TEST_CASE("without comparison, a rank that does not join times out all the same" * needs_ranks(2)) {
  MpiCommunicator comm(world(), {.deadline = 200ms, .check = Check::off});
  std::vector<float> values(100000, 1.0f);
  if (comm.rank() != comm.size() - 1) CHECK_THROWS_AS(all_reduce(comm, values, sum), Error);
  world().barrier();
}

TEST_CASE("each combination of sizes is compared at its first use only, if asked for" * needs_ranks(2)) {
  MpiCommunicator comm(world(), {.check = Check::first_use});
  for (int round = 0; round < 3; ++round)
    for (const std::size_t count : {1u, 1000u, 100000u}) {
      std::vector<float> values(count, 1.0f);
      all_reduce(comm, values, sum);
      CHECK(values.back() == static_cast<float>(comm.size()));
      start_all_reduce(comm, values, max).wait();
      CHECK(values.front() == static_cast<float>(comm.size()));
    }
  std::vector<float> odd(comm.rank() == 1 ? 8 : 4);
  CHECK_THROWS_AS(all_reduce(comm, odd, sum), MismatchError);
  world().barrier();
}

TEST_CASE("different blocking collectives are a mismatch on every rank, with both values" * needs_ranks(2)) {
  struct Case {
    std::string of_rank_1;
    std::string of_others;
    void (*call)(MpiCommunicator&, bool odd);
  };
  const Case cases[] = {
      {"rank 1 passes 8 elements, this rank 4", "passes 4 elements, this rank 8",
       [](MpiCommunicator& comm, bool odd) {
         std::vector<float> values(odd ? 8 : 4);
         all_reduce(comm, values, sum);
       }},
      {"rank 1 passes 100000 elements, this rank 4", "passes 4 elements, this rank 100000",
       [](MpiCommunicator& comm, bool odd) {
         std::vector<int> mine(odd ? 100000 : 4), all(mine.size() * static_cast<std::size_t>(comm.size()));
         all_gather(comm, mine, all);
       }},
      {"rank 1 reduces with another op", "reduces with another op",
       [](MpiCommunicator& comm, bool odd) {
         float value = 1;
         if (odd)
           all_reduce(comm, value, max);
         else
           all_reduce(comm, value, sum);
       }},
      {"rank 1 passes int32 elements, this rank float32", "passes float32 elements, this rank int32",
       [](MpiCommunicator& comm, bool odd) {
         float real = 1;
         std::int32_t integer = 1;
         if (odd)
           all_reduce(comm, integer, sum);
         else
           all_reduce(comm, real, sum);
       }},
      {"rank 1 names rank 1 as root, this rank 0", "names rank 0 as root, this rank 1",
       [](MpiCommunicator& comm, bool odd) {
         float value = 1;
         broadcast(comm, value, odd ? 1 : 0);
       }},
      {"rank 1 calls barrier, this rank all_reduce", "calls all_reduce, this rank barrier",
       [](MpiCommunicator& comm, bool odd) {
         float value = 1;
         if (odd)
           barrier(comm);
         else
           all_reduce(comm, value, sum);
       }},
      {"rank 1 passes other counts", "passes other counts",
       [](MpiCommunicator& comm, bool odd) {
         std::vector<std::vector<float>> list{std::vector<float>(odd ? 3 : 5), std::vector<float>(odd ? 5 : 3)};
         all_reduce(comm, list, sum);
       }},
  };
  for (const Case& one : cases) {
    CAPTURE(one.of_rank_1);
    MpiCommunicator comm(world());
    const bool odd = comm.rank() == 1;
    const auto said = error_of<MismatchError>([&] { one.call(comm, odd); });
    CHECK_MESSAGE(contains(said, odd ? one.of_others : one.of_rank_1), said);
    CHECK_THROWS_AS(barrier(comm), RevokedError);
    world().barrier();
  }
}

TEST_CASE("a rank that joins a call late learns of its revocation in that call or the next" * needs_ranks(2) *
          needs_threads()) {
  MpiCommunicator comm(world());
  barrier(comm);
  float value = 1;
  if (comm.rank() == 0) {
    // To the other ranks it looks as if this rank joined the call and then left.
    std::thread revokes([other = comm.share()]() mutable {
      std::this_thread::sleep_for(50ms);
      other.revoke("enough");
    });
    CHECK(contains(error_of<RevokedError>([&] { all_reduce(comm, value, sum); }), "enough"));
    revokes.join();
    world().barrier();
  } else {
    world().barrier();
    // Rank 0's operand is available, so this call may complete; the next one cannot.
    CHECK(contains(error_of<RevokedError>([&] {
                     all_reduce(comm, value, sum);
                     all_reduce(comm, value, sum);
                   }),
                   "enough"));
  }
  world().barrier();
}

TEST_CASE("a revocation at any moment of a sequence of calls ends them on all ranks" * needs_ranks(2) *
          needs_threads()) {
  std::minstd_rand random(static_cast<unsigned>(world().rank()) + 1);
  for (int round = 0; round < 20; ++round) {
    MpiCommunicator comm(world());
    barrier(comm);
    std::thread revokes;
    if (comm.rank() == 0)
      revokes = std::thread([other = comm.share(), pause = std::chrono::microseconds(random() % 3000)]() mutable {
        std::this_thread::sleep_for(pause);
        other.revoke("enough");
      });
    const auto said = error_of<RevokedError>([&] {
      for (float value = 1;; all_reduce(comm, value, sum))
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    });
    CHECK(contains(said, "enough"));
    if (revokes.joinable()) revokes.join();
    world().barrier();
  }
}

TEST_CASE("a message that is revoked in transit reads no memory that its sender has freed" * needs_ranks(3)) {
  int revoked_in_transit = 0;
  std::chrono::microseconds pause(16000);  // shorter where the message arrives earlier
  for (int round = 0; round < 40 && revoked_in_transit < 4; ++round) {
    MpiCommunicator comm(world());
    bool revoked = false;
    {
      std::vector<int> large(comm.rank() < 2 ? std::size_t{12} << 20 : 0, comm.rank());  // freed to the system
      world().barrier();
      try {
        if (comm.rank() == 0) send(comm, large, 1);
        if (comm.rank() == 1) receive(comm, large, 0);
        if (comm.rank() == 2) {
          std::this_thread::sleep_for(pause);
          comm.revoke("enough");
        }
      } catch (const RevokedError& error) {
        revoked = true;
        CHECK(contains(error.what(), "enough"));
      }
      // Each element is the sender's or the receiver's own old one.
      const auto kept = std::count(large.begin(), large.end(), comm.rank());
      const auto sent = std::count(large.begin(), large.end(), 0);
      CHECK(std::ssize(large) == (comm.rank() == 1 ? kept + sent : kept));
      if (comm.rank() == 1 && !revoked) CHECK(sent == std::ssize(large));
    }
    const auto all = all_gather_values(world(), static_cast<int>(revoked));
    if (all[0] == 1 && all[1] == 1)
      ++revoked_in_transit;
    else
      pause = pause * 3 / 4;
    CHECK_THROWS_AS(barrier(comm), RevokedError);
    world().barrier();
  }
  CHECK(revoked_in_transit > 0);
}

TEST_CASE("a receive throws if the sender of the message gave up before the data was read" * needs_ranks(2)) {
  const int process = broadcast_value(world(), static_cast<int>(getpid()), 0);
  const auto folder = std::filesystem::temp_directory_path() / ("distx-late-message-" + std::to_string(process));
  if (world().rank() == 0) std::filesystem::create_directory(folder);
  world().barrier();
  // The ranks wait for each other outside of MPI, which therefore makes no progress.
  const auto notify = [&](const std::string& what) { std::filesystem::create_directory(folder / what); };
  const auto wait_for = [&](const std::string& what) {
    REQUIRE(detail::wait_until(
                std::chrono::seconds(60), [&] { return std::filesystem::exists(folder / what); },
                [] { return false; }) == detail::WaitEnd::ready);
  };
  for (const bool blocking : {false, true}) {
    const std::string round = blocking ? " of a blocking call" : "";
    MpiCommunicator comm(world(), {.deadline = 300ms});
    std::vector<int> large(std::size_t{1} << 20, comm.rank());
    if (comm.rank() == 0) {
      wait_for("started" + round);
      CHECK_THROWS_AS(send(comm, large, 1), TimeoutError);
      std::fill(large.begin(), large.end(), 7);
      notify("refilled" + round);
    } else if (comm.rank() == 1) {
      Pending<> receiving;
      if (!blocking) receiving = start_receive(comm, large, 0);
      notify("started" + round);
      wait_for("refilled" + round);
      if (blocking)
        CHECK_THROWS_AS(receive(comm, large, 0), Error);
      else
        CHECK_THROWS_AS(receiving.wait(), Error);
    }
    world().barrier();
  }
  if (world().rank() == 0) std::filesystem::remove_all(folder);
}

TEST_CASE("an exception of a custom op is thrown by the call" * needs_ranks(2)) {
  for (const bool started : {false, true}) {
    MpiCommunicator comm(world());
    std::vector<float> x(4, 1.0f);
    int threw = 0;
    try {
      const Throwing op{true};
      if (started)
        start_all_reduce(comm, x, op).wait();
      else
        all_reduce(comm, x, op);
    } catch (const Trouble&) {
      threw = 1;
    } catch (const RevokedError&) {
      threw = 1;
    }
    const auto all = all_gather_values(world(), threw);
    CHECK(std::count(all.begin(), all.end(), 1) > 0);  // on the ranks that have reduced data
    CHECK_THROWS_AS(barrier(comm), RevokedError);
    world().barrier();
  }
}

TEST_CASE("arguments that are invalid on every rank are rejected on every rank") {
  const int size = world().size();
  int number = 0;
  const auto refused = [&](auto&& call) {
    MpiCommunicator comm(world());
    CHECK_THROWS_AS(call(comm), InvalidArgument);
    world().barrier();
  };
  refused([&](auto& comm) { broadcast(comm, number, size); });
  refused([&](auto& comm) { reduce(comm, number, number, sum, -1); });
  refused([&](auto& comm) { send(comm, number, size); });
  refused([&](auto& comm) { receive(comm, number, 0, -1); });
}

TEST_CASE("a blocking self-send without a counterpart is rejected") {
  MpiCommunicator comm(world());
  int number = 0;
  for (const bool sends : {true, false}) {
    auto alone = comm.split(comm.rank(), 0);
    CHECK(contains(error_of<InvalidState>([&] {
                     if (sends)
                       send(alone, number, 0);
                     else
                       receive(alone, number, 0);
                   }),
                   "to self would deadlock"));
    auto again = comm.split(comm.rank(), 0);
    int sent = 5;
    auto receiving = start_receive(again, number, 0);
    send(again, sent, 0);
    receiving.wait();
    CHECK(number == 5);
  }
}

TEST_CASE("errors of MPI contain its code and description") {
  const ErrorContext context{.operation = "all_reduce", .backend = "mpi", .rank = 2, .size = 4};
  try {
    detail::mpi::check(MPI_ERR_TAG, "MPI_Send", context);
    FAIL("nothing was thrown");
  } catch (const BackendError& error) {
    CHECK(error.code() == MPI_ERR_TAG);
    CHECK(contains(error.what(), "distx: all_reduce on rank 2 of 4 (mpi): MPI_Send: "));
    CHECK(contains(error.what(), "invalid tag"));
  }
  MpiCommunicator comm(world());
  // A failing MPI call returns, although the error handler of the program's communicator might abort.
  CHECK_THROWS_AS(detail::mpi::check(MPI_Bcast(nullptr, 1, MPI_INT, 99, comm.native_handle()), "MPI_Bcast", context),
                  BackendError);
}
