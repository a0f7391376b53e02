// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <numeric>

#include "conformance/movement.hpp"

// Sub-communicators: by color and key, and by an explicit grouping.
namespace conformance {

/// Returns the ranks in `comm` of the members of `sub`, in the order of `sub`.
template <class C>
std::vector<int> members(C& sub, int rank_in_parent) {
  std::vector<int> all(static_cast<std::size_t>(sub.size()), -1);
  distx::all_gather(sub, rank_in_parent, all);
  return all;
}

template <class C>
void check_sub(C& sub, Findings& findings, int rank_in_parent, const std::vector<int>& expected,
               const std::string& what) {
  findings.same(members(sub, rank_in_parent), expected, "members, " + what);
  const auto place = std::find(expected.begin(), expected.end(), rank_in_parent) - expected.begin();
  findings.expect(sub.rank() == static_cast<int>(place), "rank, " + what);
  int total = rank_in_parent;
  distx::all_reduce(sub, total, distx::sum);
  findings.expect(total == std::accumulate(expected.begin(), expected.end(), 0), "sum, " + what);
  for (int root = 0; root < sub.size(); ++root) {
    int told = rank_in_parent;
    distx::broadcast(sub, told, root);
    findings.expect(told == expected[static_cast<std::size_t>(root)], "root " + std::to_string(root) + ", " + what);
  }
  float started = 1;
  auto pending = distx::start_all_reduce(sub, started, distx::sum);
  pending.wait();
  findings.expect(started == static_cast<float>(sub.size()), "started sum, " + what);
}

struct Splits {
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    const int me = comm.rank();
    std::vector<int> all(static_cast<std::size_t>(comm.size()));
    std::iota(all.begin(), all.end(), 0);
    auto same = comm.split(0, 0);
    check_sub(same, findings, me, all, "one colour, one key: by rank");
    auto reversed = comm.split(5, -me);
    check_sub(reversed, findings, me, std::vector<int>(all.rbegin(), all.rend()), "keys backwards");
    auto alone = comm.split(me, 0);
    check_sub(alone, findings, me, {me}, "a colour each");
    std::vector<int> parity;
    for (const int rank : all)
      if (rank % 2 == me % 2) parity.push_back(rank);
    auto halves = comm.split(me % 2, 0);
    check_sub(halves, findings, me, parity, "two colours");
    // Equal keys are ordered by rank.
    auto stable = all;
    std::stable_sort(stable.begin(), stable.end(), [](int a, int b) { return a % 2 > b % 2; });
    auto tied = comm.split(1, -(me % 2));
    check_sub(tied, findings, me, stable, "keys that tie");
    // A group of a group, while the parents are in use.
    auto nested = halves.split(0, -halves.rank());
    check_sub(nested, findings, me, std::vector<int>(parity.rbegin(), parity.rend()), "split twice");
    int total = 1;
    distx::all_reduce(comm, total, distx::sum);
    findings.expect(total == comm.size(), "the parent still works");
  }
};

struct NamedGroups {
  /// Returns the message of the error that `groups` throws here.
  template <class C>
  static std::string refusal(C& comm, const distx::Grouping& grouping) {
    try {
      auto group = distx::groups(comm, grouping);
      return "";
    } catch (const distx::InvalidArgument& error) {
      return error.what();
    }
  }
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    const int me = comm.rank();
    // Pairs in reverse order; with an odd number of ranks, the last one is in no group.
    distx::Grouping pairs;
    for (int rank = 0; rank + 1 < comm.size(); rank += 2) pairs.push_back({rank + 1, rank});
    const bool named = me / 2 < static_cast<int>(pairs.size());
    const auto mine = named ? pairs[static_cast<std::size_t>(me / 2)] : std::vector<int>{me};
    auto pair = distx::groups(comm, pairs);
    check_sub(pair, findings, me, mine, "pairs");
    auto again = distx::groups(comm, pairs);
    findings.expect(pair == again, "the same grouping asked twice is the same communicator");
    check_sub(again, findings, me, mine, "pairs again");

    distx::Grouping one{{}};
    for (int rank = comm.size() - 1; rank >= 0; --rank) one[0].push_back(rank);
    auto all = distx::groups(comm, one);
    check_sub(all, findings, me, one[0], "everyone backwards");
    findings.expect((all == pair) == (one == pairs), "another grouping is another communicator");
    auto nobody = distx::groups(comm, {});
    check_sub(nobody, findings, me, {me}, "nobody named");

    const std::string twice = refusal(comm, {{0}, {0}});
    findings.expect(twice.find("rank 0 is in the groups twice") != std::string::npos, "a rank named twice: " + twice);
    const std::string none = refusal(comm, {{0, comm.size()}});
    findings.expect(none.find("invalid rank " + std::to_string(comm.size())) != std::string::npos,
                    "a rank that is none: " + none);
  }
};

/// Tests handles, memory and workspace.
struct Handles {
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    auto other = comm.share();
    findings.expect(other == comm, "share() gives a handle on the same communicator");
    findings.expect(other.rank() == comm.rank() && other.size() == comm.size() && other.backend() == comm.backend(),
                    "share() keeps rank, size and backend");
    auto memory = comm.template allocate<float>(1000);
    findings.expect(memory.size() == 1000, "allocate(1000)");
    for (const float value : memory) findings.expect(value == 0, "communicator memory is zero at first");
    std::fill(memory.begin(), memory.end(), 1.0f);
    distx::all_reduce(other, memory, distx::sum);
    distx::all_reduce(comm, memory, distx::max);
    for (const float value : memory) findings.expect(value == static_cast<float>(comm.size()), "memory");
    const auto nothing = comm.template allocate<double>(0);
    findings.expect(nothing.size() == 0, "allocate(0)");

    const auto scratch = comm.scratch(4000);
    findings.expect(scratch.size() == 4000, "scratch(4000)");
    write_pattern({scratch.data(), scratch.size()}, 1, 2, 3);
    distx::all_reduce(comm, memory, distx::sum);
    std::vector<std::byte> expected(4000);
    write_pattern(expected, 1, 2, 3);
    findings.same(std::vector<std::byte>(scratch.begin(), scratch.end()), expected, "scratch after a collective");

    // One element by itself, an array, a std::array, a Buffer.
    int one = 1;
    distx::all_reduce(comm, one, distx::sum);
    findings.expect(one == comm.size(), "one element");
    float array[3] = {1, 1, 1};
    distx::all_reduce(comm, array, distx::sum);
    findings.expect(array[2] == static_cast<float>(comm.size()), "an array");
    std::array<double, 2> pair{1, 1};
    distx::all_reduce(comm, pair, distx::sum);
    findings.expect(pair[1] == comm.size(), "a std::array");
    distx::Buffer<float> buffer(3);
    distx::fill({}, buffer.span(), 1.0f);
    distx::all_reduce(comm, buffer, distx::sum);
    findings.expect(buffer[2] == static_cast<float>(comm.size()), "a Buffer");
    std::vector<char> bytes = pattern<char>(50, 0);
    if (comm.rank() != 0) bytes.assign(50, 0);
    distx::broadcast(comm, bytes, 0);
    findings.same(bytes, pattern<char>(50, 0), "chars");
  }
};

}  // namespace conformance
