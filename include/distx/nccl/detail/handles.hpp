// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <nccl.h>

#include "distx/core/unique_handle.hpp"
#include "distx/nccl/detail/ending_threads.hpp"
#include "distx/nccl/detail/versions.hpp"

// The owners of NCCL's handles. Closing one never throws.
namespace distx::inline DISTX_ABI::nccl::detail {

/// How a communicator is ended: ncclCommAbort or ncclCommDestroy.
struct CommEnd {
  ncclComm_t comm;
  ncclResult_t (*routine)(ncclComm_t);

  void operator()() const noexcept { static_cast<void>(routine(comm)); }
};

/// Ends communicators, all at once. Waits for up to two seconds: NCCL waits without a limit for the other processes of
/// the host to end theirs.
inline void end_in_time(std::span<CommEnd> ends) noexcept { EndingThreads::all().run(ends); }

/// A communicator that may have work in flight: closing it aborts that.
struct nccl_comm_traits {
  using handle_type = ncclComm_t;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type comm) noexcept {
    CommEnd end{comm, ncclCommAbort};
    end_in_time({&end, 1});
  }
};

/// Memory of `ncclMemAlloc`. @pre HasWindows<Comm>
template <class Comm>
struct memory_traits {
  using handle_type = void*;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type memory) noexcept { static_cast<void>(ncclMemFree(memory)); }
};

/// An op made for one communicator.
struct ReductionHandle {
  ncclRedOp_t op = ncclNumOps;
  ncclComm_t comm = nullptr;

  friend bool operator==(const ReductionHandle&, const ReductionHandle&) = default;
};

struct reduction_traits {
  using handle_type = ReductionHandle;
  static handle_type null() noexcept { return {}; }
  static void close(const handle_type& made) noexcept { static_cast<void>(ncclRedOpDestroy(made.op, made.comm)); }
};

/// A communicator's window on memory of `ncclMemAlloc`. @pre HasWindows<Comm>
template <class Comm>
struct WindowHandle {
  Comm comm = nullptr;
  ncclWindow_vidmem* window = nullptr;

  friend bool operator==(const WindowHandle&, const WindowHandle&) = default;
};

template <class Comm>
struct window_traits {
  using handle_type = WindowHandle<Comm>;
  static handle_type null() noexcept { return {}; }
  static void close(const handle_type& made) noexcept {
    static_cast<void>(ncclCommWindowDeregister(made.comm, made.window));
  }
};

using nccl_unique_comm = unique_handle<nccl_comm_traits>;
using unique_reduction = unique_handle<reduction_traits>;
template <class Comm>
using unique_memory = unique_handle<memory_traits<Comm>>;
template <class Comm>
using unique_window = unique_handle<window_traits<Comm>>;

}  // namespace distx::inline DISTX_ABI::nccl::detail
