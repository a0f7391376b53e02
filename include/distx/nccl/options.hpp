// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "distx/comm/check.hpp"
#include "distx/core/deadline.hpp"
#include "distx/cuda/stream.hpp"
#include "distx/nccl/detail/check.hpp"
#include "distx/nccl/detail/versions.hpp"

namespace distx::inline DISTX_ABI {

/// How reductions of reduced-precision floats, and averages, are rounded.
enum class NcclRounding {
  /// As NCCL does, at full speed: reduced-precision sums are rounded at every rank, averages divide the operands first.
  native,
  /// As on the other backends: reduced-precision floats are added in float in rank order and rounded once, averages
  /// divide the sum. Such reductions are staged through the host, at its speed.
  once,
};

/// The options of an NcclCommunicator. Communicators that are split or shrunk from it inherit them. All ranks pass the
/// same values, except `device`, `stream` and `name`.
struct NcclOptions {
  /// How long a call, or making the communicator, may wait for the other ranks before it throws TimeoutError. For an
  /// asynchronous call it counts from its start, so it includes work that is on the stream before it.
  Timeout deadline = default_deadline;
  /// When the ranks compare their calls: collectives by one more all-gather before the call, messages by a description
  /// of 64 bytes before the elements. A captured call is not compared. If a call that was compared before meets another
  /// one, or one that is not compared, both end at the deadline, or give wrong results, as NCCL's own calls do.
  Check check = Check::first_use;
  /// The GPU of this rank; by default the current one. Training and DistTensors use the current GPU, so make it that.
  std::optional<int> device = {};
  /// The stream for all calls, borrowed until the communicator is destroyed. By default blocking collectives,
  /// asynchronous collectives and messages each have a stream that the communicator owns.
  std::optional<CudaStreamRef> stream = {};
  /// How reduced-precision floats and averages are rounded.
  NcclRounding rounding = NcclRounding::native;
  /// Makes NCCL enqueue calls on the calling thread and not on a thread of NCCL, which saves tens of microseconds per
  /// call. The first call that needs an algorithm then blocks inside NCCL until all ranks make it, where no deadline
  /// applies, unless NCCL_RUNTIME_CONNECT=0 makes NCCL connect all algorithms when the communicator is made.
  bool blocking = false;
  /// Keeps one more NCCL communicator, without traffic, so that `shrink` works after a failure.
  bool shrinkable = false;
  /// Connects every pair of ranks for messages when the communicator is made, which takes N-1 connections per rank. If
  /// false, every rank calls `NcclCommunicator::connect_messages` before the first message, if there are any.
  bool connect_messages = true;

  /// @name Fields of ncclConfig_t
  /// NCCL chooses those that are not set. Setting one that this NCCL does not have throws InvalidArgument.
  /// Communicators never share resources, since ending one would end the others.
  /// @{
  std::string name = {};                     ///< commName, which NCCL's log shows
  std::string net_name = {};                 ///< netName, the network plugin
  std::optional<int> min_ctas = {};          ///< minCTAs, the least thread blocks per kernel
  std::optional<int> max_ctas = {};          ///< maxCTAs, the most; 8 to 16 suit GPUs that several communicators use
  std::optional<int> cga_cluster_size = {};  ///< cgaClusterSize, 0 to 8
  std::optional<int> traffic_class = {};     ///< trafficClass of the network
  std::optional<int> collnet_enable = {};    ///< collnetEnable
  std::optional<int> cta_policy = {};        ///< CTAPolicy
  std::optional<int> nvls_ctas = {};         ///< nvlsCTAs
  std::optional<int> channels_per_net_peer = {};  ///< nChannelsPerNetPeer
  std::optional<int> nvlink_centric_sched = {};   ///< nvlinkCentricSched
  /// @}
};

namespace nccl::detail {

/// A copy that lives as long as the process: NCCL keeps the pointers to names.
[[nodiscard]] inline const char* kept(const std::string& name) {
  static auto* mutex = new std::mutex;
  static auto* names = new std::set<std::string>;
  const std::lock_guard lock(*mutex);
  return names->insert(name).first->c_str();
}

/// Converts the options to NCCL's configuration.
/// @throws InvalidArgument for an option that this NCCL does not have, or an environment in which calls would hang
template <class Config = ncclConfig_t>
[[nodiscard]] Config config_of(const NcclOptions& options, bool blocking, const ErrorContext& context) {
  Config config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  const auto set = [&](const char* name, const std::optional<int>& value, auto field) {
    if (!value) return;
    if constexpr (requires { field(config) = *value; })
      field(config) = *value;
    else
      throw InvalidArgument(
          std::string(name) + " is set, which NCCL " + version_words() + " does not have; leave it unset", context);
  };
  const auto name = [&](const char* what, const std::string& value, auto field) {
    if (value.empty()) return;
    if constexpr (requires { field(config) = kept(value); })
      field(config) = kept(value);
    else
      throw InvalidArgument(
          std::string(what) + " is set, which NCCL " + version_words() + " does not have; leave it unset", context);
  };
  // If communicators share resources, ending one ends the others, whose calls then return success without a result.
  for (const char* const variable : {"NCCL_COMM_SPLIT_SHARE_RESOURCES", "NCCL_COMM_SHRINK_SHARE_RESOURCES"})
    if (const char* const value = std::getenv(variable); value != nullptr && std::atoi(value) != 0)
      throw InvalidArgument(
          std::string(variable) + " is " + value + ": communicators that share resources end each other; unset it",
          context);
  // With one hardware queue, a stream that waits for a message holds up every other stream.
  constexpr const char* connections = "CUDA_DEVICE_MAX_CONNECTIONS";
  if (const char* const value = std::getenv(connections); value != nullptr && std::atoi(value) == 1)
    throw InvalidArgument(std::string(connections) + " is 1: a call that waits would block all streams; set 8 to 32",
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

}  // namespace nccl::detail

}  // namespace distx::inline DISTX_ABI
