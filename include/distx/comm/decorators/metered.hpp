// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <mutex>

#include "distx/comm/calls/wire_bytes.hpp"
#include "distx/comm/decorators/decorator.hpp"
#include "distx/observe/ledger.hpp"

namespace distx::inline DISTX_ABI {

/// A wrapper communicator that counts calls and their bytes on this rank.
///
/// A call counts once it has completed, or started, without an error; its bytes are those of `wire_bytes`, independent
/// of the backend's algorithm. Handles made by `share` and groups made by `split` count into the same ledger.
template <Communicator C>
class Metered : public detail::Decorator<C> {
  using base = detail::Decorator<C>;

 public:
  explicit Metered(C inner) : base(std::move(inner)), count_(std::make_shared<Count>()) {}

  template <class Call>
    requires calls::Executes<C, Call>
  void execute(const Call& call) {
    this->inner().execute(call);
    add(call);
  }
  template <class Call>
    requires calls::Starts<C, Call>
  [[nodiscard]] auto start(const Call& call, typename Call::space::stream after = {}) {
    auto pending = this->inner().start(call, after);
    add(call);
    return pending;
  }

  [[nodiscard]] Metered share() const { return Metered(this->inner().share(), this->groups(), count_); }
  [[nodiscard]] Metered split(int color, int key, std::source_location location = std::source_location::current()) {
    return split(detail::SplitRule(color, key), location);
  }
  [[nodiscard]] Metered split(const detail::SplitRule& rule, const std::source_location& location) {
    return Metered(detail::split_by(this->inner(), rule, location), std::make_shared<detail::GroupCache>(), count_);
  }

  /// Returns the traffic of this rank so far; `sum_over_ranks` adds up the ledgers of all ranks.
  [[nodiscard]] observe::Ledger ledger() const {
    const std::lock_guard lock(count_->mutex);
    return count_->ledger;
  }

 private:
  struct Count {
    std::mutex mutex;  // a group may be used by another thread than its parent
    observe::Ledger ledger;
  };

  Metered(C inner, std::shared_ptr<detail::GroupCache> groups, std::shared_ptr<Count> count)
      : base(std::move(inner), std::move(groups)), count_(std::move(count)) {}

  template <class Call>
  void add(const Call& call) {
    const calls::WireBytes wire = wire_bytes(call, this->rank(), this->size());
    const std::lock_guard lock(count_->mutex);
    count_->ledger.add(name_of(call.kind), {1, payload_bytes(call, this->rank()), wire.sent, wire.received});
  }

  std::shared_ptr<Count> count_;
};

}  // namespace distx::inline DISTX_ABI
