// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "conformance/findings.hpp"
#include "distx/distx.hpp"

// Calls that differ between ranks: every rank throws MismatchError, whether the calls block or are asynchronous, and
// whatever their size. On shared memory, a rank that needs nothing more of the others, such as the root of a small
// broadcast, may return first; then its next call throws. Where a communicator compares nothing, each call ends, with
// any of distx's errors or without.
namespace conformance {

struct Mismatches {
  bool compares;

  template <class C>
  void operator()(C& parent, Findings& findings) const {
    if (!compares || parent.size() == 1) return;
    for (const std::size_t n : {std::size_t{2}, std::size_t{1} << 18})
      for (const bool asynchronous : {false, true})
        check_all([&] { return parent.split(0, parent.rank()); }, true, findings, n, asynchronous);
    check_groupings(parent, findings);
    int total = 1;
    distx::all_reduce(parent, total, distx::sum);
    findings.expect(total == parent.size(), "the parent works after the mismatches of its parts");
  }

  /// Checks a communicator with `Check::off`.
  /// @param make  returns one on every rank, with a short deadline
  template <class Make>
  static void check_uncompared(Make&& make, Findings& findings) {
    for (const std::size_t n : {std::size_t{2}, std::size_t{1} << 18})
      for (const bool asynchronous : {false, true}) check_all(make, false, findings, n, asynchronous);
  }

 private:
  /// The sum of two, with a state that must be the same on all ranks.
  struct Scaled {
    float factor;
    float operator()(float a, float b) const { return factor * (a + b); }
  };

  struct Narrow {
    char bytes[2];
  };
  struct Wide {
    char bytes[3];
  };

  template <class Make>
  static void check_all(Make&& make, bool compares, Findings& findings, std::size_t n, bool asynchronous) {
    using C = decltype(make());
    const C first = make();
    const auto ranks = static_cast<std::size_t>(first.size());
    const bool odd = first.rank() == first.size() - 1;
    // The next call on the same queue.
    const auto next = [&](C& comm) {
      int total = 1;
      if (asynchronous)
        distx::start_all_reduce(comm, total, total, distx::sum).wait();
      else
        distx::all_reduce(comm, total, distx::sum);
    };
    enum class At { call, call_or_next };
    const bool may_return_first = first.backend() != "mpi" && first.backend() != "gloo" && n == 2;
    const auto fails = [&](const std::string& what, auto&& call, At at = At::call, bool typed_only = false) {
      auto comm = make();
      const std::string where =
          what + (asynchronous ? ", asynchronous, " : ", blocking, ") + std::to_string(n) + " elements: ";
      try {
        call(comm);
        if (compares && at == At::call_or_next && may_return_first) next(comm);
        findings.expect(!compares, where + "nothing was thrown");
      } catch (const distx::MismatchError&) {
      } catch (const distx::Error& error) {
        findings.expect(!compares || typed_only, where + error.what());
      } catch (const std::exception& error) {
        findings.expect(false, where + error.what());
      }
    };
    // Makes a blocking call, or starts it and waits.
    const auto all_reduce = [&](C& comm, auto&& send, auto op) {
      auto receive = send;
      if (asynchronous)
        distx::start_all_reduce(comm, send, receive, op).wait();
      else
        distx::all_reduce(comm, send, receive, op);
    };
    const auto broadcast = [&](C& comm, auto&& buffer, int root) {
      if (asynchronous)
        distx::start_broadcast(comm, buffer, root).wait();
      else
        distx::broadcast(comm, buffer, root);
    };
    const auto all_to_all = [&](C& comm, const auto& send, auto& receive, const std::vector<std::size_t>& send_counts,
                                const std::vector<std::size_t>& receive_counts) {
      if (asynchronous)
        distx::start_all_to_all(comm, send, receive, send_counts, receive_counts).wait();
      else
        distx::all_to_all(comm, send, receive, send_counts, receive_counts);
    };
    std::vector<float> floats(n, 1), fewer(n - 1, 1), all(n * ranks);
    std::vector<int> integers(n, 1);
    std::vector<double> doubles(n / 2, 1);  // of the same size in bytes

    fails("another operation",
          [&](C& comm) { odd ? broadcast(comm, floats, 0) : all_reduce(comm, floats, distx::sum); });
    fails("a missing call", [&](C& comm) {
      if (!odd) all_reduce(comm, floats, distx::sum);
      broadcast(comm, floats, 0);
    });
    fails("calls in another order", [&](C& comm) {
      if (odd) broadcast(comm, floats, 0);
      all_reduce(comm, floats, distx::sum);
      if (!odd) broadcast(comm, floats, 0);
    });
    fails(
        "a barrier", [&](C& comm) { odd ? distx::barrier(comm) : distx::broadcast(comm, floats, 0); },
        At::call_or_next);
    fails(
        "a broadcast of another length", [&](C& comm) { broadcast(comm, odd ? fewer : floats, 0); }, At::call_or_next);
    fails("another length", [&](C& comm) { all_reduce(comm, odd ? fewer : floats, distx::sum); });
    fails("no elements", [&](C& comm) { all_reduce(comm, odd ? std::vector<float>() : floats, distx::sum); });
    fails("another element type",
          [&](C& comm) { odd ? all_reduce(comm, integers, distx::sum) : all_reduce(comm, floats, distx::sum); });
    fails("a type of another width",
          [&](C& comm) { odd ? all_reduce(comm, doubles, distx::sum) : all_reduce(comm, floats, distx::sum); });
    fails("another op",
          [&](C& comm) { odd ? all_reduce(comm, floats, distx::max) : all_reduce(comm, floats, distx::sum); });
    fails("another state of the op", [&](C& comm) { all_reduce(comm, floats, Scaled{odd ? 2.0f : 1.0f}); });
    fails(
        "another op of a reduce",
        [&](C& comm) {
          auto receive = floats;
          const auto reduce = [&](auto op) {
            if (asynchronous)
              distx::start_reduce(comm, floats, receive, op, 0).wait();
            else
              distx::reduce(comm, floats, receive, op, 0);
          };
          odd ? reduce(distx::max) : reduce(distx::sum);
        },
        At::call_or_next);
    fails("another root", [&](C& comm) { broadcast(comm, floats, odd ? 1 : 0); }, At::call_or_next);
    fails("other counts", [&](C& comm) {
      std::vector<std::size_t> counts(ranks, n);
      if (odd) --counts[0], ++counts[1];
      std::vector<float> mine(counts[static_cast<std::size_t>(comm.rank())]);
      if (asynchronous)
        distx::start_all_gather(comm, mine, all, counts).wait();
      else
        distx::all_gather(comm, mine, all, counts);
    });
    fails(
        "a longer block than the root of gather expects",
        [&](C& comm) {
          const std::vector<std::size_t> counts(ranks, n);
          std::vector<float> mine(odd ? n + 1 : n);
          if (asynchronous)
            distx::start_gather(comm, mine, all, 0, counts).wait();
          else
            distx::gather(comm, mine, all, 0, counts);
        },
        At::call_or_next);
    fails("a block that its receiver believes empty", [&](C& comm) {
      std::vector<std::size_t> to(ranks, 1), from(ranks, 1);
      if (odd) from[0] = 0;
      std::vector<float> send(ranks), receive(odd ? ranks - 1 : ranks);
      all_to_all(comm, send, receive, to, from);
    });
    fails("a block that its sender believes empty", [&](C& comm) {
      std::vector<std::size_t> to(ranks, n), from(ranks, n);
      if (odd) to[0] = 0;
      std::vector<float> send(odd ? n * (ranks - 1) : n * ranks), receive(n * ranks);
      all_to_all(comm, send, receive, to, from);
    });
    fails(
        "a shorter block than the root scatters",
        [&](C& comm) {
          std::vector<float> mine(odd ? n - 1 : n);
          if (asynchronous)
            distx::start_scatter(comm, all, mine, 0).wait();
          else
            distx::scatter(comm, all, mine, 0);
        },
        At::call_or_next);
    fails("a list of other lengths", [&](C& comm) {
      std::vector<std::vector<float>> list{std::vector<float>(odd ? 3 : 2), std::vector<float>(odd ? 2 : 3)};
      auto result = list;
      if (asynchronous)
        distx::start_all_reduce(comm, list, result, distx::sum).wait();
      else
        distx::all_reduce(comm, list, distx::sum);
    });

    // From rank 0 to the last one. The receiver throws, and the sender in this call or, as the others, in the next.
    // Between hosts over Gloo these may find the connection closed before they read why.
    const bool between_hosts = first.backend().ends_with("+gloo");
    const auto message = [&](const std::string& what, const auto& sent, auto received) {
      const auto call = [&](C& comm) {
        if (comm.rank() == 0) {
          if (asynchronous)
            distx::start_send(comm, sent, comm.size() - 1).wait();
          else
            distx::send(comm, sent, comm.size() - 1);
        } else if (odd) {
          if (asynchronous)
            distx::start_receive(comm, received, 0).wait();
          else
            distx::receive(comm, received, 0);
        }
        next(comm);
      };
      fails(what, call, At::call, between_hosts && !odd);
    };
    using List = std::vector<std::vector<float>>;
    message("a message of another length", floats, fewer);
    message("a message without elements", std::vector<float>(), floats);
    message("a message of another element type", floats, integers);
    message("a message of a type of another width", floats, doubles);
    message("a message of wider structs", std::vector<Narrow>(n), std::vector<Wide>(n));
    message("a message of other structs of the same bytes", std::vector<Narrow>(sizeof(Wide) * n),
            std::vector<Wide>(sizeof(Narrow) * n));
    message("a message of a list of other lengths", List{std::vector<float>(2), std::vector<float>(3)},
            List{std::vector<float>(3), std::vector<float>(2)});
  }

  template <class C>
  static void check_groupings(C& parent, Findings& findings) {
    auto comm = parent.split(0, parent.rank());
    distx::Grouping pairs{{0, 1}};
    if (comm.rank() == 0) pairs = {{1, 0}};
    try {
      auto group = distx::groups(comm, pairs);
      findings.expect(false, "another grouping: nothing was thrown");
    } catch (const distx::MismatchError&) {
    } catch (const std::exception& error) {
      findings.expect(false, std::string("another grouping: ") + error.what());
    }
  }
};

}  // namespace conformance
