// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cerrno>
#include <system_error>

#include "distx/parallel/detail/memory/tracked_memory.hpp"
#include "distx/posix/unnamed_file.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Where a training keeps optimizer states and master weights: in files in `folder`, unless that is empty, or in host
/// memory if `offload`; and the context of errors.
struct StatePlacement {
  const std::string& folder;
  const ErrorContext& context;
  bool offload = false;
};

/// Allocates zeros of this rank in page-locked host memory, which kernels access in place.
/// @pre reaches_staging<Space>
/// @throws MemoryError
template <MemorySpace Space>
[[nodiscard]] TrackedMemory<Space> allocate_on_host(const std::shared_ptr<MemoryAccount>& account, std::size_t bytes) {
  try {
    const auto buffer = std::make_shared<StagingBuffer<std::byte, Space>>(bytes);
    return std::make_shared<TrackedBytes<Space>>(account, observe::MemoryKind::offloaded,
                                                 CommunicatorMemory<std::byte, Space>({buffer->data(), bytes}, buffer));
  } catch (const MemoryError& error) {
    throw MemoryError("cannot allocate " + std::to_string(bytes) +
                          " bytes of page-locked host memory for optimizer states: " + error.what() +
                          "; omit .offload, or let fewer ranks share the host's memory",
                      {}, error.code());
  }
}

/// Allocates zeros of this rank for optimizer states and master weights.
/// @throws InvalidArgument if the system does not create a file there; MemoryError if the disk or memory is full
template <MemorySpace Space>
[[nodiscard]] TrackedMemory<Space> allocate_for_optimizer(const std::shared_ptr<MemoryAccount>& account,
                                                          std::size_t bytes, const StatePlacement& place) {
  if constexpr (reaches_staging<Space>)
    if (place.offload) return allocate_on_host<Space>(account, bytes);
  if (place.folder.empty() || bytes == 0)
    return allocate_tracked_local<Space>(account, observe::MemoryKind::optimizer, bytes);
  const auto file = std::make_shared<posix::Mapping>(posix::map_unnamed_file(place.folder, bytes));
  if (!*file) {
    const int code = errno;
    const std::string message = "cannot reserve " + std::to_string(bytes) + " bytes for optimizer states in '" +
                                place.folder + "': " + std::generic_category().message(code);
    if (code == ENOSPC || code == EDQUOT || code == EFBIG || code == ENOMEM)
      throw MemoryError(message + "; free space there, or set .state_folder to a folder on a larger disk", {}, code);
    throw InvalidArgument(message + "; set .state_folder to an existing folder in which this process may create files",
                          place.context, code);
  }
  return std::make_shared<TrackedBytes<Space>>(
      account, observe::MemoryKind::offloaded,
      CommunicatorMemory<std::byte, Space>({static_cast<std::byte*>(file->native_handle().address), bytes}, file));
}

}  // namespace distx::inline DISTX_ABI::detail
