// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory of the user that becomes communicator memory in place.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "comm/outcomes.hpp"
#include "distx/comm/decorators/metered.hpp"
#include "distx/comm/hierarchical.hpp"
#include "shm/forked.hpp"
#include "shm/pages.hpp"
#include "shm/system.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::ShmCommunicator;
using test::Pages;

float value(int rank, std::size_t i) { return static_cast<float>((static_cast<std::size_t>(rank) * 31 + i) % 1009); }

void fill(distx::Span<float> values, int rank) {
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = value(rank, i);
}
bool holds(distx::Span<float> values, int rank) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (values[i] != value(rank, i)) return false;
  return true;
}
/// Returns whether every element is the sum of those with which `fill` has set it on `ranks` ranks.
bool holds_sum(distx::Span<float> values, int ranks) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += value(rank, i);
    if (values[i] != sum) return false;
  }
  return true;
}

/// Returns the error that adopting memory throws.
template <class C, class Memory>
test::Outcome refused(C& comm, Memory&& memory) {
  return test::outcome_of([&] { static_cast<void>(comm.adopt(memory)); });
}

// Pages of the heap, and pages that the allocator has mapped.
constexpr std::size_t element_counts[] = {1024, 3 * 1024, 700 * 1024};

TEST_CASE("adopted memory keeps its address and values, is shared until the handle is destroyed, and is private then") {
  for (const int ranks : {1, 2, 3})
    for (const std::size_t count : element_counts) {
      CAPTURE(ranks);
      CAPTURE(count);
      const auto ended = test::forked(ranks, [&](test::ForkedConnector& connector, test::Board&) {
        Comm comm(connector, 60s);
        const Pages<float> pages(count);
        const auto memory = pages.span();
        for (int round = 0; round < 3; ++round) {
          fill(memory, comm.rank());
          {
            const auto adopted = comm.adopt(memory);
            if (adopted.data() != memory.data() || adopted.size() != memory.size()) return 1;
            if (test::permissions(memory.data()) != "rw-s") return 2;
            if (test::permissions(memory.end() - 1) != "rw-s") return 3;
            if (!holds(memory, comm.rank())) return 4;
            distx::all_reduce(comm, memory, distx::sum);
            if (!holds_sum(memory, ranks)) return 5;
          }
          if (test::permissions(memory.data()) != "rw-p") return 6;
          if (test::permissions(memory.end() - 1) != "rw-p") return 7;
          if (!holds_sum(memory, ranks)) return 8;
          distx::all_reduce(comm, memory, distx::max);  // as memory of the user again
          if (!holds_sum(memory, ranks)) return 9;
        }
        return 0;
      });
      CHECK(ended == std::vector<int>(static_cast<std::size_t>(ranks), 0));
    }
}

/// Returns the KiB in memory of the mappings that begin at `begins`.
std::size_t resident_kib(const std::set<std::string>& begins) {
  std::ifstream maps("/proc/self/smaps");
  std::size_t sum = 0;
  bool counts = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with("Rss:"))
      sum += counts ? std::stoul(line.substr(4)) : 0;
    else if (const auto dash = line.find('-'); dash != std::string::npos && line.find(':') > dash)
      counts = begins.contains(line.substr(0, dash));
  }
  return sum;
}
/// Returns the begins of the segments that this process maps.
std::set<std::string> segments() {
  std::ifstream maps("/proc/self/maps");
  std::set<std::string> begins;
  for (std::string line; std::getline(maps, line);)
    if (line.find("/memfd:distx") != std::string::npos) begins.insert(line.substr(0, line.find('-')));
  return begins;
}

TEST_CASE("calls on adopted memory do not copy through staging buffers") {
  const auto ended = test::forked(2, [](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    const auto control = segments();
    const int other = 1 - comm.rank();
    const Pages<float> first(2 << 20), second(2 << 20), small(first.page);
    const auto use = [&] {
      const auto a = first.span(), b = second.span();
      fill(a, comm.rank());
      distx::all_reduce(comm, a, b, distx::sum);
      if (!holds_sum(b, 2)) throw std::logic_error("wrong sum");
      distx::all_reduce(comm, b, distx::max);
      distx::reduce(comm, a, b, distx::sum, 1);
      distx::broadcast(comm, b, 1);
      distx::reduce_scatter(comm, a, b.first(b.size() / 2), distx::sum);
      distx::all_gather(comm, a.first(a.size() / 2), b);
      distx::all_to_all(comm, a, b);
      distx::gather(comm, a.first(a.size() / 2), b, 0);
      distx::scatter(comm, b, a.first(a.size() / 2), 0);
      distx::start_all_reduce(comm, a, distx::sum).wait();
      distx::send_receive(comm, a, other, b, other);
    };
    distx::all_reduce(comm, small.span().first(100), distx::sum);
    const auto before = resident_kib(control);
    {
      const auto a = comm.adopt(first.span()), b = comm.adopt(second.span());
      const auto adopted = resident_kib(control);
      use();
      if (resident_kib(control) >= adopted + 128 || adopted >= before + 128) return 1;
    }
    use();
    return resident_kib(control) >= before + 256 ? 0 : 2;  // a staging buffer has 256 KiB
  });
  CHECK(ended == std::vector<int>{0, 0});
}

/// Pages that are mapped in a certain way.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int file = -1)
      : mapping_(distx::detail::posix::Mapping::from_native_handle(
            {::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, file, 0), bytes})) {
    if (data() == MAP_FAILED) throw std::bad_alloc();
  }
  [[nodiscard]] void* data() const noexcept { return mapping_.native_handle().address; }
  [[nodiscard]] distx::Span<float> span() const noexcept {
    return {static_cast<float*>(data()), mapping_.native_handle().bytes / sizeof(float)};
  }

 private:
  distx::detail::posix::Mapping mapping_;
};

/// Locks a page; a system call, because the address sanitizer makes mlock do nothing.
long lock(const Mapping& mapping) { return ::syscall(SYS_mlock, mapping.data(), std::size_t{4096}); }

/// Checks that every rank throws the error if rank 1 of 3 adopts `odd(comm)`, that no memory changes, and that the
/// communicator remains usable.
template <class Odd>
void check_refused(const std::string& type, const std::string& reason, const Odd& odd) {
  CAPTURE(reason);
  std::vector<test::Outcome> all(3);
  distx::spawn(distx::threads(3, 1min), [&](distx::ThreadConnector& connector) {
    Comm comm(connector, 1min);
    const auto rank = static_cast<std::size_t>(comm.rank());
    const Pages<float> pages(1024);
    fill(pages.span(), comm.rank());
    all[rank] = refused(comm, rank == 1 ? odd(pages.span()) : pages.span());
    if (!holds(pages.span(), comm.rank())) all[rank] = {"contents", "have changed"};
    if (test::permissions(pages.span().data()) != "rw-p") all[rank] = {"pages", "are shared"};
    distx::all_reduce(comm, pages.span(), distx::sum);
    if (!holds_sum(pages.span(), 3)) all[rank] = {"sum", "is wrong"};
    const auto adopted = comm.adopt(pages.span());
  });
  CHECK_MESSAGE(test::all_say(all, type, reason), test::text_of(all));
  for (const std::size_t rank : {0u, 2u}) CHECK(all[rank].says("adopt on rank"));
  if (type == "InvalidArgument")
    for (const std::size_t rank : {0u, 2u}) CHECK_MESSAGE(all[rank].says(": rank 1: the memory"), test::text_of(all));
}

TEST_CASE("memory that cannot be shared is refused on every rank, with the reason, and the communicator stays usable") {
  using Memory = distx::Span<float>;
  const std::string type = "InvalidArgument";
  check_refused(type, "the memory has 4096 bytes and begins 16 bytes into a page, and must consist of whole pages",
                [held = std::make_shared<Pages<float>>(2048)](Memory) { return held->span().subspan(4, 1024); });

  const Mapping shared(4096, MAP_SHARED | MAP_ANONYMOUS);
  check_refused(type, "its pages are shared already", [&](Memory) { return shared.span(); });
  const auto program = distx::detail::posix::open_file("/proc/self/exe");
  const Mapping file(4096, MAP_PRIVATE, program.native_handle());
  check_refused(type, "its pages belong to a file, /", [&](Memory) { return file.span(); });
  const Mapping locked(4096);
  REQUIRE(lock(locked) == 0);
  check_refused(type, "its pages are locked", [&](Memory) { return locked.span(); });
  const Mapping constant(4096);
  REQUIRE(::mprotect(constant.data(), 4096, PROT_READ) == 0);
  check_refused(type, "its pages are not readable and writable", [&](Memory) { return constant.span(); });
  const Mapping registered(4096);
  REQUIRE(::madvise(registered.data(), 4096, MADV_DONTFORK) == 0);
  check_refused(type, "its pages are excluded from fork", [&](Memory) { return registered.span(); });
}

TEST_CASE("memory that is not mapped, adopted, allocated, or another rank's in the same process is refused") {
  std::vector<test::Outcome> all(2);
  const auto check = [&](const std::string& type, const std::string& reason, const auto& choose) {
    CAPTURE(reason);
    distx::spawn(distx::threads(2, 1min), [&](distx::ThreadConnector& connector) {
      Comm comm(connector, 1min);
      all[static_cast<std::size_t>(comm.rank())] = choose(comm);
      distx::barrier(comm);
    });
    CHECK_MESSAGE(test::all_say(all, type, reason), test::text_of(all));
  };
  for (const std::size_t hole : {0u, 1u, 2u})
    check("InvalidArgument", "the memory cannot be adopted: not all of it is mapped", [&](Comm& comm) {
      // Between other pages, so that no other thread maps the hole.
      const Mapping mapping(5 * 4096);
      const auto pages = mapping.span().subspan(1024, 3 * 1024);
      if (comm.rank() == 1) ::munmap(pages.data() + hole * 1024, 4096);
      return refused(comm, pages);
    });
  for (const std::size_t elements : {0u, 512u, 1023u})
    check("InvalidArgument", "the memory has " + std::to_string(elements * 4) + " bytes and begins 0 bytes into",
          [&](Comm& comm) {
            const Pages<float> pages(1024);
            return refused(comm, pages.span().first(elements));
          });
  const Pages<float> common(3 * 1024);
  check("InvalidArgument", "the memory overlaps that of rank",
        [&](Comm& comm) { return refused(comm, common.span().subspan(comm.rank() == 0 ? 0 : 1024, 2048)); });
  check("InvalidArgument", "its pages are shared already", [](Comm& comm) {
    const Pages<float> pages(4096);
    const auto adopted = comm.adopt(pages.span().subspan(1024, 1024));
    auto group = comm.split(0, 0);
    static_cast<void>(refused(group, pages.span()));
    return refused(comm, pages.span());
  });
  check("InvalidArgument", "its pages are shared already", [](Comm& comm) {
    const auto memory = comm.allocate<float>(4096);  // its page begins somewhere within
    const auto begin = (4096 - reinterpret_cast<std::uintptr_t>(memory.data()) % 4096) % 4096 / sizeof(float);
    return refused(comm, memory.span().subspan(begin, 1024));
  });
  check("MismatchError", "bytes, this rank", [](Comm& comm) {
    const Pages<float> pages(4096);
    return refused(comm, pages.span().first(comm.rank() == 0 ? 2048 : 4096));
  });
  check("another error", "bytes available", [](Comm& comm) {
    const Mapping huge(std::size_t{1} << 42, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE);
    return refused(comm, huge.span());
  });
}

TEST_CASE("if one rank cannot map the shared pages, every rank's memory is as before") {
  for (const int unlucky : {0, 1, 2}) {
    CAPTURE(unlucky);
    const auto ended = test::forked(3, [&](test::ForkedConnector& connector, test::Board&) {
      Comm comm(connector, 60s);
      const Pages<float> pages(2 << 20);
      const auto memory = pages.span();
      fill(memory, comm.rank());
      rlimit before{};
      ::getrlimit(RLIMIT_AS, &before);
      if (comm.rank() == unlucky) {
        // Enough for the segment of three parts, and not for the second mapping of one part.
        const rlim_t room = (test::memory_kib("VmSize") << 10) + 3 * memory.size_bytes() + (2 << 20);
        const rlimit limit{room, before.rlim_max};
        ::setrlimit(RLIMIT_AS, &limit);
      }
      static_cast<void>(refused(comm, memory));  // the first error makes the allocator map more
      const auto files = test::open_files(), mappings = test::mappings();
      const auto outcome = refused(comm, memory);
      ::setrlimit(RLIMIT_AS, &before);
      if (!outcome.says("cannot map shared memory of 8388608 bytes: Cannot allocate memory")) return 1;
      if (outcome.says("rank " + std::to_string(unlucky) + ": cannot") == (comm.rank() == unlucky)) return 2;
      if (test::permissions(memory.data()) != "rw-p" || test::permissions(memory.end() - 1) != "rw-p") return 3;
      if (!holds(memory, comm.rank())) return 4;
      if (test::open_files() != files || test::mappings() > mappings + 2) return 5;
      const auto adopted = comm.adopt(memory);
      distx::all_reduce(comm, memory, distx::sum);
      return holds_sum(memory, 3) ? 0 : 6;
    });
    CHECK(ended == std::vector<int>{0, 0, 0});
  }
}

TEST_CASE("the memory of the surviving ranks stays readable after a rank is killed, and is private after release") {
  const auto named = test::shared_names();
  const auto ended = test::forked(3, [](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    const Pages<float> pages(300 * 1024);
    const auto memory = pages.span();
    fill(memory, comm.rank());
    {
      const auto adopted = comm.adopt(memory);
      distx::all_reduce(comm, memory, distx::sum);
      distx::barrier(comm);
      if (comm.rank() == 1) ::raise(SIGKILL);
      if (test::outcome_of([&] { distx::all_reduce(comm, memory, distx::max); }).type != "RankFailure") return 1;
      if (!holds_sum(memory, 3)) return 2;
      fill(memory, comm.rank());
    }
    if (test::permissions(memory.data()) != "rw-p") return 3;
    return holds(memory, comm.rank()) ? 0 : 4;
  });
  CHECK(ended == std::vector<int>{0, 1000 + SIGKILL, 0});
  CHECK(test::shared_names() == named);
}

/// Stops its process in the middle of a reduction, once, if that is asked for.
std::atomic<bool> stops{false};
struct StoppingSum {
  float operator()(float a, float b) const {
    if (stops.exchange(false)) ::raise(SIGSTOP);
    return a + b;
  }
};

TEST_CASE("a rank that continues after the others have given up does not write to their adopted memory") {
  const auto ended = test::forked(2, [](test::ForkedConnector& connector, test::Board& board) {
    Comm comm(connector, 5s);
    const Pages<float> pages(300 * 1024);
    const auto memory = pages.span();
    fill(memory, comm.rank());
    auto adopted = comm.adopt(memory);
    if (comm.rank() == 1) {
      stops = true;
      board.steps = static_cast<int>(::getpid());
    }
    connector.barrier();
    const auto outcome = test::outcome_of([&] { distx::all_reduce(comm, memory, StoppingSum{}); });
    if (comm.rank() == 1) {  // has perhaps completed the call, which rank 0 has joined
      connector.barrier();
      return test::outcome_of([&] { distx::barrier(comm); }).type == "done" ? 1 : 0;
    }
    if (outcome.type != "TimeoutError") return 2;
    if (test::permissions(memory.data()) != "rw-p") return 3;
    fill(memory, 5);
    ::kill(board.steps, SIGCONT);
    connector.barrier();
    if (!holds(memory, 5)) return 4;
    adopted = {};
    return holds(memory, 5) ? 0 : 5;
  });
  CHECK(ended == std::vector<int>{0, 0});
}

TEST_CASE("memory that is adopted a thousand times leaves files, mappings and memory unchanged") {
  const auto named = test::shared_names();
  const auto ended = test::forked(2, [](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    const Pages<float> pages(64 * 1024);
    fill(pages.span(), comm.rank());
    const auto round = [&] {
      const auto adopted = comm.adopt(pages.span());
      distx::all_reduce(comm, adopted, distx::max);
    };
    for (int i = 0; i < 20; ++i) round();
    distx::barrier(comm);
    const auto files = test::open_files(), mappings = test::mappings(), memory = test::memory_kib("VmRSS");
    for (int i = 0; i < 1000; ++i) round();
    distx::barrier(comm);
    if (test::open_files() != files) return 1;
    if (test::mappings() > mappings + 8) return 2;  // the segments of the latest rounds, until both ranks released them
    if (test::memory_kib("VmRSS") > memory + 65536)
      return 3;  // a sanitizer keeps freed memory; a thousand copies have 250 MiB
    return 0;
  });
  CHECK(ended == std::vector<int>{0, 0});
  CHECK(test::shared_names() == named);
}

// The system puts a page on the NUMA node of the process that touches it first.
TEST_CASE("each rank touches the pages of its part first: no other rank has touched them before it writes") {
  const auto ended = test::forked(2, [](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    constexpr std::size_t bytes = 16 << 20;
    const auto rank = static_cast<std::size_t>(comm.rank());
    const Pages<float> pages(bytes / sizeof(float));
    std::vector<std::shared_ptr<void>> kept;  // freed memory is unmapped later
    const auto touches_own = [&](const auto& make) {
      const auto before = test::memory_kib("RssShmem");
      kept.push_back(std::make_shared<decltype(make())>(make()));
      distx::barrier(comm);
      const auto touched = test::memory_kib("RssShmem") - before;  // pages of segments that this process has touched
      distx::barrier(comm);
      return touched >= bytes / 1024 && touched < bytes / 1024 + 1024;
    };
    if (!touches_own([&] { return comm.allocate<std::byte>(bytes); })) return 1;
    if (!touches_own([&] { return comm.adopt(pages.span()); })) return 2;
    if (!touches_own([&] { return comm.allocate_common(2 * bytes, {{rank * bytes, bytes}}); })) return 3;
    return 0;
  });
  CHECK(ended == std::vector<int>{0, 0});
}

TEST_CASE("memory may be released in any order, after the communicator, and by one rank before the others") {
  distx::spawn(distx::threads(3, 1min), [](distx::ThreadConnector& connector) {
    const Pages<float> first(2048), second(2048);
    distx::CommunicatorMemory<float> kept;
    {
      Comm comm(connector, 1min);
      auto a = comm.adopt(first.span());
      kept = comm.adopt(second.span());
      fill(first.span(), comm.rank());
      fill(second.span(), comm.rank());
      if (comm.rank() == 1) a = {};  // and reduces from private memory while the others reduce in place
      distx::all_reduce(comm, first.span(), distx::sum);
      CHECK(holds_sum(first.span(), 3));
      const auto again = comm.rank() == 1 ? std::move(a) : distx::CommunicatorMemory<float>();
      distx::barrier(comm);
    }
    CHECK(holds(second.span(), connector.rank()));
    kept = {};
    CHECK(holds(second.span(), connector.rank()));
    CHECK(test::permissions(second.span().data()) == "rw-p");
  });
}

/// Adopts memory through any communicator, uses it and releases it.
template <class C>
void check_adopts(C& comm, bool shares) {
  const Pages<float> pages(8192);
  const auto memory = pages.span();
  fill(memory, comm.rank());
  {
    const distx::CommunicatorMemory<float> adopted = comm.adopt(memory);
    CHECK(adopted.data() == memory.data());
    CHECK(adopted.size() == memory.size());
    CHECK(test::permissions(memory.data()) == (shares ? "rw-s" : "rw-p"));
    distx::all_reduce(comm, memory, distx::sum);
    CHECK(holds_sum(memory, comm.size()));
  }
  CHECK(test::permissions(memory.data()) == "rw-p");
  CHECK(holds_sum(memory, comm.size()));
  std::vector<std::uint8_t> any(100);
  if (!shares) CHECK(comm.adopt(any).data() == any.data());  // ranks of one address space need no whole pages
}

TEST_CASE(
    "every communicator of host memory adopts memory: shared memory, threads, one rank, any, wrapped, two levels") {
  distx::SelfConnector self;
  distx::SerialCommunicator serial(self);
  check_adopts(serial, false);
  distx::spawn(distx::threads(4, 1min), [](distx::ThreadConnector& connector) {
    Comm comm(connector, 1min);
    distx::ThreadCommunicator threads(connector);
    check_adopts(comm, true);
    check_adopts(threads, false);
    distx::AnyCommunicator<> any(comm.share());
    check_adopts(any, true);
    distx::Metered<Comm> metered(comm.share());
    check_adopts(metered, true);
    distx::AnyCommunicator<> any_metered(metered.share());
    check_adopts(any_metered, true);
    auto group = comm.split(comm.rank() % 2, 0);
    check_adopts(group, true);
    distx::Hierarchical<Comm, distx::ThreadCommunicator> levels(comm.split(comm.rank() / 2, 0), threads.share());
    check_adopts(levels, true);
    // One host refuses, and the other has adopted its memory already.
    const Pages<float> pages(8192);
    fill(pages.span(), comm.rank());
    const Mapping locked(8192 * sizeof(float));
    if (comm.rank() == 1) lock(locked);
    const auto outcome = refused(levels, comm.rank() == 1 ? locked.span() : pages.span());
    CHECK(outcome.type == "InvalidArgument");
    CHECK_MESSAGE(outcome.says("its pages are locked"), outcome.words);
    CHECK(test::permissions(pages.span().data()) == "rw-p");
    CHECK(holds(pages.span(), comm.rank()));
    const auto mismatch = refused(levels, pages.span().first(comm.rank() == 3 ? 4096 : 8192));
    CHECK_MESSAGE(mismatch.says(comm.rank() == 3 ? "rank 0 adopts 32768 bytes, this rank 16384"
                                                 : "rank 3 adopts 16384 bytes, this rank 32768"),
                  mismatch.words);
    check_adopts(levels, true);
  });
}

}  // namespace
