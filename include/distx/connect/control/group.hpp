// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/connect/control/messages.hpp"
#include "distx/connect/self.hpp"
#include "distx/core/detail/made_here.hpp"

namespace distx::detail::control {

/// One rank's side of a connector: calls in step with the other ranks, failure notifications, and the groups after
/// `shrink` and `grow`. A transport derives from it.
class ControlGroup : public FailureChannel {
 public:
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int local_rank() const noexcept { return local_rank_; }
  [[nodiscard]] int local_size() const noexcept { return local_size_; }
  [[nodiscard]] ErrorContext where(std::string_view operation) const noexcept {
    return {.operation = operation, .backend = backend_, .rank = rank_, .size = size_};
  }

  /// Enters a call, and returns the bytes that its result has for this rank. Collective.
  /// @throws MismatchError on every rank if the calls differ; the ranks remain in step
  [[nodiscard]] std::string call(CallPart part, const ErrorContext& context) {
    made_.check("this connector", context);
    if (failed_) throw RevokedError("an earlier call of this connector failed", context);
    failed_ = true;  // until all have entered it: else this rank is out of step
    part.limit = milliseconds_of(deadline_);
    try {
      auto bytes = complete(std::move(part), context);
      failed_ = false;
      return bytes;
    } catch (const MismatchError&) {
      failed_ = false;
      throw;
    }
  }
  /// Returns a group of the ranks that enter this call.
  [[nodiscard]] std::shared_ptr<ControlGroup> shrink(const Timeout& deadline) {
    const auto context = where("shrink");
    check_current(context);
    replaced_ = true;
    return survivors(deadline, context);
  }
  /// Returns a group of all ranks and of the processes that wait to join; null if none does. Collective.
  [[nodiscard]] std::shared_ptr<ControlGroup> grow() {
    const auto context = where("grow");
    check_current(context);
    const bool finds = rank_ == 0 && find_candidates();
    if (call({.call = "grow", .result = CallResult::of_root, .bytes = finds ? "1" : ""}, context).empty())
      return nullptr;
    auto larger = enlarged(context);
    replaced_ = true;
    return larger;
  }
  /// @throws InvalidArgument if a call moves more bytes than the transport can
  void check_length(std::size_t bytes, const ErrorContext& context) const {
    if (const auto most = most_bytes(); bytes > most)
      throw InvalidArgument("a control message has at most " + std::to_string(most) +
                                " bytes for all ranks, this one has " + std::to_string(bytes),
                            context);
  }

 protected:
  /// @param processes  of all ranks
  ControlGroup(std::string_view backend, const Timeout& deadline, int rank, const std::vector<Process>& processes)
      : deadline_(deadline), backend_(backend), rank_(rank), size_(static_cast<int>(processes.size())) {
    for (int other = 0; other < size_; ++other) {
      if (!processes[static_cast<std::size_t>(other)].shares_host_with(processes[static_cast<std::size_t>(rank)]))
        continue;
      local_rank_ += other < rank ? 1 : 0;
      ++local_size_;
    }
  }

  /// Exchanges the ranks' parts, and returns the bytes of the result.
  /// @throws TimeoutError naming the missing ranks; RankFailure or RevokedError if one will not enter the call
  virtual std::string complete(CallPart part, const ErrorContext& context) = 0;
  virtual std::shared_ptr<ControlGroup> survivors(const Timeout& deadline, const ErrorContext& context) = 0;
  /// Returns whether processes wait to join, as far as rank 0 knows before the call.
  virtual bool find_candidates() { return false; }
  virtual std::shared_ptr<ControlGroup> enlarged(const ErrorContext& context) = 0;
  [[nodiscard]] virtual std::size_t most_bytes() const noexcept { return ~std::size_t{0}; }

  [[nodiscard]] bool is_here() const noexcept { return made_.is_here(); }
  /// Returns whether this object is destroyed by the unwinding of an exception.
  [[nodiscard]] bool is_unwinding() const noexcept { return std::uncaught_exceptions() > uncaught_; }
  [[nodiscard]] bool has_failed() const noexcept { return failed_; }
  [[nodiscard]] std::string name(int rank) const { return name_of(rank, size_); }

  const Timeout deadline_;

 private:
  void check_current(const ErrorContext& context) const {
    made_.check("this connector", context);
    if (replaced_) throw replaced_before(context);
  }

  MadeHere made_;
  int uncaught_ = std::uncaught_exceptions();
  std::string_view backend_;
  int rank_;
  int size_;
  int local_rank_ = 0;
  int local_size_ = 0;
  bool failed_ = false;
  bool replaced_ = false;  // by the group that `shrink` or `grow` has returned
};

}  // namespace distx::detail::control
