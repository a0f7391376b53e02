// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "conformance/either_way.hpp"
#include "conformance/findings.hpp"
#include "distx/distx.hpp"

// Calls that never meet, so no rank can compare them: every rank throws a typed error by the communicator's deadline.
namespace conformance {

/// The cells of calls that never meet. Each has separate communicators and a separate thread, so all deadlines expire
/// at the same time.
template <class Make>
class UnmetCalls {
  using C = std::invoke_result_t<const Make&, distx::Timeout>;
  using Clock = std::chrono::steady_clock;

 public:
  static constexpr std::chrono::seconds deadline{3}, margin{10};

  UnmetCalls(const Make& make, C& together, Findings& findings)
      : make_(make),
        together_(together),
        findings_(findings),
        last_(together.size() - 1),
        rank_(together.rank()),
        odd_(rank_ == last_) {}

  /// @param tags  messages have tags
  /// @param threads  several threads may make calls
  void check(bool tags, bool threads) {
    distx::barrier(together_);
    for (const bool asynchronous : {false, true}) {
      if (tags) add_tags({asynchronous});
      add_messages({asynchronous});
      add_queues(asynchronous);
      add_groups({asynchronous});
      add_absence({asynchronous});
    }
    distx::barrier(together_);
    std::vector<std::jthread> running;
    for (auto& cell : cells_) {
      if (threads) {
        running.emplace_back(cell);
      } else {
        cell();
        distx::barrier(together_);
      }
    }
    running.clear();            // joins them
    distx::barrier(together_);  // no communicator ends while another rank waits on it
    findings_.expect(memory_.intact(), "memory after an operand was written");
  }

 private:
  [[nodiscard]] std::shared_ptr<C> communicator(distx::Timeout limit = deadline) {
    return std::make_shared<C>(make_(limit));
  }
  /// Returns the operand of a cell, which outlives the cell: until the peer has thrown too, MPI may read a message that
  /// was not received.
  [[nodiscard]] distx::Span<float> operand(std::size_t count) { return memory_.make<float>(count); }
  /// Adds a cell, `calls()`, which throws.
  void add(const std::string& what, EitherWay way, std::function<void()> calls) {
    cells_.push_back([this, where = what + text_of(way), calls] { expect_error(where, calls); });
  }
  [[nodiscard]] static std::string text_of(EitherWay way) {
    return way.asynchronous ? ", asynchronous: " : ", blocking: ";
  }
  void expect_error(const std::string& where, const std::function<void()>& calls) {
    const auto start = Clock::now();
    try {
      calls();
      findings_.expect(false, where + "nothing was thrown");
    } catch (const distx::TimeoutError&) {
    } catch (const distx::RevokedError&) {
    } catch (const distx::RankFailure&) {
    } catch (const distx::MismatchError&) {
    } catch (const std::exception& error) {
      findings_.expect(false, where + error.what());
    }
    findings_.expect(Clock::now() - start < deadline + margin, where + "it ended too late");
  }

  void add_tags(EitherWay way) {
    for (const std::size_t n : {std::size_t{2}, std::size_t{1} << 18})
      add("a message with another tag, " + std::to_string(n) + " elements", way,
          [this, way, data = operand(n), comm = communicator()] {
            if (rank_ == 0) way.send(*comm, data, last_, 1);
            if (odd_) way.receive(*comm, data, 0, 2);
            way.any_call(*comm);
          });
  }
  void add_messages(EitherWay way) {
    add("a message that no rank sends", way, [this, way, data = operand(2), comm = communicator()] {
      if (odd_) way.receive(*comm, data, 0);
      way.any_call(*comm);
    });
    // A small one may be complete for its sender, as over MPI.
    add("a message that no rank receives", way,
        [this, way, data = operand(std::size_t{1} << 18), comm = communicator()] {
          if (rank_ == 0) way.send(*comm, data, last_);
          way.any_call(*comm);
        });
  }
  /// The last rank's call blocks and the others' are asynchronous, or the reverse.
  void add_queues(bool asynchronous) {
    add("a call that blocks on some ranks only", {asynchronous},
        [way = EitherWay{asynchronous != odd_}, comm = communicator()] { way.any_call(*comm); });
  }
  void add_groups(EitherWay way) {
    const auto group_of = [](C& comm) { return std::make_shared<C>(comm.split(0, comm.rank())); };
    const auto comm = communicator();
    const auto first = group_of(*comm), second = group_of(*comm);
    add("a call on a group instead of its parent", way, [way, comm = odd_ ? first : comm] { way.any_call(*comm); });
    const auto third = group_of(*second);
    add("a call on another group", way, [way, comm = odd_ ? second : third] { way.any_call(*comm); });

    distx::Grouping grouping(1), reversed(1);
    for (int rank = 0; rank <= last_; ++rank) grouping[0].push_back(rank), reversed[0].push_back(last_ - rank);
    const auto cached = communicator();
    const auto group = std::make_shared<C>(distx::groups(*cached, grouping));
    add("a call on a group that the other ranks do not ask for again", way,
        [way, cached, group, asked = odd_ ? grouping : reversed] {
          auto again = distx::groups(*cached, asked);
          way.any_call(again);
        });
  }
  /// The last rank makes its calls after the others have failed. The operands of the first may have arrived: it may
  /// complete before this rank knows of the failure.
  void add_absence(EitherWay way) {
    cells_.push_back([this, way, comm = communicator(), together = communicator(std::chrono::minutes(4))] {
      if (odd_) distx::barrier(*together);
      expect_error("a call that one rank does not make" + text_of(way), [&] {
        way.any_call(*comm);
        way.any_call(*comm);
      });
      if (!odd_) distx::barrier(*together);
    });
  }

  const Make& make_;
  C& together_;
  Findings& findings_;
  int last_, rank_;
  bool odd_;
  GuardedMemory memory_;
  std::vector<std::function<void()>> cells_;
};

}  // namespace conformance
