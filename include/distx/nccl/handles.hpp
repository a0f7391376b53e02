// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <nccl.h>

#include "distx/core/unique_handle.hpp"
#include "distx/nccl/versions.hpp"

// What gives NCCL's handles back. None of it throws: what cannot be freed has died with its device.
namespace distx::nccl {

/// A communicator that may have work in flight: letting it go aborts it, which waits for no other rank.
struct comm_traits {
  using handle_type = ncclComm_t;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type comm) noexcept { static_cast<void>(ncclCommAbort(comm)); }
};

/// A communicator that ncclCommFinalize has brought to rest.
struct finalized_comm_traits {
  using handle_type = ncclComm_t;
  static handle_type null() noexcept { return nullptr; }
  static void close(handle_type comm) noexcept { static_cast<void>(ncclCommDestroy(comm)); }
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
