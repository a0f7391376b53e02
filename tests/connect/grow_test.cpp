// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>

#include "connect/generations.hpp"
#include "connect/in_folder.hpp"
#include "connect/over_tcp.hpp"
#include "distx/connect/control/group.hpp"
#include "distx/threads.hpp"
#include "words.hpp"

// Connectors of a running job's ranks and of processes that join them.
namespace {

using distx::FileConnector;
using distx::TcpConnector;
using std::chrono::milliseconds;
using std::chrono::seconds;
using test::check_ranks;
using test::contains;
using test::forked;

/// Returns one more than how often a process has waited in the system.
int waits_of(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  int waits = 0;
  for (std::string word; status >> word;)
    if (word == "voluntary_ctxt_switches:") status >> waits;
  return 1 + waits;
}

/// Ranks of one job in a folder.
struct InFolder {
  using Connector = FileConnector;
  test::NewFolder folder;

  [[nodiscard]] FileConnector begin(int rank, int size) const {
    return FileConnector(folder.path(), rank, size, {.deadline = seconds(20)});
  }
  [[nodiscard]] FileConnector join(distx::Timeout deadline = seconds(20)) const {
    return FileConnector::join(folder.path(), {.deadline = deadline});
  }
  [[nodiscard]] bool clean() const { return folder.empty(); }
  static void await_ended() {}
  /// Waits until a process of this host waits to join. @param process,waits  for the other kind of job
  void await_joining(pid_t process, int waits) const {
    (void)process;
    (void)waits;
    const auto joins = [](const auto& entry) { return entry.path().filename().string().starts_with("join-"); };
    using Entries = std::filesystem::directory_iterator;
    for (const distx::Deadline deadline(seconds(60)); !deadline.expired();) {
      if (std::any_of(Entries(folder.path()), Entries(), joins)) return;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
};
/// The same over TCP.
struct OverTcp {
  using Connector = TcpConnector;
  int port = test::free_port();

  [[nodiscard]] TcpConnector begin(int rank, int size) const {
    return TcpConnector("127.0.0.1", port, rank, size, {.deadline = seconds(20)});
  }
  [[nodiscard]] TcpConnector join(distx::Timeout deadline = seconds(20)) const {
    return TcpConnector::join("127.0.0.1", port, {.deadline = deadline});
  }
  [[nodiscard]] static bool clean() { return true; }
  /// Waits until rank 0's host knows that the processes which are connected to rank 0 have ended.
  void await_ended() const {
    char local[16];
    std::snprintf(local, sizeof local, "0100007F:%04X", static_cast<unsigned>(port));
    const auto is_connected = [&] {
      std::ifstream sockets("/proc/net/tcp");
      std::string line, number, here, there, state;
      while (std::getline(sockets, line))
        if (std::istringstream(line) >> number >> here >> there >> state && here == local && state == "01") return true;
      return false;
    };
    for (const distx::Deadline deadline(seconds(60)); is_connected() && !deadline.expired();)
      std::this_thread::sleep_for(milliseconds(1));
  }
  /// To connect and to prove the token takes a few waits; all later ones are for rank 0.
  /// @param waits  those of the process before it called join
  void await_joining(pid_t process, int waits) const {
    for (const distx::Deadline deadline(seconds(60)); waits_of(process) < waits + 16 && !deadline.expired();)
      std::this_thread::sleep_for(milliseconds(1));
  }
};

/// Returns whether rank 0 of the job in a folder has decided on the next ranks.
bool has_decided(const std::filesystem::path& folder) {
  for (const auto& each : std::filesystem::directory_iterator(folder))
    if (std::filesystem::exists(each.path() / "next")) return true;
  return false;
}

/// Returns a connector of that many ranks, once all others wait. Called by the ranks and by those that have joined.
template <class C>
C grown(C connector, int size) {
  for (const distx::Deadline deadline(seconds(60)); connector.size() < size && !deadline.expired();) {
    connector = connector.grow();
    std::this_thread::sleep_for(milliseconds(1));
  }
  return connector;
}

TEST_CASE_TEMPLATE("processes that wait become the last ranks; without any, grow returns an equal connector", Job,
                   InFolder, OverTcp) {
  const Job job;
  std::atomic<bool> has_begun{false};
  const auto messages = test::each(5, [&](int number) {
    auto connector = [&] {
      if (number < 3) return job.begin(number, 3);
      while (!has_begun) std::this_thread::yield();
      return job.join();
    }();
    if (number < 3) {
      connector = connector.grow();
      check_ranks(connector, number, {0, 1, 2});
      has_begun = true;
    }
    auto old = std::make_unique<typename Job::Connector>(grown(std::move(connector), 5));
    const int rank = old->rank();
    CHECK((number < 3 ? rank == number : rank >= 3));  // which of the two is the first is not known
    check_ranks(*old, rank, {0, 1, 2, 3, 4});
    CHECK(old->local_size() == 5);
    if (rank == 4) old->failure_channel()->publish(7, "reason");
    old->barrier();
    CHECK(old->failure_channel()->poll(7) == "reason");
    CHECK(!old->failure_channel()->poll(8));
  });
  for (const auto& message : messages) CHECK(message == "");
  CHECK(job.clean());
}

TEST_CASE_TEMPLATE("a connector in place of which grow has returned a larger one throws InvalidState", Job, InFolder,
                   OverTcp) {
  const Job job;
  const auto messages = test::each(2, [&](int number) {
    if (number == 1) return job.join().barrier();
    auto one = job.begin(0, 1);
    auto two = one.grow();
    while (two.size() == 1) two = one.grow();
    CHECK_THROWS_AS((void)one.grow(), distx::InvalidState);
    CHECK_THROWS_AS((void)one.shrink(), distx::InvalidState);
    two.barrier();
  });
  CHECK(messages == test::Messages{"", ""});
}

TEST_CASE_TEMPLATE("grow throws MismatchError on every rank if another one makes another call", Job, InFolder,
                   OverTcp) {
  const Job job;
  const auto messages = test::each(2, [&](int rank) {
    auto connector = job.begin(rank, 2);
    if (rank == 0)
      (void)connector.grow();
    else
      connector.barrier();
  });
  for (const auto& message : messages) CHECK(contains(message, "rank 0 calls grow, rank 1 barrier"));
}

/// A number that forked processes share.
class Phase {
 public:
  Phase()
      : number_(static_cast<std::atomic<int>*>(
            ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  Phase(const Phase&) = delete;
  Phase& operator=(const Phase&) = delete;
  ~Phase() { ::munmap(number_, sizeof(std::atomic<int>)); }
  void begin(int phase) const { *number_ = phase; }
  [[nodiscard]] int number() const { return *number_; }
  void await(int phase) const {
    for (const distx::Deadline deadline(seconds(60)); *number_ < phase && !deadline.expired();)
      std::this_thread::sleep_for(milliseconds(1));
  }

 private:
  std::atomic<int>* number_;
};

/// Starts a process that exits with what `body` returns, which calls `job.join`; returns it once it waits to join.
template <class Job, class Body>
pid_t started_joining(const Job& job, Body&& body) {
  const Phase waits;
  const pid_t process = ::fork();
  if (process == 0) {
    waits.begin(waits_of(::getpid()));
    ::_exit(body());
  }
  waits.await(1);
  job.await_joining(process, waits.number());
  return process;
}

/// The lives of five processes. The job begins with 0, 1 and 2, of which 1 is killed. Then 3 joins and another one is
/// killed, then 4, after which the last one of those that began is killed.
template <class Job>
int relay(const Job& job, const Phase& phase, int number, bool root_dies) {
  using Connector = typename Job::Connector;
  const int second = root_dies ? 0 : 2, third = root_dies ? 2 : 3, last = root_dies ? 3 : 0;  // the last one remains
  const auto numbers_are = [&](Connector& connector, const std::vector<int>& expected) {
    test::expect(distx::all_gather_values(connector, number) == expected, "the ranks are others");
    test::expect(!connector.failure_channel()->poll(3), "an earlier failure is reported");
    connector.barrier();
  };
  const auto without_one = [&](Connector connector) {
    try {
      connector.barrier();
      throw std::runtime_error("no rank is lost");
    } catch (const distx::RankFailure&) {
    }
    return connector.shrink(seconds(20));
  };
  const auto join = [&](int when) {
    phase.await(when);
    return job.join();
  };
  auto connector = number < 3 ? job.begin(number, 3) : join(number - 2);
  if (number < 3) {
    connector.barrier();
    if (number == 1) ::raise(SIGKILL);
    connector = without_one(std::move(connector));
    numbers_are(connector, {0, 2});
    phase.begin(1);
    connector = grown(std::move(connector), 3);
  }
  if (number < 4) {
    numbers_are(connector, {0, 2, 3});
    if (number == second) ::raise(SIGKILL);
    connector = without_one(std::move(connector));
    numbers_are(connector, {std::min(third, last), std::max(third, last)});
    phase.begin(2);
    connector = grown(std::move(connector), 3);
  }
  numbers_are(connector, {std::min(third, last), std::max(third, last), 4});
  if (number == third) ::raise(SIGKILL);
  connector = without_one(std::move(connector));
  numbers_are(connector, {last, 4});
  return 0;
}

TEST_CASE(
    "processes join in a folder after others were killed, until those that began have ended, and leave no files") {
  const InFolder job;
  const Phase phase;
  const auto ended = forked(5, [&](int number) { return relay(job, phase, number, true); });
  CHECK(ended == std::vector{SIGKILL, SIGKILL, SIGKILL, 0, 0});
  CHECK(job.clean());
}

TEST_CASE("processes join over TCP after others than rank 0 were killed") {
  const OverTcp job;
  const Phase phase;
  const auto ended = forked(5, [&](int number) { return relay(job, phase, number, false); });
  CHECK(ended == std::vector{0, SIGKILL, SIGKILL, SIGKILL, 0});
}

TEST_CASE_TEMPLATE("a process that is killed while it waits is not admitted, and leaves no files", Job, InFolder,
                   OverTcp) {
  const Job job;
  const Phase phase;
  const auto ended = forked(2, [&](int number) {
    if (number == 1) {
      phase.await(1);
      const pid_t waits = started_joining(job, [&] { return (void)job.join(), 0; });
      ::kill(waits, SIGKILL);
      int status = 0;
      ::waitpid(waits, &status, 0);
      job.await_ended();
      phase.begin(2);
      return status == SIGKILL ? 0 : 1;
    }
    auto connector = job.begin(0, 1);
    phase.begin(1);
    phase.await(2);
    return connector.grow().size() == 1 ? 0 : 2;
  });
  CHECK(ended == std::vector{0, 0});
  CHECK(job.clean());
}

TEST_CASE_TEMPLATE("a process that is killed after it was admitted is lost like any rank", Job, InFolder, OverTcp) {
  const Job job;
  const auto ended = forked(3, [&](int number) {
    if (number == 2) {
      auto connector = job.join();
      ::raise(SIGKILL);
    }
    auto larger = grown(job.begin(number, 2), 3);
    try {
      larger.barrier();
      return 2;
    } catch (const distx::RankFailure& failure) {
      if (failure.failed_rank() != 2) return 3;
    }
    auto two = larger.shrink(seconds(20));
    return distx::all_gather_values(two, number) == std::vector{0, 1} ? 0 : 4;
  });
  CHECK(ended == std::vector{0, 0, SIGKILL});
  CHECK(job.clean());
}

TEST_CASE_TEMPLATE(
    "if a rank is lost in grow, shrink continues without it, and the next grow admits the process that waits", Job,
    InFolder, OverTcp) {
  const Job job;
  const auto ended = forked(4, [&](int number) {
    if (number == 3) {
      auto connector = job.join();
      return distx::all_gather_values(connector, number) == std::vector{0, 1, 3} ? 0 : 2;
    }
    auto connector = job.begin(number, 3);
    connector.barrier();
    if (number == 2) ::raise(SIGKILL);
    try {
      (void)connector.grow();
      return 3;
    } catch (const distx::RankFailure& failure) {
      if (failure.failed_rank() != 2) return 4;
    }
    auto three = grown(connector.shrink(seconds(20)), 3);
    return distx::all_gather_values(three, number) == std::vector{0, 1, 3} ? 0 : 5;
  });
  CHECK(ended == std::vector{0, 0, SIGKILL, 0});
  CHECK(job.clean());
}

TEST_CASE("a rank that gives up a grow in a folder on which rank 0 has decided enters the larger group by shrink") {
  namespace control = distx::detail::control;
  const InFolder job;
  const auto messages = test::each(2, [&](int rank) {
    auto connector = job.begin(rank, 2);
    std::jthread joins;
    if (rank == 0) {
      joins = std::jthread([&] {
        auto joined = job.join();
        CHECK(joined.rank() == 2);
        joined.barrier();
      });
      job.await_joining(0, 0);
      connector = connector.grow();
    } else {
      // Enters the call, and does not wait for its result.
      const control::Frame part{{.kind = control::FrameKind::call}, "grow"};
      for (const auto& each : std::filesystem::directory_iterator(job.folder.path()))
        if (each.is_directory()) distx::detail::file::Folder::open(each.path())->put("call-1-1", text_of(part));
      while (!has_decided(job.folder.path())) std::this_thread::yield();
      connector = connector.shrink(seconds(20));
    }
    CHECK(connector.rank() == rank);
    CHECK(connector.size() == 3);
    connector.barrier();
  });
  CHECK(messages == test::Messages{"", ""});
  CHECK(job.clean());
}

TEST_CASE("a rank that enters grow in a folder while rank 0 is in shrink throws RevokedError") {
  const InFolder job;
  const auto in_shrink = [&] {
    for (const auto& each : std::filesystem::directory_iterator(job.folder.path()))
      if (std::filesystem::exists(each.path() / "survives-0")) return true;
    return false;
  };
  std::jthread waits;
  const auto messages = test::each(2, [&](int rank) {
    FileConnector connector(job.folder.path(), rank, 2, {.deadline = rank == 0 ? milliseconds(500) : seconds(20)});
    if (rank == 0) {
      waits = std::jthread([&] { CHECK_THROWS_AS((void)job.join(), distx::ConnectError); });
      job.await_joining(0, 0);
      CHECK_THROWS_AS((void)connector.grow(), distx::TimeoutError);
    } else {
      while (!in_shrink()) std::this_thread::yield();
      CHECK(contains(test::error_of<distx::RevokedError>([&] { (void)connector.grow(); }),
                     "rank 0 of 2 has entered shrink and will not enter this call"));
    }
    connector = connector.shrink(seconds(20));
    CHECK(connector.size() == 2);
    connector.barrier();
  });
  CHECK(messages == test::Messages{"", ""});
}

TEST_CASE("a process that is not admitted throws a ConnectError that says what to do") {
  const InFolder in_folder;
  const OverTcp over_tcp;
  CHECK(contains(test::error_of<distx::ConnectError>([&] { (void)in_folder.join(milliseconds(50)); }),
                 "timed out after 0.05 s: no job runs in '" + in_folder.folder.path().string() +
                     "': set DISTX_FILE to the folder of a running job, or unset DISTX_JOIN to start one"));
  CHECK(contains(test::error_of<distx::ConnectError>([&] { (void)over_tcp.join(milliseconds(50)); }),
                 "timed out after 0.05 s: no job runs at 127.0.0.1:" + std::to_string(over_tcp.port) +
                     ": correct the address, or unset DISTX_JOIN to start a job"));
  CHECK(in_folder.clean());
  const auto check = [](const auto& job, const std::string& name) {
    auto connector = job.begin(0, 1);
    CHECK(contains(test::error_of<distx::ConnectError>([&] { (void)job.join(seconds(1)); }),
                   "timed out after 1 s: the job " + name +
                       " has not admitted this process: its ranks must call grow() from time to time"));
    CHECK(connector.grow().size() == 1);
  };
  check(in_folder, "in '" + in_folder.folder.path().string() + "'");
  check(over_tcp, "at 127.0.0.1:" + std::to_string(over_tcp.port));
  CHECK(in_folder.clean());
}

TEST_CASE_TEMPLATE("a process that waits throws ConnectError when the job ends", Job, InFolder, OverTcp) {
  const Job job;
  const Phase phase;
  const auto ended = forked(2, [&](int number) {
    if (number == 0) {
      auto connector = job.begin(0, 1);
      phase.begin(1);
      phase.await(2);
      return 0;
    }
    phase.await(1);
    const pid_t waits = started_joining(job, [&] {
      const auto message = test::error_of<distx::ConnectError>([&] { (void)job.join(seconds(60)); });
      return contains(message, "ended before it admitted this process") ? 0 : 1;
    });
    phase.begin(2);
    int status = 1;
    ::waitpid(waits, &status, 0);
    return status == 0 ? 0 : 1;
  });
  CHECK(ended == std::vector{0, 0});
  CHECK(job.clean());
}

TEST_CASE("a process that joins over TCP with another token throws ConnectError") {
  const int port = test::free_port();
  const auto options = [](const char* token) {
    return distx::TcpConnectorOptions{.deadline = seconds(20), .token = token};
  };
  TcpConnector connector("127.0.0.1", port, 0, 1, options("right"));
  CHECK(contains(
      test::error_of<distx::ConnectError>([&] { (void)TcpConnector::join("127.0.0.1", port, options("wrong")); }),
      "rank 0 has another token"));
  CHECK(connector.grow().size() == 1);
}

TEST_CASE("a folder that cannot be searched for processes that wait leaves its ranks in step") {
  const InFolder job;
  const auto stray = job.folder.path() / "join-stray";
  const auto messages = test::each(2, [&](int rank) {
    auto connector = job.begin(rank, 2);
    if (rank == 0) {
      std::filesystem::create_directory(stray);
      CHECK_THROWS_AS((void)connector.grow(), distx::ConnectError);
      std::filesystem::remove(stray);
    }
    auto same = connector.grow();
    check_ranks(same, rank, {0, 1});
  });
  CHECK(messages == test::Messages{"", ""});
}

/// Announces another group in place of the result of any call.
class Replaces final : public distx::detail::control::ControlTransport {
 public:
  void submit(distx::detail::control::Frame frame) override {
    sent = std::move(frame);
    (void)inbox.deliver(
        {{.kind = distx::detail::control::FrameKind::regrouped, .rank = 1, .size = 3, .local_size = 1}});
  }
  void leave(bool, bool, const distx::Timeout&) override {}

  distx::detail::control::Frame sent;
};

/// Where two ranks meet, and by `grow` a third one.
class ThreeMeet final : public distx::detail::control::ControlRoot {
  using Frame = distx::detail::control::Frame;
  using FrameKind = distx::detail::control::FrameKind;

 public:
  ThreeMeet() : ControlRoot("toy", 2, true) {
    for (const std::size_t rank : {0u, 1u}) ranks_[rank] = here(inboxes_[rank]);
    welcome();
  }
  void enter(int rank, const std::string& call) { REQUIRE(take(rank, {{.kind = FrameKind::call}, call})); }
  /// Enters `shrink` of a group.
  void enter_shrink(int rank, std::uint64_t group) {
    REQUIRE(take(rank, {{.kind = FrameKind::shrink, .identity = group}}));
  }
  /// Returns what a rank has received, which is its reply or its next group.
  Frame received(int rank) {
    return inboxes_[rank].await(distx::detail::control::Awaited::reply, {}, {}).value_or(Frame());
  }

 private:
  static distx::detail::control::RankRecord here(distx::detail::control::Inbox& inbox) {
    return {.presence = distx::detail::control::RankRecord::Presence::here, .channel = &inbox};
  }
  std::optional<Frame> grow(Frame) override {
    for (auto& rank : ranks_) rank.part.reset();
    ranks_.push_back(here(inboxes_[2]));
    announce_group();
    return std::nullopt;
  }

  distx::detail::control::Inbox inboxes_[3];
};

TEST_CASE("a rank that gives up grow and enters shrink is in the larger group that was made meanwhile") {
  using distx::detail::control::FrameKind;
  ThreeMeet root;
  const auto two = root.received(1);
  for (const int rank : {0, 1}) root.enter(rank, "grow");
  root.enter_shrink(1, two.identity);
  const auto three = root.received(1);
  CHECK(three.size == 3);
  CHECK(three.identity != two.identity);
  for (const int rank : {0, 2}) CHECK(root.received(rank).size == 3);
  for (const int rank : {0, 1, 2}) root.enter(rank, "barrier");
  for (const int rank : {0, 1, 2}) CHECK(root.received(rank).kind == FrameKind::result);
  root.enter_shrink(1, three.identity);
  root.enter(0, "barrier");
  CHECK(root.received(0).text == "rank 1 of 3 has entered shrink and will not enter this call");
}

TEST_CASE("a call other than grow throws RevokedError if its group has been replaced by another") {
  namespace control = distx::detail::control;
  const auto transport = std::make_shared<Replaces>();
  const auto group = std::make_shared<control::ControlGroup>(
      "toy", seconds(5), control::FrameFields{.rank = 1, .size = 2, .local_size = 1, .identity = 7}, transport);
  CHECK_THROWS_WITH_AS(group->barrier(), doctest::Contains("rank 0 has replaced this group by one of 3 ranks"),
                       distx::RevokedError);
  CHECK_THROWS_AS(group->barrier(), distx::RevokedError);
  CHECK(group->shrink(seconds(5))->size() == 3);
  CHECK(transport->sent.identity == 7);  // of the group that it leaves
}

TEST_CASE("threads, and a program alone, grow to an equal connector") {
  distx::AnyConnector alone{distx::SelfConnector()};
  CHECK(alone.grow().size() == 1);
  distx::spawn(2, [](distx::ThreadConnector& connector) {
    distx::AnyConnector any(connector);
    auto both = any.grow();
    check_ranks(both, connector.rank(), {0, 1});
  });
}

}  // namespace
