// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <exception>

#include "distx/nccl/detail/open_group.hpp"

namespace distx {

/// Lets NCCL take the calls that are started while it lives as one, which begins when it ends.
///
/// So messages that pass each other do not wait for one another, and one thread can start the calls of several GPUs.
/// Groups may be nested: the outermost counts. It belongs to the thread that made it. Nothing in it can be waited for
/// before its end; what goes wrong then, the Pendings throw. One that is let go while unwinding revokes the
/// communicators that have calls in it.
class NcclGroup {
 public:
  NcclGroup() : outermost_(nccl::open_group == nullptr) {
    nccl::check(ncclGroupStart(), "ncclGroupStart", {.operation = "NcclGroup", .backend = "nccl"});
    if (outermost_) nccl::open_group = &group_;
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() { end(); }

  /// Ends it before its scope does.
  void end() noexcept {
    if (std::exchange(ended_, true)) return;
    if (outermost_) nccl::open_group = nullptr;
    const ncclResult_t code = ncclGroupEnd();
    if (!outermost_) return;
    const bool unwinding = std::uncaught_exceptions() > uncaught_;
    for (const auto& member : group_.members) member->leave_group(code, unwinding);
    group_.members.clear();
  }

 private:
  int uncaught_ = std::uncaught_exceptions();
  bool outermost_;
  bool ended_ = false;
  nccl::OpenGroup group_;
};

}  // namespace distx
