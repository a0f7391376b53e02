// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "distx/nccl/detail/check.hpp"

namespace distx::inline DISTX_ABI::nccl::detail {

/// A communicator that can have calls in an NcclGroup.
class GroupMember {
 public:
  /// Takes the lock back at the end of the group. `code` is what ncclGroupEnd returned.
  virtual void leave_group(std::unique_lock<std::mutex> lock, ncclResult_t code, bool unwinding) noexcept = 0;

 protected:
  ~GroupMember() = default;
};

/// Holds a communicator's lock from its first call in an NcclGroup to the end of the group, so that no other thread
/// aborts what is in it.
struct GroupLock {
  std::shared_ptr<GroupMember> member;
  std::unique_lock<std::mutex> lock;
};

/// The group that a thread has open.
struct OpenGroup {
  std::vector<GroupLock> locks;
  std::optional<bool> blocking;  ///< NcclOptions::blocking of its communicators

  [[nodiscard]] bool holds(const GroupMember* member) const noexcept {
    return std::ranges::any_of(locks, [member](const GroupLock& lock) { return lock.member.get() == member; });
  }
};

/// This thread's; null if it has none.
inline thread_local constinit OpenGroup* open_group = nullptr;

/// @throws InvalidState inside an NcclGroup, where NCCL would make a communicator only at the end of the group
inline void reject_making_in_group(const ErrorContext& context) {
  if (open_group != nullptr)
    throw InvalidState("a communicator cannot be made inside an NcclGroup; make it before", context);
}

/// @throws InvalidState inside an NcclGroup
inline void reject_blocking_in_group(const ErrorContext& context) {
  if (open_group != nullptr) [[unlikely]]
    throw InvalidState(
        "a blocking call inside an NcclGroup would wait for the end of the group; make it outside, or start it "
        "asynchronously",
        context);
}

}  // namespace distx::inline DISTX_ABI::nccl::detail
