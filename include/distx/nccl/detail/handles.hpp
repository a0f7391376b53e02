// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <nccl.h>

#include "distx/core/detail/wait.hpp"
#include "distx/core/unique_handle.hpp"
#include "distx/cuda/detail/check.hpp"
#include "distx/nccl/detail/versions.hpp"

// What gives NCCL's handles back. None of it throws: what cannot be freed has died with its device.
namespace distx::nccl {

/// Ends a communicator by `end`, and waits two seconds at most.
///
/// NCCL ends it together with the other processes of the machine, and waits without a limit for theirs (its service
/// thread stays while a peer's connection does). Who lets go later, or never, holds up a thread that does nothing else.
inline void end_in_time(ncclComm_t comm, ncclResult_t (*end)(ncclComm_t)) noexcept {
  int device = 0;
  static_cast<void>(cudaGetDevice(&device));
  distx::detail::run_in_time(std::chrono::seconds(2), [=] {
    static_cast<void>(cudaSetDevice(device));
    static_cast<void>(end(comm));
  });
}

/// A communicator that may have work in flight: letting it go aborts it.
struct comm_traits {
  using handle_type = ncclComm_t;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type comm) noexcept { end_in_time(comm, ncclCommAbort); }
};

/// A communicator that ncclCommFinalize has brought to rest.
struct finalized_comm_traits {
  using handle_type = ncclComm_t;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type comm) noexcept { end_in_time(comm, ncclCommDestroy); }
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

/// What a communicator knows of memory of `ncclMemAlloc`. @pre HasWindows<Comm>
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

using unique_comm = unique_handle<comm_traits>;
using unique_finalized_comm = unique_handle<finalized_comm_traits>;
using unique_reduction = unique_handle<reduction_traits>;
template <class Comm>
using unique_memory = unique_handle<memory_traits<Comm>>;
template <class Comm>
using unique_window = unique_handle<window_traits<Comm>>;

}  // namespace distx::nccl
