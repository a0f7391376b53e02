// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <cstring>

#include "distx/connect/connector.hpp"
#include "distx/core/detail/early_warning.hpp"
#include "distx/core/detail/fnv1a.hpp"
#include "distx/cuda/device.hpp"
#include "distx/nccl/detail/first_contact.hpp"

// How NCCL's communicators are made: asynchronously, so that a missing rank cannot cause a hang.
namespace distx::inline DISTX_ABI::nccl::detail {

/// A communicator that NCCL is making. NCCL may write its handle at any time until it is made, or has failed.
class CommInitialization {
 public:
  [[nodiscard]] ncclComm_t* slot() noexcept { return slot_.get(); }

  /// Waits until it is made. `parent` is what it is made of, or null.
  /// @throws TimeoutError, ConnectError with NCCL's text; RevokedError if `stop` returned true
  template <class Stop>
  [[nodiscard]] nccl_unique_comm finish(ncclResult_t code, const char* routine, ncclComm_t parent, const Timeout& limit,
                                        const ErrorContext& context, Stop&& stop) {
    bool stopped = false;
    distx::detail::EarlyWarning warning(limit);
    const auto look = [&] {
      warning(context, [] { return "not all ranks joined"; });
      return stopped = stop();
    };
    // For a parent that does not block NCCL returns success while it is in progress, and uses the slot until then: only
    // the parent's state tells.
    if ((code == ncclSuccess || code == ncclInProgress) && parent != nullptr) code = settled(parent, limit, look);
    if (code == ncclInProgress && parent != nullptr) static_cast<void>(slot_.release());
    auto comm = nccl_unique_comm::from_native_handle(slot_ == nullptr ? nullptr : *slot_);
    if (comm && (code == ncclSuccess || (code == ncclInProgress && parent == nullptr)))
      code = settled(comm.native_handle(), limit, look);
    if (code == ncclSuccess && comm) return comm;
    if (stopped) throw RevokedError("another rank has failed", context);
    if (code == ncclInProgress || code == timeout_code)
      throw TimeoutError(std::string(routine) + ": timed out after " + limit.to_string() + ": not all ranks joined",
                         context);
    const std::string words = words_of(code, comm.native_handle());
    throw ConnectError(advice_for(words) + routine + ": " + words, context, static_cast<int>(code));
  }

 private:
  std::unique_ptr<ncclComm_t> slot_ = std::make_unique<ncclComm_t>(nullptr);
};

/// Makes a communicator of some ranks of `parent`, in the order of `key`. Collective.
template <class Stop>
[[nodiscard]] nccl_unique_comm split_off(ncclComm_t parent, int color, int key, const NcclOptions& options,
                                         const ErrorContext& context, Stop&& stop) {
  auto config = config_of(options, options.blocking, context);
  CommInitialization made;
  const ncclResult_t code = ncclCommSplit(parent, color, key, made.slot(), &config);
  return made.finish(code, "ncclCommSplit", parent, options.deadline, context, stop);
}

/// Makes all communicators of an NcclCommunicator out of `parent`. Collective.
template <class Stop>
[[nodiscard]] Comms split_all(ncclComm_t parent, int color, int key, const NcclOptions& options,
                              const ErrorContext& context, Stop&& stop) {
  Comms comms;
  for (nccl_unique_comm* const comm : {&comms.blocking, &comms.started, &comms.messages})
    *comm = split_off(parent, color, key, options, context, stop);
  if (options.shrinkable) comms.spare = split_off(parent, color, key, options, context, stop);
  return comms;
}

/// Makes all communicators of an NcclCommunicator out of one of the same ranks, which was made without blocking and has
/// not been used; it becomes one of them, where it can. Collective.
template <class Stop>
[[nodiscard]] Comms complete_all(nccl_unique_comm first, int rank, NcclOptions options, const ErrorContext& context,
                                 Stop&& stop) {
  const ncclComm_t parent = first.native_handle();
  if (options.shrinkable || options.blocking) {
    const bool keeps = std::exchange(options.shrinkable, false);
    Comms comms = split_all(parent, 0, rank, options, context, stop);
    if (keeps) comms.spare = std::move(first);
    return comms;
  }
  Comms comms;
  comms.blocking = std::move(first);
  comms.started = split_off(parent, 0, rank, options, context, stop);
  comms.messages = split_off(parent, 0, rank, options, context, stop);
  return comms;
}

/// Makes all communicators for ranks that have the id of the first. Collective.
template <class Stop>
[[nodiscard]] Comms init_all(const ncclUniqueId& id, const calls::RankOf& self, const NcclOptions& options,
                             const ErrorContext& context, Stop&& stop) {
  // Without blocking, which is independent of the other ranks' options, so that the deadline applies.
  auto config = config_of(options, false, context);
  CommInitialization made;
  const ncclResult_t code = ncclCommInitRankConfig(made.slot(), self.size, id, self.rank, &config);
  auto first = made.finish(code, "ncclCommInitRankConfig", nullptr, options.deadline, context, stop);
  return complete_all(std::move(first), self.rank, options, context, stop);
}

/// Makes all communicators without the ranks named. Collective over those that remain.
template <class Stop, class Comm>
[[nodiscard]] Comms shrink_all(Comm parent, std::vector<int>& without, int rank, bool failed,
                               const NcclOptions& options, const ErrorContext& context, Stop&& stop) {
  auto config = config_of(options, false, context);
  CommInitialization made;
  const auto code = ncclCommShrink(parent, without.data(), static_cast<int>(without.size()), made.slot(), &config,
                                   failed ? shrink_abort : shrink_default);
  auto first = made.finish(code, "ncclCommShrink", parent, options.deadline, context, stop);
  return complete_all(std::move(first), rank, options, context, stop);
}

/// The identity of a communicator in the failure channel: the same on its ranks, and on no others.
template <class... Numbers>
[[nodiscard]] std::uint64_t identity_of(Numbers... numbers) {
  return distx::detail::fnv1a(std::array{static_cast<std::uint64_t>(numbers)...});
}
[[nodiscard]] inline std::uint64_t identity_of(const ncclUniqueId& id) {
  return distx::detail::fnv1a(std::string_view(id.internal, sizeof id.internal));
}

/// Returns the GPU that the options name.
/// @throws InvalidArgument if there is no such GPU; BackendError
[[nodiscard]] inline int device_of(const NcclOptions& options) {
  if (!options.device) return cuda::current_device();
  if (*options.device < 0 || *options.device >= cuda::device_count())
    throw InvalidArgument("invalid device " + std::to_string(*options.device) + ": this process sees " +
                          std::to_string(cuda::device_count()) + " GPUs" +
                          (cuda::device_count() == 0 ? "; " + cuda::why_no_gpu() : std::string()));
  return *options.device;
}

/// Makes one rank's state of a communicator over the ranks of a connector. Collective.
/// @throws ConnectError on every rank if a rank fails; TimeoutError
template <Connector C>
[[nodiscard]] std::shared_ptr<NcclBackend::State> connect(C& connector, const NcclOptions& options) {
  const calls::RankOf self{connector.rank(), connector.size(), "nccl"};
  const ErrorContext context{.operation = "NcclCommunicator", .backend = "nccl", .rank = self.rank, .size = self.size};
  reject_making_in_group(context);
  struct Report {
    int capability = 0;
    char error[476] = {};
  } mine;
  const auto attempt = [&](auto&& f) {
    try {
      f();
    } catch (const std::exception& error) {
      mine.error[std::string_view(error.what()).copy(mine.error, sizeof mine.error - 1)] = '\0';
    }
  };
  int lowest = 0;
  // Before the ranks wait for each other in NCCL, and after: they all succeed, or throw the same.
  const auto agree = [&] {
    const auto all = all_gather_values(connector, mine);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank].error[0] != '\0')
        throw ConnectError("rank " + std::to_string(rank) + ": " + all[rank].error, context);
    lowest = std::ranges::min(all, {}, &Report::capability).capability;
  };
  int device = 0;
  ncclUniqueId id{};
  attempt([&] {
    check_version();
    device = device_of(options);
    cuda::detail::Pools::all().share(device);
    mine.capability = cuda::compute_capability(device);
    static_cast<void>(config_of(options, options.blocking, context));
    if (self.rank == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId", {});
  });
  agree();
  id = broadcast_value(connector, id, 0);
  const auto channel = distx::detail::failure_channel_of(connector);
  const cuda::DeviceGuard guard(device);
  std::shared_ptr<NcclBackend::State> state;
  attempt([&] {
    RevocationState revocation(channel, identity_of(id), self.rank);
    try {
      auto comms = init_all(id, self, options, {}, [&] { return revocation.poll(), revocation.revoked(); });
      state = NcclBackend::State::make(self, device, options, std::move(comms), channel, identity_of(id));
      state->backend.set_capability(lowest);
      state->guarded([&] { connect_all(state->backend, context); });
    } catch (const RevokedError&) {
      throw;
    } catch (...) {  // the others need not wait for this rank
      revocation.revoke(RevocationState::Cause::revoked, distx::detail::RevocationReason::of_current().published());
      throw;
    }
  });
  agree();
  return state;
}

}  // namespace distx::inline DISTX_ABI::nccl::detail
