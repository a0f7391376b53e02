// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <string>

#include "distx/connect/detail/name_ranks.hpp"
#include "distx/mpi/detail/call_exchange.hpp"
#include "distx/mpi/detail/schedule.hpp"

namespace distx::detail::mpi {

/// Returns the message of a timeout before all ranks have joined.
[[nodiscard]] inline std::string absent(CallExchange& exchange, const Timeout& deadline) {
  const std::vector<int> ranks = exchange.missing();
  return "timed out after " + deadline.to_string() + ": " +
         (ranks.empty() ? "this rank was delayed" : listed(ranks) + " did not join");
}

/// Returns the message of a timeout after all ranks had joined.
[[nodiscard]] inline std::string discontinued(Schedule& schedule, const Timeout& deadline) {
  const std::vector<int> ranks = schedule.missing();
  return "timed out after " + deadline.to_string() + ": " +
         (ranks.empty() ? "this rank was delayed" : listed(ranks) + " did not continue the call");
}

/// Collectives that every rank makes in one order: compares the ranks' calls, and transfers operands by a Schedule.
///
/// `wait(ready, overdue)` waits until `ready()`, and throws if the communicator is revoked, which it is after each
/// failure, or at the deadline a TimeoutError with the message `overdue()`.
class OrderedCalls {
 public:
  /// @param carrier  has no other messages with the tags that are passed
  OrderedCalls(const Carrier& carrier, const calls::RankOf& self, const Timeout& deadline)
      : carrier_(carrier),
        self_(self),
        deadline_(deadline),
        exchange_(std::make_unique<CallExchange>(carrier, self)),
        schedule_(std::make_unique<Schedule>(carrier, self)) {}
  OrderedCalls(const OrderedCalls&) = delete;
  OrderedCalls& operator=(const OrderedCalls&) = delete;
  ~OrderedCalls() {
    if (!exchange_->over()) (void)exchange_.release();
  }

  /// Returns whether `transfer` supports calls with any counts on these ranks.
  [[nodiscard]] bool counts_fit() const noexcept { return exchange_->counts_fit(); }

  /// Waits until every rank has joined the call, and compares; returns whether the call is complete.
  template <class Wait>
  [[nodiscard]] bool join(const Call<Host>& call, int tag, const ErrorContext& context, Wait&& wait) {
    try {
      exchange_->begin(call, tag, context);
      wait([&] { return exchange_->advance(context); }, [&] { return absent(*exchange_, deadline_); });
    } catch (...) {
      // MPI may still access the object; the communicator is revoked now and needs no other.
      if (!exchange_->abandon()) (void)exchange_.release();
      exchange_ = std::make_unique<CallExchange>(carrier_, self_);
      throw;
    }
    exchange_->compare(call, context);
    if (!exchange_->all_inlined(call)) return false;
    exchange_->complete(call);
    return true;
  }
  /// Transfers a call that all ranks have joined.
  template <class Wait>
  void transfer(const Call<Host>& call, int tag, const ErrorContext& context, Wait&& wait) {
    if (call.kind == calls::CollectiveKind::barrier) return;
    try {
      schedule_->run(call, exchange_->views(), tag, context,
                     [&](auto&& complete) { wait(complete, [&] { return discontinued(*schedule_, deadline_); }); });
    } catch (...) {
      // MPI may still access the object; the communicator is revoked now and needs no other.
      if (!schedule_->abandon()) (void)schedule_.release();
      throw;
    }
  }

 private:
  Carrier carrier_;
  calls::RankOf self_;
  Timeout deadline_;
  std::unique_ptr<CallExchange> exchange_;
  std::unique_ptr<Schedule> schedule_;
};

/// Waits as `wait_until` does, but sleeps between polls unless `hurried()`: for a thread that moves data while another
/// one computes, perhaps on the same core. A sleep takes a quarter of the time waited so far.
template <class Ready, class Stopped, class Hurried>
WaitEnd wait_beside(const Timeout& timeout, Ready&& ready, Stopped&& stopped, Hurried&& hurried) {
  using std::chrono::microseconds;
  const auto began = Deadline::clock::now();
  const Deadline deadline(timeout, began);
  for (unsigned polls = 1; !hurried(); ++polls) {
    if (ready()) return WaitEnd::ready;
    if (polls % 4 == 0 && stopped()) return ready() ? WaitEnd::ready : WaitEnd::stopped;
    if (deadline.expired()) return ready() ? WaitEnd::ready : WaitEnd::expired;
    const auto waited = std::chrono::duration_cast<microseconds>(Deadline::clock::now() - began);
    std::this_thread::sleep_for(std::clamp(waited / 4, microseconds(50), microseconds(500)));
  }
  if (deadline.unlimited()) return wait_until(timeout, ready, stopped);
  const auto left = std::chrono::duration_cast<Timeout::duration>(deadline.end() - Deadline::clock::now());
  return wait_until(std::max(left, Timeout::duration(0)), ready, stopped);
}

}  // namespace distx::detail::mpi
