// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <doctest/doctest.h>
#include <distx/parallel/detail/bucket/bucket_layout.hpp>
#include <distx/parallel/detail/memory/pool.hpp>

using distx::detail::Partition;

namespace {

/// Checks that shards are contiguous, in order, and cover the buffer.
void check_partition(const Partition& cut, std::size_t size, int parts) {
  std::size_t at = 0;
  for (int part = 0; part < parts; ++part) {
    CHECK(cut.begin(part) == at);
    CHECK(cut.end(part) == at + cut.size(part));
    CHECK(cut.counts()[static_cast<std::size_t>(part)] == cut.size(part));
    at = cut.end(part);
  }
  CHECK(at == size);
}

}  // namespace

TEST_CASE("Partition::at_lines covers the buffer, and shards differ by at most one line") {
  for (const int parts : {1, 2, 3, 4, 7, 64})
    for (const std::size_t element : {2u, 4u, 8u})
      for (const std::size_t size : {0u, 1u, 15u, 16u, 17u, 31u, 1000u, 12345u}) {
        const Partition cut = Partition::at_lines(size, element, parts);
        check_partition(cut, size, parts);
        const std::size_t line = 64 / element;
        for (int part = 0; part < parts; ++part) {
          CHECK((cut.begin(part) % line == 0 || cut.begin(part) == size));
          CHECK(cut.size(part) <= (size / static_cast<std::size_t>(parts) / line + 2) * line);
        }
      }
}

TEST_CASE("a parameter assigned whole is not split, and the largest shard is as small as that allows") {
  // Of float: a matrix, a vector, two matrices; each padded to lines of 16.
  const distx::detail::BucketLayout layout{
      distx::ElementType::f32, 4, 480, {{0, 0, 150}, {1, 160, 100}, {2, 272, 100}, {3, 384, 96}}, {}};
  const auto whole = [](std::size_t entry) { return entry != 1; };
  for (const int parts : {1, 2, 3, 4, 7}) {
    CAPTURE(parts);
    distx::detail::BalancedPartitioner partitioner(parts);
    std::vector<std::size_t> loads(static_cast<std::size_t>(parts));
    for (int run = 0; run < 5; ++run) {
      const Partition cut = partitioner.partition(layout, whole);
      check_partition(cut, 480, parts);
      for (int part = 0; part < parts; ++part) {
        loads[static_cast<std::size_t>(part)] += cut.size(part);
        const std::size_t begin = cut.begin(part);
        CHECK((begin == 0 || begin == 272 || begin == 384 || begin == 480 ||
               (begin >= 160 && begin < 272 && begin % 16 == 0)));
      }
      // No part has more than its share of all so far and one matrix.
      const std::size_t share = 480 * static_cast<std::size_t>(run + 1) / static_cast<std::size_t>(parts);
      CHECK(*std::max_element(loads.begin(), loads.end()) <= share + 160);
    }
  }
  distx::detail::BalancedPartitioner two(2);
  CHECK(two.partition(layout, whole).begin(1) == 240);  // as even as can be: in the vector
  const distx::detail::BucketLayout matrix{distx::ElementType::f32, 4, 160, {{0, 0, 150}}, {}};
  CHECK(two.partition(matrix, whole).size(0) == 160);
  CHECK(two.partition(matrix, whole).size(1) == 160);  // it is the other's turn
}

TEST_CASE("fragments of a layout are within one parameter and exclude padding") {
  distx::detail::BucketLayout layout{distx::ElementType::f32, 4, 64, {{7, 0, 5}, {8, 16, 17}, {9, 48, 1}}, {}};
  const auto all = layout.fragments(0, 64);
  CHECK(all.size() == 3);
  const auto some = layout.fragments(4, 32);
  CHECK(some.size() == 2);
  CHECK((some[0].entry == 7 && some[0].offset == 4 && some[0].at == 4 && some[0].size == 1));
  CHECK((some[1].entry == 8 && some[1].offset == 0 && some[1].at == 16 && some[1].size == 16));
  CHECK(layout.fragments(5, 16).empty());
}

TEST_CASE("a pool lends disjoint memory, merges gaps that are given back, and returns nothing when it is exhausted") {
  const auto account = std::make_shared<distx::detail::MemoryAccount>();
  distx::detail::MemoryPool<distx::Host> pool(account, distx::detail::allocate_tracked_local<distx::Host>(
                                                           account, distx::observe::MemoryKind::in_flight, 4 * 64));
  auto a = pool.take(100, {});
  auto b = pool.take(64, {});
  CHECK(a.span().size() == 100);
  auto* const begin = a.span().data();
  CHECK(b.span().data() == begin + 128);
  CHECK(pool.take(65, {}).empty());
  auto c = pool.take(64, {});
  CHECK(c.span().data() == begin + 192);
  b = {};
  CHECK(pool.take(65, {}).empty());
  a = {};
  CHECK(pool.take(192, {}).span().data() == begin);  // the two gaps are one again
  CHECK(account->ledger().in_flight.held == 256);
}
