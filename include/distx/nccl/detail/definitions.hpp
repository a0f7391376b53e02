// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <numeric>

#include "distx/core/version.hpp"
#include "distx/nccl/communicator.hpp"
#include "distx/nccl/detail/allocation.hpp"
#include "distx/nccl/detail/backend_definitions.hpp"
#include "distx/nccl/detail/make.hpp"

namespace distx::inline DISTX_ABI {

static_assert(Communicator<NcclCommunicator>);

DISTX_INLINE auto NcclCommunicator::connected(detail::ConnectorRef connector,
                                              const NcclOptions& options) -> std::shared_ptr<State> {
  return nccl::detail::connect(connector, options);
}
DISTX_INLINE auto NcclCommunicator::allocate_zeros(std::size_t size, std::size_t element_bytes,
                                                   const std::source_location& location)
    -> CommunicatorMemory<std::byte, Cuda> {
  return nccl::detail::allocate(state(), size, element_bytes, location);
}
DISTX_INLINE ErrorContext NcclCommunicator::context(std::string_view operation,
                                                    const std::source_location& location) const noexcept {
  return {.operation = operation, .backend = backend(), .rank = rank(), .size = size(), .location = location};
}

/// Makes a communicator of what `make(parent, stop)` returns, over the same failure channel.
template <class Make>
NcclCommunicator NcclCommunicator::made(const calls::RankOf& self, std::uint64_t identity, const ErrorContext& where,
                                        Make&& make) {
  const cuda::DeviceGuard guard(backend_of().device);
  return state()->guarded([&] {
    auto comms = [&] {
      try {
        return backend_of().comms.with_parent(where, [&](ncclComm_t parent) {
          return make(parent, [this] { return backend_of().revocation.poll(), backend_of().revocation.revoked(); });
        });
      } catch (const RevokedError&) {
        backend_of().check_usable(where);  // throws with the other rank's reason
        throw;
      }
    }();
    auto part = child(self, identity, where, std::move(comms));
    state()->add_part(part);
    return NcclCommunicator(std::move(part));
  });
}

DISTX_INLINE auto NcclCommunicator::child(const calls::RankOf& self, std::uint64_t identity, const ErrorContext& where,
                                          nccl::detail::Comms comms) const -> std::shared_ptr<State> {
  auto state = State::make(self, backend_of().device, backend_of().options, std::move(comms),
                           backend_of().revocation.failure_channel(), identity);
  state->backend.set_capability(backend_of().capability());
  state->guarded([&] { nccl::detail::connect_all(state->backend, where); });
  return state;
}

template <class Comm>
NcclCommunicator NcclCommunicator::shrunk(Comm, const calls::RankOf& self, std::uint64_t identity,
                                          const ErrorContext& where, std::vector<int>& without) {
  if constexpr (nccl::detail::HasShrink<Comm>) {
    nccl::detail::reject_making_in_group(where);
    const bool failed = backend_of().revocation.revoked();
    if (!failed)
      state()->guarded([&] { backend_of().settle(where); });  // NCCL may hang if the parent's operations are in flight
    const cuda::DeviceGuard guard(backend_of().device);
    auto comms = backend_of().comms.with_parent(where, [&](Comm parent) {
      if (parent == nullptr)
        throw InvalidState("NCCL has aborted this communicator; set NcclOptions::shrinkable to shrink after a failure",
                           where);
      return nccl::detail::shrink_all(parent, without, self.rank, failed, backend_of().options, where,
                                      [] { return false; });
    });
    return NcclCommunicator(child(self, identity, where, std::move(comms)));
  } else {
    throw BackendError("NCCL " + nccl::detail::version_words() + " has no ncclCommShrink; NCCL 2.27 is needed", where);
  }
}

DISTX_INLINE NcclCommunicator NcclCommunicator::from_native_handle(ncclComm_t comm, NcclOptions options) {
  calls::RankOf self{0, 1, "nccl"};
  const ErrorContext context{.operation = "NcclCommunicator", .backend = "nccl"};
  nccl::detail::reject_making_in_group(context);
  if (comm == nullptr) throw InvalidArgument("the communicator is null", context);
  nccl::detail::check_version();
  int device = 0;
  nccl::detail::check(ncclCommUserRank(comm, &self.rank), "ncclCommUserRank", context);
  nccl::detail::check(ncclCommCount(comm, &self.size), "ncclCommCount", context);
  nccl::detail::check(ncclCommCuDevice(comm, &device), "ncclCommCuDevice", context);
  options.device = device;
  cuda::detail::Pools::all().share(device);
  const cuda::DeviceGuard guard(device);
  auto comms = nccl::detail::split_all(comm, 0, self.rank, options, context, [] { return false; });
  auto state = State::make(self, device, options, std::move(comms), nullptr, std::uint64_t{0});
  state->guarded([&] {
    nccl::detail::connect_all(state->backend, context);
    state->backend.set_capability(std::ranges::min(
        state->backend.gathered(cuda::compute_capability(device), context.operation, std::source_location::current())));
  });
  return NcclCommunicator(std::move(state));
}

DISTX_INLINE ncclComm_t NcclCommunicator::native_handle() const noexcept { return backend_of().comms.blocking.comm(); }
DISTX_INLINE int NcclCommunicator::device() const noexcept { return backend_of().device; }
DISTX_INLINE CudaStreamRef NcclCommunicator::stream() const noexcept { return backend_of().comms.started.stream; }

DISTX_INLINE void NcclCommunicator::connect_messages(std::source_location location) {
  state()->guarded([&] { nccl::detail::connect_messages(backend_of(), context("connect_messages", location)); });
}

DISTX_INLINE NcclCommunicator NcclCommunicator::split(int color, int key, std::source_location location) {
  using detail::SplitRequest;
  const auto all =
      state()->guarded([&] { return backend_of().gathered(SplitRequest{color, key, rank()}, "split", location); });
  const auto group = detail::group_of(all, color);
  // NCCL does not take negative colors: a group has the number of its lowest rank.
  const int first = std::ranges::min(group, {}, &SplitRequest::rank).rank;
  const auto here =
      std::find_if(group.begin(), group.end(), [&](const SplitRequest& request) { return request.rank == rank(); });
  const calls::RankOf self{static_cast<int>(here - group.begin()), static_cast<int>(group.size()), backend()};
  const auto identity = nccl::detail::identity_of(backend_of().revocation.identity(), backend_of().children++, first);
  const auto where = context("split", location);
  auto part = made(self, identity, where, [&](ncclComm_t parent, auto&& stop) {
    return nccl::detail::split_all(parent, first, self.rank, backend_of().options, where, stop);
  });
  part.state()->flight.split_from(state()->flight, color);
  return part;
}

DISTX_INLINE NcclCommunicator NcclCommunicator::shrink(std::vector<int> without, std::source_location location) {
  const auto where = context("shrink", location);
  std::sort(without.begin(), without.end());
  without.erase(std::unique(without.begin(), without.end()), without.end());
  for (const int gone : without) {
    if (gone < 0 || gone >= size())
      throw InvalidArgument("invalid rank " + std::to_string(gone) + ": must be in [0, " + std::to_string(size()) + ")",
                            where);
    if (gone == rank())
      throw InvalidArgument("rank " + std::to_string(gone) + " is this rank: call shrink on ranks that remain only",
                            where);
  }
  if (without.empty()) return split(0, rank(), location);  // which ncclCommShrink refuses
  const auto below = std::lower_bound(without.begin(), without.end(), rank()) - without.begin();
  const calls::RankOf self{rank() - static_cast<int>(below), size() - static_cast<int>(without.size()), backend()};
  std::uint64_t gone = 0;
  for (const int rank : without) gone = nccl::detail::identity_of(gone, rank);
  const auto identity = nccl::detail::identity_of(backend_of().revocation.identity(), gone, self.size);
  return shrunk(native_handle(), self, identity, where, without);
}

}  // namespace distx::inline DISTX_ABI
