// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <array>
#include <cstring>

#include "distx/connect/connector.hpp"
#include "distx/cuda/device.hpp"

namespace distx {

/// Options of `pick_device`.
struct PickOptions {
  /// Lets several ranks use one GPU: for tests, since NCCL takes that only where it believes them to be on different
  /// machines.
  bool share = false;
};

namespace cuda::detail {

/// What the ranks tell each other of the GPU that each has picked.
struct Picked {
  std::array<char, 16> uuid{};
  int local_rank = 0;
  int visible = 0;  ///< 0 where there is none, -1 where asking went wrong
};

[[nodiscard]] inline std::array<char, 16> uuid_of(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  std::array<char, 16> uuid{};
  std::memcpy(uuid.data(), properties.uuid.bytes, uuid.size());
  return uuid;
}

}  // namespace cuda::detail

/// Makes one GPU per rank current: the one of this rank's number on its machine among those that it sees, or its only
/// one, where the launcher shows each rank its own. Collective; the ranks agree by the GPUs' UUIDs that no two share
/// one. Returns its number in this process.
/// @throws Error, on every rank, where a rank sees no GPU, a machine has too few, or two ranks picked the same
template <Connector C>
int pick_device(C& connector, const PickOptions& options = {}) {
  const ErrorContext context{
      .operation = "pick_device", .backend = "cuda", .rank = connector.rank(), .size = connector.size()};
  cuda::detail::Picked mine{.local_rank = connector.local_rank(), .visible = device_count()};
  int device = 0;
  if (mine.visible > 0) {
    // A launcher that shows each rank its own GPU leaves but one.
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
      throw Error("rank " + std::to_string(rank) + " sees no GPU" +
                      (static_cast<int>(rank) == connector.rank() ? ": " + why_no_gpu() : std::string()),
                  context);
  for (std::size_t rank = 0; rank < all.size() && !options.share; ++rank)
    for (std::size_t other = 0; other < rank; ++other)
      if (all[rank].uuid == all[other].uuid)
        throw Error("ranks " + std::to_string(other) + " and " + std::to_string(rank) +
                        " have picked the same GPU: start at most as many ranks on a machine as it has GPUs (rank " +
                        std::to_string(rank) + " sees " + std::to_string(all[rank].visible) + ")",
                    context);
  set_device(device);
  return device;
}

}  // namespace distx
