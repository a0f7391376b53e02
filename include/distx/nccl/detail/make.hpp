// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <cstring>

#include "distx/connect/connector.hpp"
#include "distx/core/detail/fnv1a.hpp"
#include "distx/cuda/device.hpp"
#include "distx/nccl/detail/member.hpp"

// How communicators of NCCL's come into being: asynchronously, so that a rank that does not come is no hang.
namespace distx::nccl {

/// A communicator that NCCL is making. NCCL may write its handle at any time until it is made, or has failed.
class Making {
 public:
  [[nodiscard]] ncclComm_t* slot() noexcept { return slot_.get(); }

  /// Waits until it is made. `parent`: out of which it is made, or null.
  /// @throws TimeoutError, ConnectError with NCCL's words; what `stop` throws
  template <class Stop>
  [[nodiscard]] unique_comm finish(ncclResult_t code, const char* routine, ncclComm_t parent, const Timeout& limit,
                                   const ErrorContext& context, Stop&& stop) {
    bool stopped = false;
    const auto look = [&] { return stopped = stop(); };
    // Of a communicator that does not block NCCL says success while it still goes on, and has the slot until then: only
    // the parent's state tells.
    if ((code == ncclSuccess || code == ncclInProgress) && parent != nullptr) code = settled(parent, limit, look);
    if (code == ncclInProgress && parent != nullptr) static_cast<void>(slot_.release());
    auto comm = unique_comm::from_native_handle(slot_ == nullptr ? nullptr : *slot_);
    if (comm && (code == ncclSuccess || (code == ncclInProgress && parent == nullptr)))
      code = settled(comm.native_handle(), limit, look);
    if (code == ncclSuccess && comm) return comm;
    if (stopped) throw RevokedError("another rank has failed", context);
    if (code == ncclInProgress)
      throw TimeoutError(std::string(routine) + ": after " + limit.to_string() + " not every rank has come", context);
    const std::string words = words_of(code, comm.native_handle());
    throw ConnectError(advice_for(words) + routine + ": " + words, context, static_cast<int>(code));
  }

 private:
  std::unique_ptr<ncclComm_t> slot_ = std::make_unique<ncclComm_t>(nullptr);
};

/// Some ranks of `parent`, in the order of `key`. Collective.
template <class Stop>
[[nodiscard]] unique_comm split_off(ncclComm_t parent, int color, int key, const NcclOptions& options,
                                    const ErrorContext& context, Stop&& stop) {
  auto config = config_of(options, options.blocking, context);
  Making making;
  const ncclResult_t code = ncclCommSplit(parent, color, key, making.slot(), &config);
  return making.finish(code, "ncclCommSplit", parent, options.deadline, context, stop);
}

/// All three, out of one. Collective.
template <class Stop>
[[nodiscard]] Comms split_three(ncclComm_t parent, int color, int key, const NcclOptions& options,
                                const ErrorContext& context, Stop&& stop) {
  Comms comms;
  for (unique_comm* const comm : {&comms.blocking, &comms.started, &comms.messages})
    *comm = split_off(parent, color, key, options, context, stop);
  return comms;
}

/// All three, for ranks that have the id of one of them. Collective.
template <class Stop>
[[nodiscard]] Comms connect_three(const ncclUniqueId& id, const RankOf& self, const NcclOptions& options,
                                  const ErrorContext& context, Stop&& stop) {
  // The first is made without blocking, whatever the others are: so alone its making can be ended.
  auto config = config_of(options, false, context);
  Making making;
  const ncclResult_t code = ncclCommInitRankConfig(making.slot(), self.size, id, self.rank, &config);
  auto first = making.finish(code, "ncclCommInitRankConfig", nullptr, options.deadline, context, stop);
  const ncclComm_t parent = first.native_handle();
  if (options.blocking) return split_three(parent, 0, self.rank, options, context, stop);
  Comms comms;
  comms.blocking = std::move(first);
  comms.started = split_off(parent, 0, self.rank, options, context, stop);
  comms.messages = split_off(parent, 0, self.rank, options, context, stop);
  return comms;
}

/// The identity of a communicator, for notices: the same on its ranks, and on no others.
template <class... Numbers>
[[nodiscard]] std::uint64_t identity_of(Numbers... numbers) {
  return detail::fnv1a(std::array{static_cast<std::uint64_t>(numbers)...});
}
[[nodiscard]] inline std::uint64_t identity_of(const ncclUniqueId& id) {
  return detail::fnv1a(std::string_view(id.internal, sizeof id.internal));
}

/// The GPU that the options name.
/// @throws Error where there is none
[[nodiscard]] inline int device_of(const NcclOptions& options) {
  if (!options.device) return current_device();
  if (*options.device < 0 || *options.device >= device_count())
    throw Error("device " + std::to_string(*options.device) + " is no GPU here: there are " +
                std::to_string(device_count()) + (device_count() == 0 ? "; " + why_no_gpu() : std::string()));
  return *options.device;
}

/// Brings the ranks of a connector together. Collective.
/// @throws ConnectError, on every rank, where a rank cannot; TimeoutError
template <Connector C>
[[nodiscard]] std::shared_ptr<Member> connect(C& connector, const NcclOptions& options) {
  const RankOf self{connector.rank(), connector.size(), "nccl"};
  const ErrorContext context{.operation = "NcclCommunicator", .backend = "nccl", .rank = self.rank, .size = self.size};
  refuse_making_in_group(context);
  struct Words {
    int capability = 0;
    char text[476] = {};
  } mine;
  const auto attempt = [&](auto&& f) {
    try {
      f();
    } catch (const std::exception& error) {
      mine.text[std::string_view(error.what()).copy(mine.text, sizeof mine.text - 1)] = '\0';
    }
  };
  int lowest = 0;
  // Before anybody waits in NCCL, and after: every rank says the same.
  const auto agree = [&] {
    const auto all = all_gather_values(connector, mine);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank].text[0] != '\0')
        throw ConnectError("rank " + std::to_string(rank) + ": " + all[rank].text, context);
    lowest = std::ranges::min(all, {}, &Words::capability).capability;
  };
  int device = 0;
  ncclUniqueId id{};
  attempt([&] {
    device = device_of(options);
    cuda::detail::Pools::all().share(device);
    mine.capability = compute_capability(device);
    static_cast<void>(config_of(options, options.blocking, context));
    if (self.rank == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId", {});
  });
  agree();
  id = broadcast_value(connector, id, 0);
  const auto notices = distx::detail::failure_channel_of(connector);
  const DeviceGuard guard(device);
  std::shared_ptr<Member> member;
  attempt([&] {
    Ending ending(notices, identity_of(id), self.rank);
    try {
      auto comms = connect_three(id, self, options, {}, [&] { return ending.hear(), ending.ended(); });
      member = std::make_shared<Member>(self, device, options, std::move(comms), notices, identity_of(id));
      member->set_capability(lowest);
    } catch (const RevokedError&) {
      throw;
    } catch (const std::exception& error) {
      ending.end(Ending::Kind::revoked, error.what());  // the others need not wait for this rank
      throw;
    }
  });
  agree();
  return member;
}

}  // namespace distx::nccl
