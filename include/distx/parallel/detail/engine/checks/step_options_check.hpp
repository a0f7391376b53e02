// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/core/detail/shortest.hpp"
#include "distx/parallel/data_parallel_options.hpp"
#include "distx/parallel/detail/engine/checks/consistency.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Checks the options of each step, on this rank and, from time to time, against the other ranks.
///
/// The learning rates and numbers of micro-batches of all steps are compared, but not in every step, so that a step
/// sends no more than it must: in the first step, in every 32nd after it, and when `compare` is called.
template <MemorySpace Space>
class StepOptionsCheck {
 public:
  static constexpr std::size_t interval = 32;

  /// @param skips  whether a loss that is not finite only makes the step be skipped
  /// @throws InvalidArgument, or NonFiniteError for the loss
  static void check(const StepOptions& options, bool skips, const ErrorContext& context) {
    if (const double rate = options.learning_rate; !is_finite(rate) || rate < 0)
      throw InvalidArgument("invalid .learning_rate = " + shortest(rate) + ": must be finite and >= 0", context);
    if (!is_finite(options.loss) && !skips)
      throw NonFiniteError("the loss of rank " + std::to_string(context.rank) + " is " + shortest(options.loss) +
                               "; lower the learning rate, check this step's data, or set .skip_nonfinite; losses of "
                               "float16 parameters are scaled by Precision",
                           context);
  }

  /// Notes the options of a step, and compares those noted in the first and in every 32nd step. Collective then.
  /// @param micro_batches  of the step; 0 if they may differ between the ranks
  /// @throws MismatchError on every rank, with the step and both values
  void note(AnyCommunicator<Space>& comm, const StepOptions& options, std::size_t micro_batches,
            const ErrorContext& context) {
    if (comm.size() == 1) return;
    noted_.push_back({options.learning_rate, micro_batches});
    if (steps_++ % interval == 0) compare(comm, context);
  }
  /// Compares the options noted since the last comparison. Collective over `comm`.
  void compare(AnyCommunicator<Space>& comm, const ErrorContext& context) {
    if (noted_.empty()) return;
    ConsistencyRecord record;
    for (std::size_t i = 0; i < noted_.size(); ++i) {
      const std::string step = " of step " + std::to_string(steps_ - noted_.size() + i);
      record.add(".learning_rate" + step, shortest(noted_[i].learning_rate));
      record.add("the number of micro-batches" + step, std::to_string(noted_[i].micro_batches));
    }
    noted_.clear();
    check_consistency(comm, record, "pass the same options, and make the same number of micro-batches, on every rank",
                      context);
  }

 private:
  struct Noted {
    double learning_rate;
    std::size_t micro_batches;
  };

  std::size_t steps_ = 0;
  std::vector<Noted> noted_;
};

}  // namespace distx::inline DISTX_ABI::detail
