// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The NUMA nodes of shared pages, with a fake topology: each rank is assigned to a node, and a page is on the node of
// the rank that touches it first, as under the system's default policy. A page that one process only has in its page
// table was touched first by that process.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <sstream>

#include "distx/shm/detail/segment_region.hpp"
#include "needs.hpp"
#include "shm/forked.hpp"
#include "shm/pages.hpp"

namespace {

using namespace std::chrono_literals;
using Comm = distx::ShmCommunicator;
namespace shared_memory = distx::detail::shared_memory;
namespace shm = distx::detail::shm;

constexpr int rank_count = 4;
constexpr std::size_t page = 4096, part_bytes = 16 * page;
using Nodes = std::array<int, rank_count>;
constexpr Nodes topologies[]{{0, 0, 1, 1}, {0, 1, 0, 1}};

/// Returns, for each page of this process from an address on, whether it is in the page table; nothing if /proc does
/// not show it.
std::vector<char> present(std::uintptr_t begin, std::size_t pages) {
  const auto file = distx::detail::posix::open_file("/proc/self/pagemap");
  std::vector<std::uint64_t> entries(pages);
  const std::size_t bytes = pages * sizeof(std::uint64_t), offset = begin / page * sizeof(std::uint64_t);
  if (::pread(file.native_handle(), entries.data(), bytes, static_cast<off_t>(offset)) != static_cast<ssize_t>(bytes))
    return {};
  std::vector<char> all;
  for (const std::uint64_t entry : entries) all.push_back((entry >> 62) != 0 ? 1 : 0);  // in memory, or swapped out
  return all;
}

/// Whether the system shows which pages a process has touched, and has shared memory in pages that it touches one by
/// one.
bool shows_pages() {
  std::string huge;
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), huge);
  if (huge.find("[always]") != std::string::npos || huge.find("[force]") != std::string::npos) return false;
  void* const memory = ::mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  const auto mapping = distx::detail::posix::Mapping::from_native_handle({memory, 3 * page});
  auto* const bytes = static_cast<std::byte*>(memory);
  constexpr int populate_write = 23;
  if (::madvise(bytes + page, page, populate_write) != 0) return false;
  return present(reinterpret_cast<std::uintptr_t>(memory), 3) == std::vector<char>{0, 1, 0};
}
constexpr const char* needed = "a readable /proc/self/pagemap, MADV_POPULATE_WRITE and shared memory in small pages";

/// The pages of a segment that this process has touched, through any mapping.
struct Touched {
  std::vector<char> pages;
  std::size_t offset = 0;  ///< of the given address in the segment, in bytes
};

/// @pre the address is mapped from a segment
Touched touched(const void* address) {
  struct MappedPart {
    std::uintptr_t begin = 0, end = 0;
    std::size_t offset = 0;
    std::string file;
  };
  std::vector<MappedPart> all;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    MappedPart mapping;
    char dash = 0;
    std::string permitted, device;
    fields >> std::hex >> mapping.begin >> dash >> mapping.end >> permitted >> mapping.offset >> device >> mapping.file;
    if (line.find("/memfd:distx") != std::string::npos) all.push_back(mapping);
  }
  Touched result;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const MappedPart& its : all) {
    if (at < its.begin || at >= its.end) continue;
    result.offset = its.offset + (at - its.begin);
    for (const MappedPart& mapping : all) {
      if (mapping.file != its.file) continue;
      const auto here = present(mapping.begin, (mapping.end - mapping.begin) / page);
      const std::size_t first = mapping.offset / page;
      result.pages.resize(std::max(result.pages.size(), first + here.size()));
      for (std::size_t i = 0; i < here.size(); ++i) result.pages[first + i] |= here[i];
    }
    break;
  }
  return result;
}

/// The pages of a segment: where each rank's part begins, and which ranks have touched each page.
struct Segment {
  std::vector<std::size_t> begin;
  std::vector<std::vector<int>> touchers;

  /// Returns the node of a page, or -1 if it is not known which rank has touched it first.
  [[nodiscard]] int node(std::size_t index, const Nodes& nodes) const {
    return touchers[index].size() == 1 ? nodes[static_cast<std::size_t>(touchers[index].front())] : -1;
  }
};

/// Exchanges what each rank has touched of the segment in which its part is. Collective.
Segment all_touched(test::ForkedConnector& connector, const void* part) {
  const Touched mine = touched(part);
  connector.barrier();  // no rank accesses the segment before
  Segment segment;
  segment.begin = distx::all_gather_values(connector, mine.offset);
  const auto sizes = distx::all_gather_values(connector, mine.pages.size());
  const std::size_t pages = *std::max_element(sizes.begin(), sizes.end());
  std::vector<char> own = mine.pages, all(pages * rank_count);
  own.resize(pages);
  connector.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  segment.touchers.resize(pages);
  for (std::size_t rank = 0; rank < rank_count; ++rank)
    for (std::size_t i = 0; i < pages; ++i)
      if (all[rank * pages + i] != 0) segment.touchers[i].push_back(static_cast<int>(rank));
  return segment;
}

/// Returns the first page that a rank has touched in another one's part, or that is not on the node of its part's rank;
/// -1 if there is none. Parts may share the pages at their ends.
int misplaced(const Segment& segment, const Nodes& nodes) {
  for (std::size_t i = 0; i < segment.touchers.size(); ++i)
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      const std::size_t begin = segment.begin[rank], end = begin + part_bytes;
      const bool whole = begin <= i * page && (i + 1) * page <= end;
      if (!whole) continue;
      if (segment.touchers[i] != std::vector<int>{static_cast<int>(rank)} || segment.node(i, nodes) != nodes[rank])
        return static_cast<int>(i);
    }
  return -1;
}

/// Runs `body(connector, comm)`, which returns a part of this rank, on every rank and checks the pages of all parts.
template <class Body>
void check_parts(Body&& body) {
  for (const Nodes& nodes : topologies) {
    const auto ended = test::forked(rank_count, [&](test::ForkedConnector& connector, test::Board&) {
      Comm comm(connector, 60s);
      const auto kept = body(comm);
      const Segment segment = all_touched(connector, kept.address);
      if (segment.touchers.size() < rank_count * part_bytes / page) return 1;
      const int wrong = misplaced(segment, nodes);
      if (wrong >= 0 && comm.rank() == 0) {
        std::cerr << "page " << wrong << " was touched by ranks";
        for (const int rank : segment.touchers[static_cast<std::size_t>(wrong)]) std::cerr << ' ' << rank;
        std::cerr << std::endl;
      }
      return wrong < 0 ? 0 : 2;
    });
    CHECK(ended == std::vector<int>(rank_count, 0));
  }
}

template <class Owner>
struct Part {
  const void* address;
  Owner owner;
};

TEST_CASE("memory that is allocated is on the node of its rank, page by page" * test::Needs(needed, shows_pages)) {
  check_parts([](Comm& comm) {
    auto memory = comm.allocate<std::byte>(part_bytes);
    const void* const begin = memory.data();
    return Part<decltype(memory)>{begin, std::move(memory)};
  });
}

TEST_CASE("memory that is adopted is on the node of its rank, page by page" * test::Needs(needed, shows_pages)) {
  check_parts([](Comm& comm) {
    struct Owner {
      test::Pages<std::byte> pages{part_bytes};
      distx::CommunicatorMemory<std::byte> adopted;
    };
    auto owner = std::make_unique<Owner>();
    owner->adopted = comm.adopt(owner->pages.span());
    const void* const begin = owner->adopted.data();
    return Part<std::unique_ptr<Owner>>{begin, std::move(owner)};
  });
}

TEST_CASE("each part of common memory is on the node of its rank, page by page" * test::Needs(needed, shows_pages)) {
  check_parts([](Comm& comm) {
    const std::size_t begin = static_cast<std::size_t>(comm.rank()) * part_bytes;
    auto common = comm.allocate_common(rank_count * part_bytes, {{begin, part_bytes}});
    const void* const part = common->span.data() + begin;
    return Part<decltype(common)>{part, std::move(common)};
  });
}

TEST_CASE("rank 0 makes common memory without touching it" * test::Needs(needed, shows_pages)) {
  const auto ended = test::forked(1, [](test::ForkedConnector&, test::Board&) {
    const auto control = shm::SegmentRegion::make_control(rank_count);
    const auto region = std::make_shared<shm::SegmentRegion>(control.segment, 0, rank_count, 60s);
    std::shared_ptr<void> keep;
    const auto segment = shm::SharedSegment::find(shm::name_of(region->make_common(rank_count * part_bytes, {}, keep)));
    std::vector<unsigned char> in_memory(rank_count * part_bytes / page, 1);
    if (::mincore(segment->data(), segment->size(), in_memory.data()) != 0) return 1;
    return in_memory == std::vector<unsigned char>(in_memory.size(), 0) ? 0 : 2;
  });
  CHECK(ended == std::vector<int>{0});
}

/// The layout of a communicator's control segment in this process.
shared_memory::SharedLayout layout_at(std::byte* base) {
  return {base, rank_count, shm::SegmentRegion::extent_for(rank_count)};
}

/// Returns whether every page of `bytes` bytes from an address on has been touched, or none, as `expected` says.
bool all_are(const Touched& segment, const std::byte* base, const std::byte* begin, std::size_t bytes, bool expected) {
  const auto first = static_cast<std::size_t>(begin - base);
  for (std::size_t i = first / page; i < (first + bytes + page - 1) / page; ++i)
    if ((segment.pages[i] != 0) != expected) return false;
  return true;
}

TEST_CASE("rank 0 touches published calls, mailboxes and the states of slots first, and no staging buffer" *
          test::Needs(needed, shows_pages)) {
  const auto ended = test::forked(1, [](test::ForkedConnector&, test::Board&) {
    const auto made = shm::SegmentRegion::make_control(rank_count);
    std::byte* const base = made.segment->data();
    const auto layout = layout_at(base);
    const Touched segment = touched(base);
    for (int rank = 0; rank < rank_count; ++rank) {
      for (const auto queue : {shared_memory::CallQueue::blocking, shared_memory::CallQueue::started}) {
        for (std::uint64_t call = 1; call <= layout.ring(); ++call)
          if (!all_are(segment, base, reinterpret_cast<const std::byte*>(&layout.published(rank, queue, call)),
                       sizeof(shared_memory::PublishedCall), true))
            return 1;
        for (const std::size_t round : {0u, 1u})
          if (!all_are(segment, base, layout.staging(rank, queue, round) + page,
                       layout.extent().staging_bytes - 2 * page, false))
            return 2;
      }
      if (!all_are(segment, base, layout.mailbox(rank), 1, true)) return 3;
      for (int other = 0; other < rank_count; ++other)
        if (!all_are(segment, base, layout.pair(rank, other), 1, true)) return 4;
    }
    return 0;
  });
  CHECK(ended == std::vector<int>{0});
}

/// Returns where this process maps its only segment.
std::byte* only_segment() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("/memfd:distx") != std::string::npos)
      return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(std::stoull(line, nullptr, 16)));
  return nullptr;
}

TEST_CASE("each rank touches its own staging buffer first, and no other one before all have staged" *
          test::Needs(needed, shows_pages)) {
  const auto ended = test::forked(rank_count, [&](test::ForkedConnector& connector, test::Board&) {
    Comm comm(connector, 60s);
    std::byte* const base = only_segment();
    const auto layout = layout_at(base);
    const std::size_t bytes = layout.extent().staging_bytes, slice = bytes / rank_count;
    std::vector<float> values(bytes / sizeof(float), 1.0f);
    const int me = comm.rank(), last = rank_count - 1;
    // A rank reduces its slice from its own memory, so that it does not stage it.
    const auto staged = [&](int rank, bool expected) {
      const Touched segment = touched(base);
      std::byte* const buffer = layout.staging(rank, shared_memory::CallQueue::started, 0);
      for (int part = 0; part < rank_count; ++part)
        if (part != rank &&
            !all_are(segment, base, buffer + static_cast<std::size_t>(part) * slice + page, slice - 2 * page, expected))
          return false;
      return true;
    };
    distx::Pending<> pending;
    if (me != last) {
      pending = distx::start_all_reduce(comm, values, distx::sum);
      const auto end = distx::detail::wait_until(60s, [&] { return staged(me, true); }, [] { return false; });
      if (end != distx::detail::WaitEnd::ready) return 1;
    }
    connector.barrier();
    for (int rank = 0; rank < rank_count; ++rank)
      if ((rank != me || me == last) && !staged(rank, false)) return 2;
    connector.barrier();
    if (me == last) pending = distx::start_all_reduce(comm, values, distx::sum);
    pending.wait();
    return values == std::vector<float>(values.size(), rank_count) ? 0 : 3;
  });
  CHECK(ended == std::vector<int>(rank_count, 0));
}

}  // namespace
