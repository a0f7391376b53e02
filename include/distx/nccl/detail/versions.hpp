// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <nccl.h>

#include <string>

struct ncclWindow_vidmem;  // NCCL's, which it declares from 2.27 on

// What newer versions of NCCL have: found by the header's declarations, of which a program uses those that are there.
namespace distx::nccl {

/// NCCL 2.28.
template <class Comm>
concept HasAllToAll = requires(Comm comm) { ncclAlltoAll(nullptr, nullptr, 0, ncclUint8, comm, nullptr); };

/// NCCL 2.27.
template <class Comm>
concept HasWindows = requires(Comm comm, void* memory, ncclWindow_vidmem* window) {
  ncclMemAlloc(&memory, sizeof(comm));
  ncclCommWindowRegister(comm, memory, 0, &window, 0);
  ncclCommWindowDeregister(comm, window);
};

/// NCCL 2.27.
template <class Comm>
concept HasShrink = requires(Comm comm) { ncclCommShrink(comm, nullptr, 0, nullptr, nullptr, 0); };

/// NCCL 2.28.
template <class Comm>
concept HasRevoke = requires(Comm comm) { ncclCommRevoke(comm, 0); };

/// NCCL 2.24.
template <class DataType>
concept HasFloat8 = requires {
  DataType::ncclFloat8e4m3;
  DataType::ncclFloat8e5m2;
};

/// @name NCCL's flags, which only newer headers name
/// @{
/// NCCL_WIN_DEFAULT. With NCCL_WIN_COLL_SYMMETRIC it would take for granted, without looking, that all ranks pass
/// memory at the same place of their windows, and otherwise move the wrong bytes.
inline constexpr int window_flags = 0x00;
inline constexpr int shrink_default = 0x00;  ///< NCCL_SHRINK_DEFAULT
inline constexpr int shrink_abort = 0x01;    ///< NCCL_SHRINK_ABORT
/// @}

/// The version that this program was compiled with: `2.28.9`.
[[nodiscard]] inline std::string version_words() {
  return std::to_string(NCCL_MAJOR) + "." + std::to_string(NCCL_MINOR) + "." + std::to_string(NCCL_PATCH);
}

}  // namespace distx::nccl
