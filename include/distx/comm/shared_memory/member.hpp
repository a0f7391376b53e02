// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <memory>

#include "distx/comm/communicator.hpp"
#include "distx/comm/shared_memory/collective.hpp"
#include "distx/core/detail/revoke_on_exception.hpp"

namespace distx::shared_memory {

/// One rank's side of an arena; what the handles, the Pendings and the progress thread share.
class Member {
 public:
  Member(std::shared_ptr<Arena> arena, int rank, std::string_view backend)
      : self{rank, arena->size(), backend}, arena_(std::move(arena)) {}
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member() {
    // Whoever unwinds will not come to the calls that the others wait in.
    if (std::uncaught_exceptions() > uncaught_) arena_->revoke(self.rank, "it let the communicator go while unwinding");
    arena_->leave(self.rank);
  }

  template <Collective Call>
  void collective(Lane lane, const Call& call) {
    guarded([&] { run_collective(*arena_, lane, call, self, workspaces_[static_cast<std::size_t>(lane)]); });
  }

  /// Runs `f`; where it throws, the others are told before the caller is, who then frees the buffers.
  template <class F>
  void guarded(F&& f) {
    detail::revoke_on_exception(f, [&](const char* words) { arena_->revoke(self.rank, words); });
  }

  [[nodiscard]] Arena& arena() noexcept { return *arena_; }
  [[nodiscard]] const std::shared_ptr<Arena>& shared_arena() const noexcept { return arena_; }
  [[nodiscard]] ProgressThread& progress() noexcept { return progress_; }
  [[nodiscard]] Span<std::byte> scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_ = Buffer<std::byte>(bytes);
    return {scratch_.data(), bytes};
  }

  GroupCache groups;
  const RankOf self;

 private:
  std::shared_ptr<Arena> arena_;
  std::array<Workspace, 2> workspaces_;
  Buffer<std::byte> scratch_;
  int uncaught_ = std::uncaught_exceptions();
  ProgressThread progress_;  // last: joined before anything that its tasks use goes
};

}  // namespace distx::shared_memory
