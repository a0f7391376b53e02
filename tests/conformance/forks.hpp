// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "conformance/elements.hpp"
#include "conformance/findings.hpp"
#include "forked_process.hpp"

// A rank that forks during an asynchronous call.
namespace conformance {

struct Forks {
  /// Returns the bits of what a forked process may do, although it must not.
  template <class C, class P>
  static int accepted(C& comm, P& pending) {
    int bits = 0;
    const auto rejects = [&](int bit, auto&& call) {
      try {
        call();
        bits |= bit;
      } catch (const distx::InvalidState& error) {
        if (std::string(error.what()).find("was made by process") == std::string::npos) bits |= bit;
      } catch (...) {
        bits |= bit;
      }
    };
    std::vector<int> values(10000, 5);
    rejects(1, [&] { distx::all_reduce(comm, values, distx::sum); });
    rejects(2, [&] { auto started = distx::start_all_reduce(comm, values, distx::sum); });
    rejects(4, [&] { static_cast<void>(comm.split(0, comm.rank())); });
    rejects(8, [&] { static_cast<void>(comm.template allocate<int>(3)); });
    rejects(16, [&] { pending.wait(); });
    comm.revoke("by a forked process");
    try {
      [[maybe_unused]] const auto handle = comm.share();
      [[maybe_unused]] const auto unwound = std::move(pending);
      throw std::exception();
    } catch (const std::exception&) {  // the destructors have returned
    }
    return bits;
  }
  template <class C>
  void operator()(C& comm, Findings& findings) const {
    for (int rank = 0; rank < comm.size(); ++rank) {
      std::vector<int> started(10000, 1), after(10000, 1);
      auto pending = distx::start_all_reduce(comm, started, distx::sum);
      if (comm.rank() == rank) {
        const int bits = test::in_forked_process([&] { return accepted(comm, pending); });
        findings.expect(bits == 0, "a process forked from this rank was not rejected: " + std::to_string(bits));
      }
      pending.wait();
      distx::all_reduce(comm, after, distx::sum);
      const std::vector<int> expected(10000, comm.size());
      findings.same(started, expected, "all_reduce during which rank " + std::to_string(rank) + " forks");
      findings.same(after, expected, "all_reduce after rank " + std::to_string(rank) + " has forked");
    }
  }
};

}  // namespace conformance
