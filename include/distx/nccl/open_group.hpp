// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "distx/nccl/check.hpp"

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
};

/// This thread's; null where it has none.
inline thread_local constinit OpenGroup* open_group = nullptr;

}  // namespace distx::nccl
