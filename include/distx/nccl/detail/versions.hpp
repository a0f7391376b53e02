// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <nccl.h>

#include <string>

#include "distx/nccl/detail/check.hpp"

struct ncclWindow_vidmem;  // NCCL's, which it declares from 2.27 on

// What only newer versions of NCCL have, found by the declarations of its header.
namespace distx::inline DISTX_ABI::nccl::detail {

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

/// NCCL 2.24.
template <class DataType>
concept HasFloat8 = requires {
  DataType::ncclFloat8e4m3;
  DataType::ncclFloat8e5m2;
};

/// @name NCCL's flags, which only newer headers name
/// @{
/// NCCL_WIN_DEFAULT. With NCCL_WIN_COLL_SYMMETRIC NCCL would assume that all ranks pass the same offset into their
/// windows, and otherwise move the wrong bytes.
inline constexpr int window_flags = 0x00;
inline constexpr int shrink_default = 0x00;  ///< NCCL_SHRINK_DEFAULT
inline constexpr int shrink_abort = 0x01;    ///< NCCL_SHRINK_ABORT
/// @}

/// A version as NCCL numbers it: 22809 is `2.28.9`.
[[nodiscard]] inline std::string version_words(int code = NCCL_VERSION_CODE) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." + std::to_string(code % 100);
}

/// @throws ConnectError if the library is older than the header that this program was compiled with
inline void check_version() {
  int library = 0;
  check(ncclGetVersion(&library), "ncclGetVersion", {});
  if (library < NCCL_VERSION_CODE)
    throw ConnectError("the NCCL library is version " + version_words(library) +
                       ", and this program was compiled for " + version_words() +
                       "; install that version or newer, or compile with the library's header");
}

}  // namespace distx::inline DISTX_ABI::nccl::detail
