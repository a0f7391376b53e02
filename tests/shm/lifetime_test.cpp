// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Destroyed communicators and allocations release their resources.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <random>

#include "comm/outcomes.hpp"
#include "distx/shm/detail/available_memory.hpp"
#include "distx/shm/detail/mailbox.hpp"
#include "shm/forked.hpp"
#include "shm/system.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::ShmCommunicator;

/// Returns how every rank ended.
template <class F>
std::vector<test::Outcome> outcomes(int ranks, F f, distx::Timeout deadline = 1min) {
  std::vector<test::Outcome> all(static_cast<std::size_t>(ranks));
  distx::spawn(distx::threads(ranks, 1min), [&](distx::ThreadConnector& connector) {
    Comm comm(connector, deadline);
    all[static_cast<std::size_t>(comm.rank())] = test::outcome_of([&] { f(comm); });
    connector.barrier();
  });
  return all;
}

void use(Comm& comm) {
  auto memory = comm.allocate<float>(5000);
  distx::all_reduce(comm, memory, distx::sum);
  std::vector<float> own(20000, 1);
  auto pending = distx::start_all_reduce(comm, own, distx::sum);
  pending.wait();
  distx::send_receive(comm, own, (comm.rank() + 1) % comm.size(), std::vector<float>(20000),
                      (comm.rank() + comm.size() - 1) % comm.size());
  auto half = comm.split(comm.rank() % 2, 0);
  distx::barrier(half);
  if (!test::nameless()) throw std::logic_error("a segment has a name");
}

TEST_CASE("the control groups that limit a process are its own and those above it, of both versions") {
  std::vector<std::string> seen;
  distx::detail::shm::each_memory_group(
      "4:memory:/a/b\n3:cpu,cpuacct:/x\n2:hugetlb,memory:/\n0::/c\n",
      [&](const std::string& folder, int version) { seen.push_back(std::to_string(version) + ' ' + folder); });
  CHECK(seen == std::vector<std::string>{"1 /sys/fs/cgroup/memory/a/b", "1 /sys/fs/cgroup/memory/a",
                                         "1 /sys/fs/cgroup/memory", "1 /sys/fs/cgroup/memory", "2 /sys/fs/cgroup/c",
                                         "2 /sys/fs/cgroup"});
}

TEST_CASE("a thousand destroyed communicators leave files, mappings and memory unchanged") {
  const auto ended = test::forked(2, [&](test::ForkedConnector& connector, test::Board&) {
    const auto round = [&] {
      Comm comm(connector, 1min);
      use(comm);
    };
    for (int i = 0; i < 20; ++i) round();
    const auto files = test::open_files(), mappings = test::mappings(), memory = test::memory_kib("VmRSS");
    for (int i = 0; i < 1000; ++i) round();
    if (test::open_files() != files) return 1;
    if (test::mappings() > mappings + 2) return 2;  // the heap may have grown
    if (test::memory_kib("VmRSS") > memory + 2048) return 3;
    return 0;
  });
  CHECK(ended == std::vector<int>{0, 0});
}

TEST_CASE("memory that all ranks have destroyed is freed while the communicator exists") {
  const auto ended = test::forked(2, [](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 1min);
    for (int i = 0; i < 5; ++i) {
      auto memory = comm.allocate<float>(4 << 20);
      std::fill(memory.begin(), memory.end(), 1.0f);
      distx::all_reduce(comm, memory, distx::sum);
      if (test::memory_kib("RssShmem") < 20000) return 1;  // this rank's 16 MiB, and half of its peer's
    }
    distx::barrier(comm);
    auto little = comm.allocate<float>(1);
    return test::memory_kib("RssShmem") < 10000 ? 0 : 2;
  });
  CHECK(ended == std::vector<int>{0, 0});
}

TEST_CASE("memory may outlive its communicator, and a rank may free its part before the others") {
  const auto all = outcomes(3, [](Comm& comm) {
    auto first = comm.allocate<float>(100000);
    auto second = comm.allocate<float>(100000);
    // Rank 1 frees its part, and reduces from private memory while the others reduce in place.
    std::vector<float> own(100000);
    if (comm.rank() == 1) first = {};
    for (int round = 0; round < 3; ++round) {
      const distx::Span<float> values = comm.rank() == 1 ? distx::Span<float>(own) : first.span();
      distx::fill({}, values, static_cast<float>(comm.rank() + 1));
      distx::fill({}, second.span(), static_cast<float>(comm.rank() + 1));
      distx::all_reduce(comm, values, distx::sum);
      distx::all_reduce(comm, second, distx::sum);
      for (std::size_t i = 0; i < values.size(); ++i)
        if (values[i] != 6 || second[i] != 6) throw std::logic_error("wrong sum");
    }
    auto part = comm.split(0, 0);
    auto kept = part.allocate<float>(10);
    { const auto gone = std::move(part); }
    kept[9] = 3;
    if (kept[0] != 0 || kept[9] != 3) throw std::logic_error("the memory went with its communicator");
  });
  CHECK_MESSAGE(test::all_say(all, "done", ""), test::text_of(all));
}

TEST_CASE("ranks that request different sizes are rejected") {
  const auto all =
      outcomes(2, [](Comm& comm) { const auto memory = comm.allocate<float>(comm.rank() == 0 ? 10 : 11); });
  CHECK(all[0].type == "MismatchError");
  CHECK(all[0].says("rank 1 requests 11 elements of 4 bytes"));
  CHECK(all[1].type == "MismatchError");
  CHECK(all[1].says("rank 0 requests 10 elements of 4 bytes"));
}

TEST_CASE("a request beyond the address space throws an error with its size") {
  const auto all = outcomes(2, [](Comm& comm) { const auto memory = comm.allocate<double>(std::size_t{1} << 60); });
  CHECK_MESSAGE(
      test::all_say(all, "another error", "cannot allocate shared memory for 1152921504606846976 elements of 8 bytes"),
      test::text_of(all));
}

TEST_CASE("an allocation that exceeds the system's memory is rejected on every rank before it accesses memory") {
  const auto all = outcomes(2, [](Comm& comm) { const auto memory = comm.allocate<float>(std::size_t{1} << 42); });
  CHECK_MESSAGE(test::all_say(all, "another error", "bytes available"), test::text_of(all));
}

TEST_CASE("long messages between processes arrive whole, from and to both kinds of memory, in both orders") {
  const auto ended = test::forked(2, [](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    constexpr std::size_t most = 1'500'001;
    auto shared_from = comm.allocate<float>(most), shared_to = comm.allocate<float>(most);
    std::vector<float> own_from(most), own_to(most);
    const int other = 1 - comm.rank();
    float turn = 0;
    for (const std::size_t count : {std::size_t{300}, std::size_t{20000}, most})
      for (const bool from_shared : {false, true})
        for (const bool to_shared : {false, true})
          for (const int first : {0, 1, 2}) {  // the rank that sends first; 2: both exchange
            const auto from = from_shared ? shared_from.span().first(count) : distx::Span<float>(own_from).first(count);
            const auto to = to_shared ? shared_to.span().first(count) : distx::Span<float>(own_to).first(count);
            const auto value = [&](int rank, std::size_t i) {
              return turn + static_cast<float>((static_cast<std::size_t>(rank) + i) % 1001);
            };
            turn += 1;
            for (std::size_t i = 0; i < count; ++i) from[i] = value(comm.rank(), i), to[i] = -1;
            if (first == 2) {
              distx::send_receive(comm, from, other, to, other);
            } else {
              auto received = distx::start_receive(comm, to, other);
              if (first != comm.rank()) received.wait();
              distx::send(comm, from, other);
              received.wait();
            }
            for (std::size_t i = 0; i < count; ++i)
              if (to[i] != value(other, i)) return 1;
          }
    return 0;
  });
  CHECK(ended == std::vector<int>{0, 0});
}

TEST_CASE("messages longer than a cell arrive in both orders") {
  const auto all = outcomes(2, [](Comm& comm) {
    const int other = 1 - comm.rank();
    const auto letter = [](std::size_t i, int rank) {
      return static_cast<std::uint8_t>(i * 31 + static_cast<std::size_t>(rank));
    };
    for (const std::size_t n : {1024u, 1025u, 70000u, 6000000u}) {
      for (const bool sender_first : {true, false}) {
        std::vector<std::uint8_t> data(n), got(n);
        for (std::size_t i = 0; i < n; ++i) data[i] = letter(i, comm.rank());
        if ((comm.rank() == 0) == sender_first) {
          auto sent = distx::start_send(comm, data, other);
          distx::barrier(comm);
          distx::receive(comm, got, other);
          sent.wait();
        } else {
          auto received = distx::start_receive(comm, got, other);
          distx::barrier(comm);
          distx::send(comm, data, other);
          received.wait();
        }
        for (std::size_t i = 0; i < n; ++i)
          if (got[i] != letter(i, other)) throw std::logic_error("wrong message");
      }
    }
  });
  CHECK_MESSAGE(test::all_say(all, "done", ""), test::text_of(all));
}

TEST_CASE("any number of messages can be started to a rank that receives them, in both orders") {
  for (const bool sender_first : {true, false}) {
    CAPTURE(sender_first);
    const auto all = outcomes(2, [&](Comm& comm) {
      constexpr std::size_t count = 3 * distx::detail::shm::SegmentMailbox::capacity;
      const bool sends = comm.rank() == 0;
      std::vector<std::size_t> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = sends ? i : 0;
      const auto start = [&](std::size_t i) {
        return sends ? distx::start_send(comm, values[i], 1) : distx::start_receive(comm, values[i], 0);
      };
      if (sends == sender_first) {
        std::vector<decltype(start(0))> started;
        for (std::size_t i = 0; i < count; ++i) {
          if (i == distx::detail::shm::SegmentMailbox::capacity) distx::barrier(comm);  // no message has been matched
          started.push_back(start(i));
        }
        for (auto& pending : started) pending.wait();
      } else {
        distx::barrier(comm);
        for (std::size_t i = 0; i < count; ++i) start(i).wait();
      }
      for (std::size_t i = 0; i < count; ++i)
        if (values[i] != i) throw std::logic_error("wrong message");
    });
    CHECK_MESSAGE(test::all_say(all, "done", ""), test::text_of(all));
  }
}

TEST_CASE("small messages arrive in order if their receives are posted before, after, or at the same time") {
  const auto all = outcomes(2, [](Comm& comm) {
    const int other = 1 - comm.rank();
    std::minstd_rand random(1);  // the same on both ranks
    const auto below = [&](unsigned n) { return static_cast<unsigned>(random()) % n; };
    for (unsigned round = 0; round < 20000; ++round) {
      constexpr std::size_t most = 4;
      const std::size_t count = 1 + below(most);
      std::array<int, most> tags{};
      for (int& tag : tags) tag = static_cast<int>(below(2));
      std::array<std::array<unsigned, 20>, most> values{};
      const auto value = [&](std::size_t i) { return round * 8 + static_cast<unsigned>(i); };
      const unsigned delays[] = {1 + below(200), 1 + below(200)};
      std::atomic<unsigned> spins = delays[comm.rank()];
      while (--spins != 0) {
      }
      std::vector<distx::Pending<distx::Host>> started;
      for (std::size_t i = 0; i < count; ++i) {
        values[i].fill(comm.rank() == 0 ? value(i) : 0);
        const bool blocks = i + 1 == count && round % 2 == 0;
        if (comm.rank() == 0) {
          if (blocks)
            distx::send(comm, values[i], other, tags[i]);
          else
            started.push_back(distx::start_send(comm, values[i], other, tags[i]));
        } else {
          if (blocks)
            distx::receive(comm, values[i], other, tags[i]);
          else
            started.push_back(distx::start_receive(comm, values[i], other, tags[i]));
        }
      }
      if (round % 3 == 0) std::reverse(started.begin(), started.end());
      for (auto& pending : started) pending.wait();
      for (std::size_t i = 0; i < count; ++i)
        for (const unsigned found : values[i])
          if (found != value(i)) throw std::logic_error("wrong message");
    }
  });
  CHECK_MESSAGE(test::all_say(all, "done", ""), test::text_of(all));
}

TEST_CASE("small messages of different sizes or types are a mismatch on both ranks, in both orders") {
  for (const bool sender_first : {true, false}) {
    CAPTURE(sender_first);
    const auto all = outcomes(2, [&](Comm& comm) {
      const std::vector<float> three(3);
      std::vector<float> five(5);
      if ((comm.rank() == 0) == sender_first) {
        auto pending = comm.rank() == 0 ? distx::start_send(comm, three, 1) : distx::start_receive(comm, five, 0);
        distx::barrier(comm);
        pending.wait();
      } else {
        distx::barrier(comm);
        if (comm.rank() == 0)
          distx::send(comm, three, 1);
        else
          distx::receive(comm, five, 0);
      }
    });
    CHECK(all[0].says("sends 3 elements of type float32, rank 1 expects 5 elements of type float32"));
    CHECK(all[1].says("expects 5 elements of type float32, rank 0 sends 3 elements of type float32"));
  }
}

TEST_CASE("a rank that receives no messages is named when its mailbox is full") {
  const auto all = outcomes(
      2,
      [](Comm& comm) {
        if (comm.rank() == 1) return;  // its communicator exists until rank 0 has given up
        const float value = 1;
        std::vector<decltype(distx::start_send(comm, value, 1))> sent;
        // The first one is in the slot of the pair of ranks, the others fill the mailbox.
        for (std::size_t i = 0; i <= distx::detail::shm::SegmentMailbox::capacity + 1; ++i)
          sent.push_back(distx::start_send(comm, value, 1));
      },
      1s);
  CHECK(all[0].type == "TimeoutError");
  CHECK(all[0].says("timed out after 1 s: the mailbox of rank 1 is full (256 unreceived messages)"));
}

}  // namespace
