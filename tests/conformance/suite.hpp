// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <doctest/doctest.h>

#include "conformance/groups.hpp"
#include "conformance/lists.hpp"
#include "conformance/messages.hpp"
#include "conformance/movement.hpp"
#include "conformance/reductions.hpp"

// The cases that every backend passes. A backend is a type with
//
//     static constexpr bool rank_order;     reductions add in rank order
//     static constexpr bool one_process;    all ranks are in this process
//     static void run(auto body);           calls body(comm) on every rank, for every rank count to be tried
//
// and one line, DISTX_CONFORMANCE(Backend), in a program of its own.
namespace conformance {

template <class Backend, class Case>
void on_every_rank(const Case& check) {
  Report report;
  Backend::run([&](auto& comm) {
    Findings findings(report, comm.rank(), comm.size());
    check(comm, findings);
  });
  CHECK_MESSAGE(report.empty(), report.text());
}

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("every reduction, op, type and size", Backend, every_reduction) {
  conformance::on_every_rank<Backend>(conformance::EveryReduction{});
}
TEST_CASE_TEMPLATE_DEFINE("reduce_scatter in uneven blocks", Backend, uneven_reductions) {
  conformance::on_every_rank<Backend>(conformance::UnevenReductions{});
}
TEST_CASE_TEMPLATE_DEFINE("bfloat16 and float16 are rounded once", Backend, rounded_once) {
  conformance::on_every_rank<Backend>(conformance::RoundedOnce{});
}
TEST_CASE_TEMPLATE_DEFINE("a user's own ops", Backend, user_ops) {
  conformance::on_every_rank<Backend>(conformance::UserOps{});
}
TEST_CASE_TEMPLATE_DEFINE("integer sums wrap around", Backend, wrapping) {
  conformance::on_every_rank<Backend>(conformance::Wrapping{});
}
TEST_CASE_TEMPLATE_DEFINE("the same inputs give the same bits", Backend, same_bits) {
  conformance::on_every_rank<Backend>(conformance::SameBits{Backend::rank_order});
}
TEST_CASE_TEMPLATE_DEFINE("every movement, type and size", Backend, every_movement) {
  conformance::on_every_rank<Backend>(conformance::EveryMovement{});
}
TEST_CASE_TEMPLATE_DEFINE("structs move", Backend, moved_structs) {
  conformance::on_every_rank<Backend>(conformance::MovedStructs{});
}
TEST_CASE_TEMPLATE_DEFINE("messages", Backend, every_message) {
  conformance::on_every_rank<Backend>(conformance::EveryMessage{});
}
TEST_CASE_TEMPLATE_DEFINE("started calls, many in flight", Backend, in_flight) {
  conformance::on_every_rank<Backend>(conformance::InFlight{});
}
TEST_CASE_TEMPLATE_DEFINE("what a Pending promises", Backend, pendings) {
  conformance::on_every_rank<Backend>(conformance::Pendings{});
}
TEST_CASE_TEMPLATE_DEFINE("barriers", Backend, barriers) {
  std::array<std::atomic<int>, 16> come{};
  conformance::on_every_rank<Backend>(conformance::Barriers{Backend::one_process, come});
}
TEST_CASE_TEMPLATE_DEFINE("lists of spans", Backend, lists) {
  conformance::on_every_rank<Backend>(conformance::Lists{});
}
TEST_CASE_TEMPLATE_DEFINE("split", Backend, splits) {
  conformance::on_every_rank<Backend>(conformance::Splits{});
}
TEST_CASE_TEMPLATE_DEFINE("named groups", Backend, named_groups) {
  conformance::on_every_rank<Backend>(conformance::NamedGroups{});
}
TEST_CASE_TEMPLATE_DEFINE("handles, memory, arguments", Backend, handles) {
  conformance::on_every_rank<Backend>(conformance::Handles{});
}

#define DISTX_CONFORMANCE(Backend)                          \
  TEST_CASE_TEMPLATE_INVOKE(every_reduction, Backend);      \
  TEST_CASE_TEMPLATE_INVOKE(uneven_reductions, Backend);    \
  TEST_CASE_TEMPLATE_INVOKE(rounded_once, Backend);         \
  TEST_CASE_TEMPLATE_INVOKE(user_ops, Backend);             \
  TEST_CASE_TEMPLATE_INVOKE(wrapping, Backend);             \
  TEST_CASE_TEMPLATE_INVOKE(same_bits, Backend);            \
  TEST_CASE_TEMPLATE_INVOKE(every_movement, Backend);       \
  TEST_CASE_TEMPLATE_INVOKE(moved_structs, Backend);        \
  TEST_CASE_TEMPLATE_INVOKE(every_message, Backend);        \
  TEST_CASE_TEMPLATE_INVOKE(in_flight, Backend);            \
  TEST_CASE_TEMPLATE_INVOKE(pendings, Backend);             \
  TEST_CASE_TEMPLATE_INVOKE(barriers, Backend);             \
  TEST_CASE_TEMPLATE_INVOKE(lists, Backend);                \
  TEST_CASE_TEMPLATE_INVOKE(splits, Backend);               \
  TEST_CASE_TEMPLATE_INVOKE(named_groups, Backend);         \
  TEST_CASE_TEMPLATE_INVOKE(handles, Backend)
