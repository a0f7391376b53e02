// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <cstdint>

#include "distx/core/version.hpp"

// The structs of DLPack's binary interface, major version 1, with their names and layouts there. A program may pass
// those of a `dlpack.h` instead.
namespace distx::inline DISTX_ABI::dlpack {

/// A kind of memory (1: the host's, 2: CUDA's, 3: pinned by CUDA, …) and the number of its device.
struct DLDevice {
  std::int32_t device_type = 1, device_id = 0;
};

/// An element type: its kind (0: int, 1: uint, 2: float, …), the bits of a lane, and the lanes of an element.
struct DLDataType {
  std::uint8_t code = 0, bits = 0;
  std::uint16_t lanes = 1;
  bool operator==(const DLDataType&) const = default;
};

/// A tensor that owns nothing. Strides count elements; null strides mean row-major without gaps.
struct DLTensor {
  void* data = nullptr;
  DLDevice device{};
  std::int32_t ndim = 0;
  DLDataType dtype{};
  std::int64_t *shape = nullptr, *strides = nullptr;
  std::uint64_t byte_offset = 0;
};

/// A tensor with its deleter, as libraries exchanged it before version 1: `"dltensor"` in a PyCapsule.
struct DLManagedTensor {
  DLTensor dl_tensor{};
  void* manager_ctx = nullptr;
  void (*deleter)(DLManagedTensor*) = nullptr;
};

/// A version of the binary interface. Layouts are equal within a major version.
struct DLPackVersion {
  std::uint32_t major = 1, minor = 1;
};

/// A tensor with its deleter and flags, of which 1 means read-only: `"dltensor_versioned"` in a PyCapsule.
struct DLManagedTensorVersioned {
  DLPackVersion version{};
  void* manager_ctx = nullptr;
  void (*deleter)(DLManagedTensorVersioned*) = nullptr;
  std::uint64_t flags = 0;
  DLTensor dl_tensor{};
};

/// DLManagedTensor or DLManagedTensorVersioned, declared here or in a `dlpack.h`.
template <class M>
concept ManagedTensor = sizeof(M().dl_tensor) == sizeof(DLTensor) && requires(M& m) { m.deleter(&m); };

/// A managed tensor that has a version and flags.
template <class M>
concept VersionedTensor = ManagedTensor<M> && requires(M& m) { m.version.major + m.flags; };

}  // namespace distx::inline DISTX_ABI::dlpack
