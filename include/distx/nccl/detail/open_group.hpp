// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "distx/nccl/detail/check.hpp"

namespace distx::nccl {

/// A communicator with calls in a group that is open.
class GroupMember {
 public:
  /// The group has ended, and this is what NCCL says; or its thread unwinds.
  virtual void leave_group(ncclResult_t end, bool unwinding) noexcept = 0;

 protected:
  ~GroupMember() = default;
};

/// The group that a thread has open.
struct OpenGroup {
  std::vector<std::shared_ptr<GroupMember>> members;
  std::optional<bool> blocking;  ///< whether NCCL holds the host in its calls; the first of its communicators says it
};

/// This thread's; null where it has none.
inline thread_local constinit OpenGroup* open_group = nullptr;

/// @throws MismatchError where this thread has one open: NCCL would make a communicator at the group's end only
inline void refuse_making_in_group(const ErrorContext& context) {
  if (open_group != nullptr)
    throw MismatchError("a communicator cannot be made inside an NcclGroup: make it before", context);
}

}  // namespace distx::nccl
