// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"
#include "distx/parallel/parameter_list.hpp"

namespace distx::detail {

/// How far each parameter is in a step: how often it was ready, whether any rank has a gradient, how often updated.
template <MemorySpace Space>
class Uses {
 public:
  struct Use {
    int ready = 0;                       ///< calls in this step
    bool touched = false;                ///< a borrowed gradient was asked for in this step
    typename Space::stream zeroed_on{};  ///< where that was
    bool used = false;                   ///< in an earlier micro-batch of this step
    bool skipped = false;                ///< no rank had a gradient in this step
    std::uint64_t updates = 0;           ///< so far
  };

  explicit Uses(std::size_t entries) : uses_(entries) {}
  [[nodiscard]] Use& operator[](std::size_t entry) noexcept { return uses_[entry]; }

  /// One more use of the entry's gradient is over; true where that was the last one.
  /// @throws MismatchError
  bool ready(std::size_t index, const Entry<Space>& entry, const ErrorContext& context) {
    const std::string name = "'" + entry.name + "' ";
    const auto fail = [&](const std::string& words) { throw MismatchError(name + words, context); };
    if (entry.buffer) fail("is a buffer and has no gradient");
    if (!entry.options.trainable) fail("is frozen and has no gradient: set .trainable");
    if (uses_[index].ready == entry.options.uses)
      fail(entry.options.uses == 1 ? "is ready already: declare it with .uses = 2 if two layers share it"
                                   : "has been ready for all of its .uses already");
    return ++uses_[index].ready == entry.options.uses;
  }

  /// @throws MismatchError where this rank may not write the gradient any more, or there is none
  void demand_unsent(std::size_t index, const Entry<Space>& entry, const ErrorContext& context) const {
    if (!entry.trained())
      throw MismatchError("'" + entry.name + "' is frozen and has no gradient: set .trainable", context);
    if (uses_[index].ready == entry.options.uses)
      throw MismatchError("'" + entry.name +
                              "' was declared ready, and its gradient is being reduced: write it before "
                              "ready, or declare more .uses",
                          context);
  }

  /// Whether all that is trained is ready as often as declared; else, with `allow_unused`, whether that can be.
  /// @throws MismatchError that names the first parameter for which it is not so
  void demand_all(const std::vector<Entry<Space>>& entries, bool allow_unused, const ErrorContext& context) const {
    const auto fail = [&](const std::string& words) { throw MismatchError(words, context); };
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const Entry<Space>& entry = entries[i];
      const int ready = uses_[i].ready;
      if (!entry.trained() || ready == entry.options.uses) continue;
      if (ready == 0 && !uses_[i].used && ((entry.owned && entry.owned->touched) || uses_[i].touched))
        fail("the gradient of '" + entry.name + "' was asked for, and ready was not called for it: call it");
      if (allow_unused) continue;
      if (ready == 0)
        fail("'" + entry.name +
             "' has no gradient in this step: call ready for it, freeze it with "
             ".trainable = false, or allow that with .allow_unused = true");
      fail("ready was called " + std::to_string(ready) + " times for '" + entry.name + "', declared with .uses = " +
           std::to_string(entry.options.uses) + ": call it for each use, or set .allow_unused = true");
    }
  }

  /// Finds out what no rank has used. Collective.
  void agree(AnyCommunicator<Space>& comm, const std::source_location& location) {
    std::vector<std::uint8_t> used(uses_.size());
    for (std::size_t i = 0; i < used.size(); ++i) used[i] = uses_[i].ready > 0 || uses_[i].used ? 1 : 0;
    if (comm.size() > 1) all_reduce_values(comm, Span<std::uint8_t>(used), max, location);
    for (std::size_t i = 0; i < used.size(); ++i) uses_[i].skipped = used[i] == 0;
  }

  /// For the next step, or the next micro-batch of this one; whether its gradients begin with zeros.
  void restart(bool step, bool zeros) noexcept {
    for (auto& use : uses_) {
      use.used = !step && (use.used || use.ready > 0);
      use.ready = 0;
      use.touched = use.touched && !zeros;
    }
  }

 private:
  std::vector<Use> uses_;
};

}  // namespace distx::detail
