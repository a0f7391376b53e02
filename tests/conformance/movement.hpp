// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>

#include "conformance/reductions.hpp"

// Collectives that move elements: every element type, structs, every root, equal and uneven blocks.
namespace conformance {

/// Eleven bytes without padding: neither the size of an element type nor a power of two.
struct Odd {
  std::array<char, 11> bytes;
};
/// A typical user-defined struct.
struct Particle {
  double position[3];
  std::int32_t cell;
  std::int32_t kind;
};

/// Blocks identified by source, destination and call: expected data is computed, never received.
template <class T>
class Blocks {
 public:
  Blocks(std::size_t call, int ranks, std::vector<std::size_t> counts)
      : call_(call), ranks_(ranks), counts_(std::move(counts)) {}

  [[nodiscard]] std::size_t count(int rank) const { return counts_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::vector<T> block(int source, int destination, std::size_t size) const {
    return pattern<T>(size, source, destination, call_);
  }
  /// Returns the data that all ranks send to `destination`, with the sender's counts.
  [[nodiscard]] std::vector<T> from_all(int destination) const {
    std::vector<T> all;
    for (int source = 0; source < ranks_; ++source) append(all, block(source, destination, count(source)));
    return all;
  }
  /// Returns the data that `source` sends to all ranks, with the receiver's counts.
  [[nodiscard]] std::vector<T> to_all(int source) const {
    std::vector<T> all;
    for (int destination = 0; destination < ranks_; ++destination)
      append(all, block(source, destination, count(destination)));
    return all;
  }

 private:
  std::size_t call_;
  int ranks_;
  std::vector<std::size_t> counts_;
};

template <class T, class C>
void check_broadcast(C& comm, Findings& findings, std::size_t size) {
  for (const int root : roots(comm.size(), size)) {
    const auto expected = pattern<T>(size, root, 0, 1);
    auto buffer = comm.rank() == root ? expected : std::vector<T>(size);
    distx::broadcast(comm, buffer, root);
    findings.same(buffer, expected, "broadcast, size " + std::to_string(size));
    if (comm.rank() != root) buffer.assign(size, T{});
    auto pending = distx::start_broadcast(comm, buffer, root);
    pending.wait();
    findings.same(buffer, expected, "started broadcast, size " + std::to_string(size));
  }
}

/// Passes `counts` only if they are uneven.
template <class T, class C>
void check_blocks(C& comm, Findings& findings, const std::vector<std::size_t>& block_counts, bool uneven,
                  const std::string& size) {
  const distx::calls::Counts counts = uneven ? distx::calls::Counts(block_counts) : distx::calls::Counts();
  const int me = comm.rank();
  const std::size_t mine = block_counts[static_cast<std::size_t>(me)];
  const std::size_t begin = distx::calls::block_offset(block_counts, 0, me);
  const std::size_t total = distx::calls::total_count(block_counts, 0, comm.size());
  const auto own_block = [&](std::vector<T>& all) { return distx::Span<T>(all).subspan(begin, mine); };
  const auto in_own_block = [&](const std::vector<T>& block) {
    std::vector<T> all(total);
    std::copy(block.begin(), block.end(), all.begin() + static_cast<std::ptrdiff_t>(begin));
    return all;
  };

  {
    const Blocks<T> blocks(2, comm.size(), block_counts);
    const auto send = blocks.block(me, 0, mine);
    const auto expected = blocks.from_all(0);
    std::vector<T> receive(total);
    distx::all_gather(comm, send, receive, counts);
    findings.same(receive, expected, "all_gather" + size);
    receive.assign(total, T{});
    auto pending = distx::start_all_gather(comm, send, receive, counts);
    pending.wait();
    findings.same(receive, expected, "started all_gather" + size);
    receive = in_own_block(send);
    distx::all_gather(comm, own_block(receive), receive, counts);
    findings.same(receive, expected, "all_gather in place" + size);
  }
  for (const int root : roots(comm.size(), total >= largest ? largest : 0)) {
    const bool here = me == root;
    const Blocks<T> blocks(3, comm.size(), block_counts);
    const auto gathered = blocks.from_all(root);
    const auto send = blocks.block(me, root, mine);
    // Ranks other than the root need neither a buffer nor counts.
    std::vector<T> receive(here ? total : 0);
    const distx::calls::Counts root_counts = here ? counts : distx::calls::Counts();
    distx::gather(comm, send, receive, root, root_counts);
    if (here) findings.same(receive, gathered, "gather" + size);
    receive.assign(receive.size(), T{});
    auto pending = distx::start_gather(comm, send, receive, root, root_counts);
    pending.wait();
    if (here) findings.same(receive, gathered, "started gather" + size);
    receive = here ? in_own_block(send) : send;
    distx::gather(comm, here ? own_block(receive) : distx::Span<T>(receive), receive, root, root_counts);
    if (here) findings.same(receive, gathered, "gather in place" + size);

    const auto scattered = blocks.block(root, me, mine);
    auto all = here ? blocks.to_all(root) : std::vector<T>();
    std::vector<T> part(mine);
    distx::scatter(comm, all, part, root, root_counts);
    findings.same(part, scattered, "scatter" + size);
    part.assign(mine, T{});
    auto pending_scatter = distx::start_scatter(comm, all, part, root, root_counts);
    pending_scatter.wait();
    findings.same(part, scattered, "started scatter" + size);
    part.assign(mine, T{});
    distx::scatter(comm, all, here ? own_block(all) : distx::Span<T>(part), root, root_counts);
    if (here)
      findings.same(all, blocks.to_all(root), "scatter in place at the root" + size);
    else
      findings.same(part, scattered, "scatter in place" + size);
  }
}

template <class T, class C>
void check_all_to_all(C& comm, Findings& findings, std::size_t block) {
  const std::string size = ", size " + std::to_string(block);
  const Blocks<T> blocks(4, comm.size(), std::vector<std::size_t>(static_cast<std::size_t>(comm.size()), block));
  const auto expected = blocks.from_all(comm.rank());
  auto send = blocks.to_all(comm.rank());
  std::vector<T> receive(expected.size());
  distx::all_to_all(comm, send, receive);
  findings.same(receive, expected, "all_to_all" + size);
  receive.assign(receive.size(), T{});
  auto pending = distx::start_all_to_all(comm, send, receive);
  pending.wait();
  findings.same(receive, expected, "started all_to_all" + size);
  auto in_place = send;
  auto pending_in_place = distx::start_all_to_all(comm, in_place, in_place);
  pending_in_place.wait();
  findings.same(in_place, expected, "started all_to_all in place" + size);
  distx::all_to_all(comm, send, send);
  findings.same(send, expected, "all_to_all in place" + size);
}

/// Returns a number of elements that depends on the pair of ranks, often 0.
inline std::size_t pair_count(int source, int destination) {
  return static_cast<std::size_t>((source * 5 + destination * 3) % 4) * 17;
}

template <class T, class C>
void check_uneven_all_to_all(C& comm, Findings& findings) {
  const Blocks<T> blocks(5, comm.size(), {});
  std::vector<std::size_t> send_counts, receive_counts;
  std::vector<T> send, expected;
  for (int other = 0; other < comm.size(); ++other) {
    send_counts.push_back(pair_count(comm.rank(), other));
    receive_counts.push_back(pair_count(other, comm.rank()));
    append(send, blocks.block(comm.rank(), other, send_counts.back()));
    append(expected, blocks.block(other, comm.rank(), receive_counts.back()));
  }
  std::vector<T> receive(expected.size());
  distx::all_to_all(comm, send, receive, send_counts, receive_counts);
  findings.same(receive, expected, "uneven all_to_all");
  receive.assign(receive.size(), T{});
  auto pending = distx::start_all_to_all(comm, send, receive, send_counts, receive_counts);
  pending.wait();
  findings.same(receive, expected, "started uneven all_to_all");
}

template <class T, class C>
void check_movement(C& comm, Findings& findings, bool large) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  for (const std::size_t size : sizes) {
    if (size == largest && !large) continue;
    check_broadcast<T>(comm, findings, size);
    // The largest size is the total of all blocks.
    const std::size_t block = size == largest ? size / ranks + 1 : size;
    check_blocks<T>(comm, findings, std::vector<std::size_t>(ranks, block), false, ", size " + std::to_string(size));
    check_all_to_all<T>(comm, findings, block);
  }
  check_blocks<T>(comm, findings, uneven_counts(comm.size()), true, ", uneven");
  check_uneven_all_to_all<T>(comm, findings);
}

struct EveryMovement {
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    for_each_element([&]<class T>() {
      check_movement<T>(comm, findings, std::same_as<T, double> || std::same_as<T, std::uint8_t>);
    });
  }
};

struct MovedStructs {
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    check_movement<Odd>(comm, findings, false);
    check_movement<Particle>(comm, findings, false);
  }
};

}  // namespace conformance
