// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "distx/core/deadline.hpp"
#include "distx/cuda/stream.hpp"
#include "distx/nccl/detail/check.hpp"
#include "distx/nccl/detail/versions.hpp"

namespace distx {

/// How sums and products of floats shorter than float, and averages, are rounded.
enum class NcclRounding {
  /// As NCCL does: shorter floats at every rank, averages as sums of operands divided beforehand. At the wire's speed.
  native,
  /// As on the other backends: shorter floats summed in float and rounded once, averages divided at the end, in rank
  /// order. Goes by way of the host, at its speed.
  once,
};

struct NcclOptions {
  /// How long a call waits for the other ranks, and the making of the communicator; counted from the call, so that what
  /// is enqueued before a started collective is in it.
  Timeout deadline = default_deadline;
  /// The GPU; without it the one that is current. Who trains on it, or makes tensors, makes it current.
  std::optional<int> device = {};
  /// The stream that everything is enqueued on, borrowed. Without it blocking calls use CUDA's legacy default stream,
  /// started ones streams of the communicator's own.
  std::optional<CudaStreamRef> stream = {};
  NcclRounding rounding = NcclRounding::native;
  /// Lets NCCL hold the host inside its own calls, where no deadline reaches: the first call of a kind waits there for
  /// the other ranks. Without it NCCL enqueues calls of several ranks from a thread of its own, which takes longer.
  bool blocking = false;
  /// After a failure keeps what `shrink` needs: NCCL then revokes instead of aborting. Needs ncclCommRevoke
  /// (NCCL 2.28).
  bool shrinkable = false;

  /// @name Fields of ncclConfig_t
  /// What is not set is NCCL's to choose; what this NCCL does not know throws. Sharing resources among communicators
  /// is not to be had: they would end one another.
  /// @{
  std::string name = {};      ///< in NCCL's log
  std::string net_name = {};  ///< of the network module
  std::optional<int> min_ctas = {};
  std::optional<int> max_ctas = {};
  std::optional<int> cga_cluster_size = {};
  std::optional<int> traffic_class = {};
  std::optional<int> collnet_enable = {};
  std::optional<int> cta_policy = {};
  std::optional<int> nvls_ctas = {};
  std::optional<int> channels_per_net_peer = {};
  std::optional<int> nvlink_centric_sched = {};
  /// @}
};

namespace nccl {

/// A copy that stays: NCCL keeps the pointers to names that it is given.
[[nodiscard]] inline const char* kept(const std::string& name) {
  static auto* mutex = new std::mutex;
  static auto* names = new std::set<std::string>;
  const std::lock_guard lock(*mutex);
  return names->insert(name).first->c_str();
}

/// The options as NCCL takes them.
/// @throws MismatchError for one that this NCCL does not know, and where the environment makes communicators share
template <class Config = ncclConfig_t>
[[nodiscard]] Config config_of(const NcclOptions& options, bool blocking, const ErrorContext& context) {
  Config config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  const auto set = [&](const char* name, const std::optional<int>& value, auto field) {
    if (!value) return;
    if constexpr (requires { field(config) = *value; })
      field(config) = *value;
    else
      throw MismatchError(std::string(name) + " is set, and NCCL " + version_words() + " has no such option", context);
  };
  const auto name = [&](const char* what, const std::string& value, auto field) {
    if (value.empty()) return;
    if constexpr (requires { field(config) = kept(value); })
      field(config) = kept(value);
    else
      throw MismatchError(std::string(what) + " is set, and NCCL " + version_words() + " has no such option", context);
  };
  // Of communicators that share resources the end of one ends the others, whose calls then "succeed" without a result.
  for (const char* const variable : {"NCCL_COMM_SPLIT_SHARE_RESOURCES", "NCCL_COMM_SHRINK_SHARE_RESOURCES"})
    if (const char* const value = std::getenv(variable); value != nullptr && std::atoi(value) != 0)
      throw MismatchError(std::string(variable) + " is " + value +
                              ": distx's communicators end one by one, which sharing forbids; unset it",
                          context);
  name("name", options.name, [](auto& c) -> decltype((c.commName)) { return c.commName; });
  name("net_name", options.net_name, [](auto& c) -> decltype((c.netName)) { return c.netName; });
  set("min_ctas", options.min_ctas, [](auto& c) -> decltype((c.minCTAs)) { return c.minCTAs; });
  set("max_ctas", options.max_ctas, [](auto& c) -> decltype((c.maxCTAs)) { return c.maxCTAs; });
  set("cga_cluster_size", options.cga_cluster_size,
      [](auto& c) -> decltype((c.cgaClusterSize)) { return c.cgaClusterSize; });
  set("traffic_class", options.traffic_class, [](auto& c) -> decltype((c.trafficClass)) { return c.trafficClass; });
  set("collnet_enable", options.collnet_enable, [](auto& c) -> decltype((c.collnetEnable)) { return c.collnetEnable; });
  set("cta_policy", options.cta_policy, [](auto& c) -> decltype((c.CTAPolicy)) { return c.CTAPolicy; });
  set("nvls_ctas", options.nvls_ctas, [](auto& c) -> decltype((c.nvlsCTAs)) { return c.nvlsCTAs; });
  set("channels_per_net_peer", options.channels_per_net_peer,
      [](auto& c) -> decltype((c.nChannelsPerNetPeer)) { return c.nChannelsPerNetPeer; });
  set("nvlink_centric_sched", options.nvlink_centric_sched,
      [](auto& c) -> decltype((c.nvlinkCentricSched)) { return c.nvlinkCentricSched; });
  return config;
}

}  // namespace nccl

}  // namespace distx
