// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>

#include "distx/nccl/detail/open_group.hpp"

namespace distx::inline DISTX_ABI {

/// Makes NCCL take the asynchronous calls that start in its scope as one (ncclGroupStart, ncclGroupEnd).
///
/// - The calls begin when the group ends; until then they cannot be waited for.
/// - Messages in one group do not wait for each other, and one thread can start the calls of several GPUs.
/// - Groups may be nested: the outermost counts. A group belongs to the thread that made it.
/// - Errors at the end of the group are thrown by the calls' `wait`. If destroyed during unwinding, it revokes the
///   communicators that have calls in it.
class NcclGroup {
 public:
  /// Opens a group on this thread.
  /// @throws BackendError
  NcclGroup() : outermost_(nccl::detail::open_group == nullptr) {
    nccl::detail::check(ncclGroupStart(), "ncclGroupStart", {.operation = "NcclGroup", .backend = "nccl"});
    if (outermost_) nccl::detail::open_group = &group_;
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() { end(); }

  /// Ends the group before its scope ends.
  void end() noexcept {
    if (std::exchange(ended_, true)) return;
    if (outermost_) nccl::detail::open_group = nullptr;
    const ncclResult_t code = ncclGroupEnd();
    if (!outermost_) return;
    const bool unwinding = std::uncaught_exceptions() > uncaught_;
    for (auto& [member, lock] : group_.locks) member->leave_group(std::move(lock), code, unwinding);
    group_.locks.clear();
  }

 private:
  int uncaught_ = std::uncaught_exceptions();
  bool outermost_;
  bool ended_ = false;
  nccl::detail::OpenGroup group_;
};

}  // namespace distx::inline DISTX_ABI
