// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "conformance/movement.hpp"

// Coalesced collectives: the same result as one call per item.
namespace conformance {

template <class T>
using Items = std::vector<std::vector<T>>;

/// Returns items with `times` elements per entry of the sizes: small, empty, and too large to be packed.
template <class T>
Items<T> items(int source, std::size_t times, bool empty = false) {
  Items<T> all;
  std::size_t number = 0;
  for (const std::size_t size : std::initializer_list<std::size_t>{7, 0, 40000, 1, 1024, 33000}) {
    all.push_back(empty ? std::vector<T>(size * times) : std::vector<T>());
    if (!empty) all.back() = pattern<T>(size * times, source, 0, 20 + number);
    ++number;
  }
  return all;
}
/// Returns the same with small numbers, which can be reduced.
template <class T>
Items<T> number_items(int rank, std::size_t times) {
  Items<T> all = items<T>(rank, times, true);
  const auto mine = operands<T>(reference_sum, rank);
  for (auto& item : all) item = repeated(mine, item.size(), all.size() * item.size());
  return all;
}

template <class T>
void same_items(Findings& findings, const Items<T>& got, const Items<T>& expected, const std::string& what) {
  for (std::size_t item = 0; item < expected.size(); ++item)
    findings.same(got[item], expected[item], what + " on a list, item " + std::to_string(item));
}

template <class T>
std::vector<distx::Span<T>> spans(Items<T>& list) {
  std::vector<distx::Span<T>> all;
  for (auto& item : list) all.emplace_back(item);
  return all;
}

struct Lists {
  bool tags;

  template <class T, class C>
  static void check_reductions(C& comm, Findings& findings) {
    const auto ranks = static_cast<std::size_t>(comm.size());
    const int last = comm.size() - 1;
    const auto send = number_items<T>(comm.rank(), 1);
    auto expected = send;
    for (auto& item : expected) distx::all_reduce(comm, item, distx::sum);

    auto receive = items<T>(0, 1, true);
    distx::all_reduce(comm, send, receive, distx::sum);
    same_items(findings, receive, expected, "all_reduce");
    auto in_place = send;
    distx::all_reduce(comm, spans(in_place), distx::sum);
    same_items(findings, in_place, expected, "all_reduce in place");
    receive = items<T>(0, 1, true);
    auto pending = distx::start_all_reduce(comm, send, receive, distx::sum);
    pending.wait();
    same_items(findings, receive, expected, "started all_reduce");
    in_place = send;
    auto pending_in_place = distx::start_all_reduce(comm, in_place, distx::sum);
    pending_in_place.wait();
    same_items(findings, in_place, expected, "started all_reduce in place");

    receive = items<T>(0, 1, true);
    distx::reduce(comm, send, receive, distx::sum, last);
    same_items(findings, receive, comm.rank() == last ? expected : items<T>(0, 1, true), "reduce");
    in_place = send;
    distx::reduce(comm, in_place, distx::sum, last);
    same_items(findings, in_place, comm.rank() == last ? expected : send, "reduce in place");
    receive = items<T>(0, 1, true);
    auto pending_reduce = distx::start_reduce(comm, send, receive, distx::sum, 0);
    pending_reduce.wait();
    if (comm.rank() == 0) same_items(findings, receive, expected, "started reduce");

    const auto blocks = number_items<T>(comm.rank(), ranks);
    expected = items<T>(0, 1, true);
    for (std::size_t item = 0; item < blocks.size(); ++item)
      distx::reduce_scatter(comm, blocks[item], expected[item], distx::sum);
    receive = items<T>(0, 1, true);
    distx::reduce_scatter(comm, blocks, receive, distx::sum);
    same_items(findings, receive, expected, "reduce_scatter");
    receive = items<T>(0, 1, true);
    auto pending_scatter = distx::start_reduce_scatter(comm, blocks, receive, distx::sum);
    pending_scatter.wait();
    same_items(findings, receive, expected, "started reduce_scatter");
  }

  template <class T, class C>
  static void check_movement(C& comm, Findings& findings, bool tags) {
    const auto ranks = static_cast<std::size_t>(comm.size());
    const int me = comm.rank(), last = comm.size() - 1;
    const auto whole = items<T>(me, 1), blocks = items<T>(me, ranks);
    const auto nothing = items<T>(0, 1, true), nothing_blocks = items<T>(0, ranks, true);

    auto receive = me == last ? whole : nothing;
    distx::broadcast(comm, receive, last);
    same_items(findings, receive, items<T>(last, 1), "broadcast");
    receive = me == last ? whole : nothing;
    auto pending = distx::start_broadcast(comm, receive, last);
    pending.wait();
    same_items(findings, receive, items<T>(last, 1), "started broadcast");

    auto expected = nothing_blocks;
    for (std::size_t item = 0; item < whole.size(); ++item) distx::all_gather(comm, whole[item], expected[item]);
    receive = nothing_blocks;
    distx::all_gather(comm, whole, receive);
    same_items(findings, receive, expected, "all_gather");
    receive = nothing_blocks;
    auto pending_gather = distx::start_all_gather(comm, whole, receive);
    pending_gather.wait();
    same_items(findings, receive, expected, "started all_gather");

    // On ranks other than the root, the unused list may be empty.
    receive = me == last ? nothing_blocks : Items<T>();
    distx::gather(comm, whole, receive, last);
    if (me == last) same_items(findings, receive, expected, "gather");
    receive = me == last ? nothing_blocks : Items<T>();
    auto pending_root = distx::start_gather(comm, whole, receive, last);
    pending_root.wait();
    if (me == last) same_items(findings, receive, expected, "started gather");

    for (std::size_t item = 0; item < blocks.size(); ++item) distx::all_to_all(comm, blocks[item], expected[item]);
    receive = nothing_blocks;
    distx::all_to_all(comm, blocks, receive);
    same_items(findings, receive, expected, "all_to_all");
    receive = nothing_blocks;
    auto pending_exchange = distx::start_all_to_all(comm, blocks, receive);
    pending_exchange.wait();
    same_items(findings, receive, expected, "started all_to_all");

    expected = nothing;
    for (std::size_t item = 0; item < blocks.size(); ++item) distx::scatter(comm, blocks[item], expected[item], 0);
    const auto at_root = me == 0 ? blocks : Items<T>();
    receive = nothing;
    distx::scatter(comm, at_root, receive, 0);
    same_items(findings, receive, expected, "scatter");
    receive = nothing;
    auto pending_part = distx::start_scatter(comm, at_root, receive, 0);
    pending_part.wait();
    same_items(findings, receive, expected, "started scatter");

    const int left = (me + last) % comm.size();
    receive = nothing;
    auto received = distx::start_receive(comm, receive, left);
    auto sent = distx::start_send(comm, whole, (me + 1) % comm.size());
    received.wait();
    sent.wait();
    same_items(findings, receive, items<T>(left, 1), "started send and receive");
    if (comm.size() == 1) return;
    receive = nothing;
    if (me == 0) distx::send(comm, whole, last, tags ? 1 : 0);
    if (me == last) {
      distx::receive(comm, receive, 0, tags ? 1 : 0);
      same_items(findings, receive, items<T>(0, 1), "send and receive");
    }
  }

  template <class C>
  void operator()(C& comm, Findings& findings) const {
    check_reductions<float>(comm, findings);
    check_reductions<std::int8_t>(comm, findings);
    check_reductions<distx::bfloat16>(comm, findings);
    check_movement<float>(comm, findings, tags);
    check_movement<std::uint8_t>(comm, findings, tags);
    // An empty list, and a list of one item.
    distx::all_reduce(comm, std::vector<distx::Span<float>>(), distx::sum);
    std::vector<float> single(5, 1.0f);
    distx::all_reduce(comm, std::vector<distx::Span<float>>{single}, distx::sum);
    findings.same(single, std::vector<float>(5, static_cast<float>(comm.size())), "a list of one");
  }
};

}  // namespace conformance
