// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstring>

#include "distx/connect/connector.hpp"
#include "distx/cuda/device.hpp"

namespace distx::inline DISTX_ABI {

namespace cuda {

/// Options of `pick_device`.
struct PickOptions {
  /// Lets several ranks use one GPU, for tests: NCCL accepts that only if it believes the ranks to be on different
  /// hosts.
  bool share = false;
};

}  // namespace cuda

namespace cuda::detail {

/// A rank's choice, as the ranks exchange it.
struct Picked {
  std::array<char, 16> uuid{};
  int local_rank = 0;
  int visible = 0;  ///< 0 if there is none, -1 if the query failed
};

[[nodiscard]] inline std::array<char, 16> uuid_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  std::array<char, 16> uuid{};
  std::memcpy(uuid.data(), properties.uuid.bytes, uuid.size());
  return uuid;
}

}  // namespace cuda::detail

namespace cuda {

/// Makes a GPU current that no other rank uses, and returns its number in this process.
///
/// Takes the GPU with the number of the rank on its host, or the only visible one if the launcher shows each rank its
/// own. Collective over the connector; the ranks compare their GPUs' UUIDs.
/// @throws InvalidState on every rank if a rank sees no GPU or two ranks chose the same GPU
template <Connector C>
int pick_device(C& connector, const PickOptions& options = {}) {
  const ErrorContext context{
      .operation = "pick_device", .backend = "cuda", .rank = connector.rank(), .size = connector.size()};
  cuda::detail::Picked mine{.local_rank = connector.local_rank(), .visible = device_count()};
  int device = 0;
  if (mine.visible > 0) {
    device = mine.visible == 1 ? 0 : mine.local_rank % mine.visible;
    try {
      mine.uuid = cuda::detail::uuid_of(device);
    } catch (const Error&) {
      mine.visible = -1;
    }
  }
  const auto all = all_gather_values(connector, mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].visible <= 0)
      throw InvalidState("rank " + std::to_string(rank) + " sees no GPU" +
                             (static_cast<int>(rank) == connector.rank() ? ": " + why_no_gpu() : std::string()),
                         context);
  for (std::size_t rank = 0; rank < all.size() && !options.share; ++rank)
    for (std::size_t other = 0; other < rank; ++other)
      if (all[rank].uuid == all[other].uuid)
        throw InvalidState("ranks " + std::to_string(other) + " and " + std::to_string(rank) +
                               " chose the same GPU: start at most one rank per GPU of each host (rank " +
                               std::to_string(rank) + " sees " + std::to_string(all[rank].visible) + ")",
                           context);
  set_device(device);
  return device;
}

}  // namespace cuda

}  // namespace distx::inline DISTX_ABI
