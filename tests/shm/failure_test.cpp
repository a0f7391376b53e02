// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// If ranks are killed, cannot share memory, or throw, the others throw and no resources leak.
#include <doctest/doctest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "distx/shm/detail/segment.hpp"
#include "distx/tensor/ops/ring_attention.hpp"
#include "shm/forked.hpp"
#include "shm/system.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::ShmCommunicator;

/// The calls in which a rank can wait for rank `other`, by name.
const std::vector<std::pair<std::string, void (*)(Comm&, int)>>& waits() {
  static const std::vector<std::pair<std::string, void (*)(Comm&, int)>> all{
      {"all_reduce", [](Comm& comm, int) { distx::all_reduce(comm, std::vector<float>(100), distx::sum); }},
      {"large all_reduce", [](Comm& comm, int) { distx::all_reduce(comm, std::vector<float>(1000000), distx::sum); }},
      {"barrier", [](Comm& comm, int) { distx::barrier(comm); }},
      {"started all_reduce",
       [](Comm& comm, int) {
         std::vector<float> values(1000);
         auto pending = distx::start_all_reduce(comm, values, distx::sum);
         pending.wait();
       }},
      {"receive",
       [](Comm& comm, int other) {
         std::vector<float> values(100000);
         distx::receive(comm, values, other);
       }},
      {"receive that is asked for",
       [](Comm& comm, int other) {
         float value = 0;
         auto pending = distx::start_receive(comm, value, other);
         distx::detail::wait_until(30s, [&] { return pending.test(); }, [] { return false; });
         pending.wait();
       }},
      {"send", [](Comm& comm, int other) { distx::send(comm, std::vector<float>(100000), other); }},
      {"split", [](Comm& comm, int) { const auto half = comm.split(0, 0); }},
      {"allocate", [](Comm& comm, int) { const auto memory = comm.allocate<float>(1000); }},
  };
  return all;
}

/// Returns 0 if `f` throws a RankFailure that names rank 1 well before the deadline, otherwise a code for its outcome.
template <class F>
int ends_in_failure(F&& f) {
  const auto began = std::chrono::steady_clock::now();
  try {
    f();
    return 10;
  } catch (const distx::RankFailure& failure) {
    if (failure.failed_rank() != 1) return 11;
    if (std::string(failure.what()).find("exited unexpectedly") == std::string::npos) return 12;
    if (!test::nameless()) return 15;
    return std::chrono::steady_clock::now() - began < 20s ? 0 : 13;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 14;
  }
}

TEST_CASE("every wait for a killed rank throws RankFailure and leaves nothing in /dev/shm") {
  for (std::size_t which = 0; which < waits().size(); ++which) {
    CAPTURE(waits()[which].first);
    const auto ended = test::forked(3, [&](test::ForkedConnector& connector, test::Board&) {
      Comm comm(connector, 60s);
      float value = 1;
      distx::all_reduce(comm, value, distx::sum);
      if (comm.rank() == 1) ::raise(SIGKILL);
      return ends_in_failure([&] { waits()[which].second(comm, 1); });
    });
    CHECK(ended == std::vector<int>{0, 1000 + SIGKILL, 0});
  }
}

TEST_CASE("ring attention throws RankFailure if a rank is killed between two passes of the others") {
  struct Context {};
  const auto ended = test::forked(3, [&](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    const distx::Mesh<Context> mesh(comm, {3});
    const auto x = distx::random<float, distx::Shard<1, Context>>(mesh, {1, 48, 3, 2, 8}, 1);
    const auto pass = [&] {
      const auto [y, log_sums] = distx::ops::ring_attention(x);
      static_cast<void>(distx::ops::ring_attention_backward(x, y, log_sums, y));
    };
    for (int i = 0; i < 3; ++i) pass();
    if (comm.rank() == 1) ::raise(SIGKILL);
    return ends_in_failure([&] {
      for (;;) pass();
    });
  });
  CHECK(ended == std::vector<int>{0, 1000 + SIGKILL, 0});
}

TEST_CASE("a rank that is killed during its work leaks nothing") {
  // A sibling watches rank 1's progress and kills it during collectives, allocations or messages.
  for (const int steps : {1, 7, 40}) {
    CAPTURE(steps);
    const auto ended = test::forked(3, [&](test::ForkedConnector& connector, test::Board& board) {
      Comm comm(connector, 60s);
      std::vector<pid_t> processes = distx::all_gather_values(connector, ::getpid());
      std::jthread killer;
      if (comm.rank() == 0)
        killer = std::jthread([&board, steps, victim = processes[1]] {
          distx::detail::wait_until(60s, [&] { return board.steps.load() >= steps; }, [] { return false; });
          ::kill(victim, SIGKILL);
        });
      return ends_in_failure([&] {
        for (;;) {
          auto memory = comm.allocate<float>(70000);
          distx::all_reduce(comm, memory, distx::sum);
          std::vector<float> own(70000);
          distx::all_reduce(comm, own, distx::sum);
          distx::send_receive(comm, own, (comm.rank() + 1) % 3, memory, (comm.rank() + 2) % 3);
          if (comm.rank() == 1) ++board.steps;
        }
      });
    });
    CHECK(ended == std::vector<int>{0, 1000 + SIGKILL, 0});
  }
}

TEST_CASE("a killed rank is detected while a rank with a lower number is only late") {
  const auto ended = test::forked(3, [](test::ForkedConnector& connector, test::Board& board) {
    Comm comm(connector, 60s);
    distx::barrier(comm);
    if (comm.rank() == 1) ::raise(SIGKILL);
    if (comm.rank() == 0) distx::detail::wait_until(30s, [&] { return board.steps == 1; }, [] { return false; });
    const int status = ends_in_failure([&] { distx::barrier(comm); });
    ++board.steps;
    return status;
  });
  CHECK(ended == std::vector<int>{0, 1000 + SIGKILL, 0});
}

/// Prevents this process from opening files while it exists.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    none.rlim_cur = 3;
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;
  ~NoMoreFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_CASE("a message that cannot allocate throws MemoryError, copies nothing, and later calls work") {
  const auto ended = test::forked(2, [](test::ForkedConnector& connector, test::Board&) {
    int status = 0;
    {
      Comm comm(connector, 60s);
      std::vector<int> small(4), large(5'000'000);
      if (comm.rank() == 0) {
        // The second message must not read the memory of the first.
        auto first = distx::start_receive(comm, small, 1);
        distx::barrier(comm);
        first.wait();
        const NoMoreFiles none;
        try {
          distx::receive(comm, large, 1, 1);
          status = 1;
        } catch (const distx::MemoryError&) {
          if (large != std::vector<int>(large.size())) status = 2;
        }
      } else {
        std::fill(small.begin(), small.end(), 99);
        distx::barrier(comm);
        distx::send(comm, small, 0);
        try {
          distx::receive(comm, large, 0, 1);
          status = 3;
        } catch (const distx::RevokedError& error) {
          const std::string words = error.what();
          if (words.find("cannot allocate shared memory") == std::string::npos) status = 4;
          if (words.rfind("distx: ") != 0) status = 5;  // it appears once
        }
      }
    }
    Comm next(connector, 60s);
    distx::barrier(next);
    return status;
  });
  CHECK(ended == std::vector<int>{0, 0});
}

TEST_CASE("the others are notified of ranks that throw, and nothing leaks") {
  const auto ended = test::forked(2, [](test::ForkedConnector& connector, test::Board&) {
    try {
      Comm comm(connector, 60s);
      auto memory = comm.allocate<float>(1000);
      if (!test::nameless()) return 6;
      if (comm.rank() == 1) throw std::runtime_error("out of luck");
      distx::all_reduce(comm, memory, distx::sum);
    } catch (const distx::RevokedError& error) {
      return std::string(error.what()).find("destroyed by an exception") != std::string::npos ? 1 : 2;
    } catch (const std::runtime_error& error) {
      return error.what() == std::string("out of luck") ? 3 : 4;
    }
    return 5;
  });
  CHECK(ended == std::vector<int>{1, 3});
}

TEST_CASE("of many ranks, the others throw a RankFailure if one is killed, wherever they wait") {
  for (const auto& [name, wait] : waits()) {
    CAPTURE(name);
    const auto ended = test::forked(20, [&](test::ForkedConnector& connector, test::Board&) {
      Comm comm(connector, 60s);
      distx::barrier(comm);
      if (comm.rank() == 1) ::raise(SIGKILL);
      try {
        wait(comm, 1);
      } catch (const distx::RankFailure& failure) {
        return failure.failed_rank() == 1 ? 1 : 2;
      } catch (const distx::RevokedError&) {
        return 3;
      }
      return 4;
    });
    std::vector<int> expected(20, 1);
    expected[1] = 1000 + SIGKILL;
    CHECK(ended == expected);
  }
}

/// A connector that counts its calls.
class Counting : public distx::ThreadConnector {
 public:
  explicit Counting(distx::ThreadConnector connector) : distx::ThreadConnector(std::move(connector)) {}
  void barrier() { ++calls, distx::ThreadConnector::barrier(); }
  void broadcast(std::span<std::byte> bytes, int root) {
    ++calls, distx::ThreadConnector::broadcast(bytes, root);
    most_bytes = std::max(most_bytes, bytes.size());
  }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    ++calls, distx::ThreadConnector::all_gather(send, receive);
    most_bytes = std::max(most_bytes, send.size());
  }
  int calls = 0;
  std::size_t most_bytes = 0;
};

TEST_CASE("making a communicator takes two calls of the connector, with a few bytes per rank") {
  distx::spawn(3, [](distx::ThreadConnector& connector) {
    Counting counting(connector);
    const Comm comm(counting);
    CHECK(counting.calls == 2);
    CHECK(counting.most_bytes <= 64);
  });
}

/// A connector whose last rank receives the name of a segment on another host.
class Elsewhere : public distx::ThreadConnector {
 public:
  explicit Elsewhere(distx::ThreadConnector connector) : distx::ThreadConnector(std::move(connector)) {}
  void broadcast(std::span<std::byte> bytes, int root) {
    distx::ThreadConnector::broadcast(bytes, root);
    distx::detail::shm::SegmentName name;
    if (rank() + 1 != size() || bytes.size() != sizeof name) return;
    std::memcpy(&name, bytes.data(), sizeof name);
    name.host ^= 1;
    std::memcpy(bytes.data(), &name, sizeof name);
  }
};

TEST_CASE("ranks on different hosts are rejected on every rank") {
  std::array<std::string, 3> words;
  distx::spawn(3, [&](distx::ThreadConnector& connector) {
    Elsewhere elsewhere(connector);
    try {
      Comm comm(elsewhere);
    } catch (const distx::ConnectError& error) {
      words[static_cast<std::size_t>(connector.rank())] = error.what();
    }
  });
  for (const auto& sentence : words)
    CHECK(sentence.find("rank 2: runs on another host than rank 0") != std::string::npos);
}

/// A connector in which one rank cannot find the segment of rank 0: it receives the name of another file.
class Misled : public test::ForkedConnector {
 public:
  using test::ForkedConnector::ForkedConnector;
  explicit Misled(const test::ForkedConnector& connector) : test::ForkedConnector(connector) {}
  void broadcast(std::span<std::byte> bytes, int root) {
    test::ForkedConnector::broadcast(bytes, root);
    distx::detail::shm::SegmentName name;
    if (rank() != 1 || bytes.size() != sizeof name) return;
    std::memcpy(&name, bytes.data(), sizeof name);
    name.file = 1;
    std::memcpy(bytes.data(), &name, sizeof name);
  }
};

TEST_CASE("if one rank cannot map the memory, no rank gets a communicator") {
  const auto ended = test::forked(3, [](test::ForkedConnector& connector, test::Board&) {
    const auto files = test::open_files();
    Misled misled(connector);
    try {
      Comm comm(misled, 60s);
    } catch (const distx::ConnectError& error) {
      if (test::open_files() != files) return 4;
      return std::string(error.what()).find("rank 1: ") != std::string::npos ? 1 : 2;
    }
    return 3;
  });
  CHECK(ended == std::vector<int>{1, 1, 1});
}

/// Lets memfd_create fail in this process, as a container's seccomp profile does.
void deny_memfd_create() {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{4, filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    throw std::runtime_error("seccomp cannot be used");
}

TEST_CASE("where memfd_create is denied, every rank's error names the communicators that do without") {
  for (const int denied : {0, 1, 2})  // a rank, or all
    CHECK(test::forked(2, [&](test::ForkedConnector& connector, test::Board&) {
            if (denied == 2 || denied == connector.rank()) deny_memfd_create();
            try {
              distx::ShmCommunicator comm(connector, std::chrono::seconds(20));
              distx::barrier(comm);
            } catch (const distx::Error& error) {
              const std::string message = error.what();
              if (message.find("use GlooCommunicator or MpiCommunicator") != std::string::npos) return 1;
              std::cerr << message << std::endl;
              return 2;
            }
            return 0;
          }) == std::vector<int>(2, denied == 1 ? 0 : 1));
}

}  // namespace
