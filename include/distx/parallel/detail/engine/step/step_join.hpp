// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/detail/host_values.hpp"
#include "distx/parallel/detail/base/training_communicators.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A call that the ranks with a batch make in a step, and that ranks without one make with them.
enum class JoinedCall : std::uint8_t { none, unshard, ready, micro_batch, last_micro_batch, end };

/// The ranks with and without a batch in a step.
///
/// In an uneven step, a rank without a batch does not know the order of the calls that are collective before the step's
/// end: scopes of `unshard`, the order of `ready` at stage 3, micro-batches whose gradients are reduced. The ranks with
/// a batch announce them, one blocking reduction of a number per call, on a communicator that has no other calls.
template <MemorySpace Space>
class StepJoin {
 public:
  using here = std::source_location;

  /// Counts the ranks with a batch. Collective.
  /// @param announces  whether the training has collective calls before the step's end
  int begin(TrainingCommunicators<Space>& comms, bool has_batch, bool announces, const here& location) {
    std::uint64_t with_batch = has_batch ? 1 : 0;
    if (comms.all().size() > 1) all_reduce_values(comms.all(), Span<std::uint64_t>(&with_batch, 1), sum, location);
    const int active = static_cast<int>(with_batch);
    uneven_ = active > 0 && active < comms.all().size();
    idle_ = uneven_ && !has_batch;
    announces_ = uneven_ && announces;
    if (announces_) comms.separate_announcements(location);
    return active;
  }
  /// Whether some ranks have a batch in this step, and some do not.
  [[nodiscard]] bool uneven() const noexcept { return uneven_; }
  /// Whether this rank has no batch, and others have one.
  [[nodiscard]] bool idle() const noexcept { return idle_; }
  [[nodiscard]] bool announces() const noexcept { return announces_; }

  struct AnnouncedCall {
    JoinedCall call = JoinedCall::none;
    std::size_t index = 0;
  };
  /// Announces a call on ranks with a batch, and returns the announced call on the others. Collective.
  /// @pre announces()
  AnnouncedCall announce(TrainingCommunicators<Space>& comms, AnnouncedCall mine, const here& location) {
    std::uint64_t code = (std::uint64_t{mine.index} << 8) | static_cast<std::uint64_t>(mine.call);
    all_reduce_values(*comms.announcements(), Span<std::uint64_t>(&code, 1), max, location);
    return {static_cast<JoinedCall>(code & 0xFF), static_cast<std::size_t>(code >> 8)};
  }
  /// On a rank without a batch: calls f(announced) for each call that is announced, until one ends the step.
  template <class F>
  void follow(TrainingCommunicators<Space>& comms, const here& location, F&& f) {
    while (announces()) {
      const AnnouncedCall announced = announce(comms, {}, location);
      if (announced.call == JoinedCall::end) return;
      f(announced.call, announced.index);
    }
  }
  void end_step() noexcept { uneven_ = idle_ = announces_ = false; }

 private:
  bool uneven_ = false;
  bool idle_ = false;
  bool announces_ = false;
};

}  // namespace distx::inline DISTX_ABI::detail
