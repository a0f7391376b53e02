// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <doctest/doctest.h>

#include <cstdio>

#include "conformance/forks.hpp"
#include "conformance/groups.hpp"
#include "conformance/lists.hpp"
#include "conformance/messages.hpp"
#include "conformance/mismatches.hpp"
#include "conformance/movement.hpp"
#include "conformance/reductions.hpp"
#include "conformance/unmet.hpp"
#include "sanitized.hpp"

// The test cases for every backend. `Ranks` is a type with
//
//     static bool rank_order();         reductions combine operands in rank order
//     static bool one_process();        all ranks are in this process
//     static bool tags();               messages have tags
//     static bool compares();           calls that differ between ranks throw MismatchError on every rank
//     static bool threads();            several threads of a rank may make calls, each on its own communicator
//     static bool keeps_nan();          max and min give a NaN if any rank has one
//     static bool forks();              a rank's process may fork
//     static void run(auto body);       calls body(make) on every rank, for every number of ranks under test;
//                                       make(deadline) makes a communicator of all ranks
//
// DISTX_CONFORMANCE(Ranks) instantiates the test cases. Most backends use the shorter form in backend.hpp.
namespace conformance {

template <class Ranks, class Case>
void on_every_rank(const Case& check) {
  Report report;
  Ranks::run([&](const auto& make) {
    auto comm = make(std::chrono::minutes(4));
    Findings findings(report, comm.rank(), comm.size());
    check(comm, findings);
  });
  CHECK_MESSAGE(report.empty(), report.text());
}

}  // namespace conformance

TEST_CASE_TEMPLATE_DEFINE("reductions are correct for every op, type and size", Ranks, every_reduction) {
  conformance::on_every_rank<Ranks>(conformance::EveryReduction{});
}
TEST_CASE_TEMPLATE_DEFINE("reduce_scatter in uneven blocks", Ranks, uneven_reductions) {
  conformance::on_every_rank<Ranks>(conformance::UnevenReductions{});
}
TEST_CASE_TEMPLATE_DEFINE("reductions of 8-bit floats are correct", Ranks, float8_reductions) {
  conformance::on_every_rank<Ranks>(conformance::Float8Reductions{});
}
TEST_CASE_TEMPLATE_DEFINE("reduced-precision sums are rounded once", Ranks, rounded_once) {
  conformance::on_every_rank<Ranks>(conformance::RoundedOnce{});
}
TEST_CASE_TEMPLATE_DEFINE("custom ops with state and finish work", Ranks, user_ops) {
  conformance::on_every_rank<Ranks>(conformance::UserOps{});
}
TEST_CASE_TEMPLATE_DEFINE("integer sums wrap around", Ranks, wrapping) {
  conformance::on_every_rank<Ranks>(conformance::Wrapping{});
}
TEST_CASE_TEMPLATE_DEFINE("bitwise ops combine the bits of all ranks", Ranks, bitwise) {
  conformance::on_every_rank<Ranks>(conformance::BitwiseOps{});
}
TEST_CASE_TEMPLATE_DEFINE("max and min keep the NaN of any rank, and order zeros by their sign", Ranks, extremes) {
  if (Ranks::keeps_nan()) conformance::on_every_rank<Ranks>(conformance::Extremes{});
}
TEST_CASE_TEMPLATE_DEFINE("the same inputs give the same bits", Ranks, same_bits) {
  conformance::on_every_rank<Ranks>(conformance::SameBits{Ranks::rank_order()});
}
TEST_CASE_TEMPLATE_DEFINE("collectives that move elements are correct for every type and size", Ranks, every_movement) {
  conformance::on_every_rank<Ranks>(conformance::EveryMovement{});
}
TEST_CASE_TEMPLATE_DEFINE("structs are moved correctly", Ranks, moved_structs) {
  conformance::on_every_rank<Ranks>(conformance::MovedStructs{});
}
TEST_CASE_TEMPLATE_DEFINE("messages", Ranks, every_message) {
  conformance::on_every_rank<Ranks>(conformance::EveryMessage{Ranks::tags()});
}
TEST_CASE_TEMPLATE_DEFINE("many asynchronous calls can be in flight", Ranks, in_flight) {
  conformance::on_every_rank<Ranks>(conformance::InFlight{});
}
TEST_CASE_TEMPLATE_DEFINE("Pending keeps its contract", Ranks, pendings) {
  conformance::on_every_rank<Ranks>(conformance::Pendings{});
}
TEST_CASE_TEMPLATE_DEFINE("barriers", Ranks, barriers) {
  std::array<std::atomic<int>, 16> come{};
  conformance::on_every_rank<Ranks>(conformance::Barriers{Ranks::one_process(), come});
}
TEST_CASE_TEMPLATE_DEFINE("lists of spans", Ranks, lists) {
  conformance::on_every_rank<Ranks>(conformance::Lists{Ranks::tags()});
}
TEST_CASE_TEMPLATE_DEFINE("split", Ranks, splits) { conformance::on_every_rank<Ranks>(conformance::Splits{}); }
TEST_CASE_TEMPLATE_DEFINE("named groups", Ranks, named_groups) {
  conformance::on_every_rank<Ranks>(conformance::NamedGroups{});
}
TEST_CASE_TEMPLATE_DEFINE("a process forked from a rank takes no part in the job and ends nothing", Ranks, forks) {
  if (!Ranks::forks()) return;
  // Other threads may hold a sanitizer's own locks at the fork, and nothing releases them in the new process.
  if constexpr (DISTX_TESTS_SANITIZED)
    std::puts("skipped: 1 test cases fork while other threads run, which sanitizers do not support");
  else
    conformance::on_every_rank<Ranks>(conformance::Forks{});
}
TEST_CASE_TEMPLATE_DEFINE("handles, memory, arguments", Ranks, handles) {
  conformance::on_every_rank<Ranks>(conformance::Handles{});
}
TEST_CASE_TEMPLATE_DEFINE("calls that differ throw MismatchError on every rank", Ranks, mismatches) {
  conformance::on_every_rank<Ranks>(conformance::Mismatches{Ranks::compares()});
}
TEST_CASE_TEMPLATE_DEFINE("calls that never meet throw a typed error on every rank by the deadline", Ranks,
                          unmet_calls) {
  conformance::Report report;
  Ranks::run([&](const auto& make) {
    auto comm = make(std::chrono::minutes(4));
    if (!Ranks::compares() || comm.size() == 1 || comm.size() > 4) return;
    conformance::Findings findings(report, comm.rank(), comm.size());
    conformance::UnmetCalls(make, comm, findings).check(Ranks::tags(), Ranks::threads());
  });
  CHECK_MESSAGE(report.empty(), report.text());
}

#define DISTX_CONFORMANCE(Ranks)                       \
  TEST_CASE_TEMPLATE_INVOKE(every_reduction, Ranks);   \
  TEST_CASE_TEMPLATE_INVOKE(uneven_reductions, Ranks); \
  TEST_CASE_TEMPLATE_INVOKE(float8_reductions, Ranks); \
  TEST_CASE_TEMPLATE_INVOKE(rounded_once, Ranks);      \
  TEST_CASE_TEMPLATE_INVOKE(user_ops, Ranks);          \
  TEST_CASE_TEMPLATE_INVOKE(wrapping, Ranks);          \
  TEST_CASE_TEMPLATE_INVOKE(bitwise, Ranks);           \
  TEST_CASE_TEMPLATE_INVOKE(extremes, Ranks);          \
  TEST_CASE_TEMPLATE_INVOKE(same_bits, Ranks);         \
  TEST_CASE_TEMPLATE_INVOKE(every_movement, Ranks);    \
  TEST_CASE_TEMPLATE_INVOKE(moved_structs, Ranks);     \
  TEST_CASE_TEMPLATE_INVOKE(every_message, Ranks);     \
  TEST_CASE_TEMPLATE_INVOKE(in_flight, Ranks);         \
  TEST_CASE_TEMPLATE_INVOKE(pendings, Ranks);          \
  TEST_CASE_TEMPLATE_INVOKE(barriers, Ranks);          \
  TEST_CASE_TEMPLATE_INVOKE(lists, Ranks);             \
  TEST_CASE_TEMPLATE_INVOKE(splits, Ranks);            \
  TEST_CASE_TEMPLATE_INVOKE(named_groups, Ranks);      \
  TEST_CASE_TEMPLATE_INVOKE(forks, Ranks);             \
  TEST_CASE_TEMPLATE_INVOKE(handles, Ranks);           \
  TEST_CASE_TEMPLATE_INVOKE(mismatches, Ranks);        \
  TEST_CASE_TEMPLATE_INVOKE(unmet_calls, Ranks)
