// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <distx/comm/any_communicator.hpp>
#include <distx/comm/calls/wire_bytes.hpp>
#include <distx/comm/decorators/decorator.hpp>

namespace timing {

/// A communicator that can be muted: it then moves nothing and never waits, to time a step without communication.
///
/// While it is muted it notes when each call comes, and its bytes.
class Muted : public distx::detail::Decorator<distx::AnyCommunicator<>> {
  using Any = distx::AnyCommunicator<>;
  using base = distx::detail::Decorator<Any>;
  using Call = distx::calls::Call<>;

 public:
  struct Note {
    std::chrono::steady_clock::time_point time;
    distx::calls::WireBytes bytes;
  };

  explicit Muted(Any inner) : base(std::move(inner)) {}

  void execute(const Call& call) {
    if (!noted(call)) inner().execute(call);
  }
  [[nodiscard]] distx::Pending<distx::Host> start(const Call& call, distx::HostStream after = {}) {
    return noted(call) ? distx::Pending<distx::Host>() : inner().start(call, after);
  }
  [[nodiscard]] Muted share() const { return Muted(inner().share(), groups(), state_); }
  [[nodiscard]] Muted split(int color, int key, std::source_location location = std::source_location::current()) {
    return Muted(split_inner(color, key, location), std::make_shared<distx::detail::GroupCache>(), state_);
  }

  /// From here on, on this rank; set it on the other ranks too.
  void mute() { state_->muted = true; }
  /// The calls since this was last asked.
  [[nodiscard]] std::vector<Note> take_notes() { return std::exchange(state_->notes, {}); }

 private:
  struct State {
    bool muted = false;
    std::vector<Note> notes{};
  };

  Muted(Any inner, std::shared_ptr<distx::detail::GroupCache> cache, std::shared_ptr<State> state)
      : base(std::move(inner), std::move(cache)), state_(std::move(state)) {}

  bool noted(const Call& call) {
    if (state_->muted) state_->notes.push_back({std::chrono::steady_clock::now(), wire_bytes(call, rank(), size())});
    return state_->muted;
  }

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace timing
