// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "distx/comm/communicator.hpp"
#include "distx/comm/detail/in_order.hpp"
#include "distx/comm/runtime/flight_log.hpp"
#include "distx/core/detail/known_failures.hpp"
#include "distx/core/detail/made_here.hpp"
#include "distx/core/detail/revoke_on_exception.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The state shared by all handles and operations of one rank's communicator.
///
/// `BasicCommunicator` documents the members of `Backend`.
template <class Backend>
class CommunicatorState {
 public:
  using space = typename Backend::space;

  /// Makes a state from the arguments of the backend's constructor. A forked process does not destroy it.
  template <class... Arguments>
  [[nodiscard]] static std::shared_ptr<CommunicatorState> make(Arguments&&... arguments) {
    return {new CommunicatorState(std::forward<Arguments>(arguments)...), DeleteHere{}};
  }
  ~CommunicatorState() {
    // A rank that unwinds never joins the calls in which its peers are waiting.
    if (std::uncaught_exceptions() > exceptions_) give_up({"its communicator was destroyed by an exception"});
  }

  /// @throws InvalidState in a process that was forked from the one of this rank
  void check_process(const Call<space>& call) const {
    if (!made_.is_here()) [[unlikely]]
      made_.throw_elsewhere("this communicator", backend.self().context(call));
  }
  void check_process(std::string_view operation, const std::source_location& location) const {
    const RankOf& self = backend.self();
    made_.check("this communicator", {operation, self.backend, self.rank, self.size, location});
  }

  /// Runs `f`; if it throws, revokes the communicator before the caller sees the error and frees its buffers.
  template <class F>
  decltype(auto) guarded(F&& f) {
    return revoke_on_exception(std::forward<F>(f), [this](const auto& reason) { give_up(reason); });
  }
  /// Revokes the communicator for the exception that is being handled.
  void give_up_for_exception() noexcept { give_up(RevocationReason::of_current()); }
  /// Revokes the communicator and writes the flight record, if asked to.
  void give_up(const RevocationReason& reason) noexcept {
    revoke(reason.published());
    flight.write(reason.text.c_str());
  }
  /// Revokes the communicator, unless this process was forked from the one that made it. May be called from any thread.
  /// @param published  the reason as `RevocationReason::published` returns it
  void revoke(const std::string& published) noexcept {
    if (!made_.is_here()) return;
    if (backend.self().size > 1 && !RevocationReason::on_all_ranks(RevocationReason::mark_of(published)))
      ++known_failures;
    backend.revoke(published);
  }
  /// Revokes the communicator and those that were split from it, in whose calls other ranks may be waiting.
  void revoke_all(const std::string& published) noexcept {
    revoke(published);
    const std::lock_guard lock(parts_mutex_);
    for (const auto& part : parts_)
      if (const auto state = part.lock()) state->revoke_all(published);
  }
  void add_part(const std::shared_ptr<CommunicatorState>& part) {
    const std::lock_guard lock(parts_mutex_);
    std::erase_if(parts_, [](const auto& known) { return known.expired(); });
    parts_.push_back(part);
  }

  /// Returns at least `bytes` of workspace. The next call may reuse it; collectives do not touch it.
  [[nodiscard]] Span<std::byte, space> scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) {
      if constexpr (requires { backend.make_scratch(bytes); })
        scratch_ = backend.make_scratch(bytes);
      else
        scratch_ = Buffer<std::byte, space>(bytes);
    }
    return {scratch_.data(), bytes};
  }

  GroupCache groups;
  FlightLog flight;

 private:
  template <class... Arguments>
  explicit CommunicatorState(Arguments&&... arguments) : backend(std::forward<Arguments>(arguments)...) {
    flight.open(backend.self());
  }

  MadeHere made_;
  std::mutex parts_mutex_;
  std::vector<std::weak_ptr<CommunicatorState>> parts_;
  int exceptions_ = std::uncaught_exceptions();
  Buffer<std::byte, space> scratch_;

 public:
  Backend backend;  ///< last: its destructor may wait for operations that use the members above
};

}  // namespace distx::inline DISTX_ABI::detail
