// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <functional>

#include "distx/core/version.hpp"
#include "distx/gloo/communicator.hpp"
#include "distx/gloo/detail/links.hpp"
#include "distx/posix/host.hpp"

namespace distx::inline DISTX_ABI {

static_assert(Communicator<GlooCommunicator>);

DISTX_INLINE auto GlooCommunicator::connected(detail::ConnectorRef connector,
                                              const GlooOptions& options) -> std::shared_ptr<State> {
  const calls::RankOf self{connector.rank(), connector.size(), "gloo"};
  const auto hosts = all_gather_values(connector, detail::posix::host_id());
  const bool one_host = std::all_of(hosts.begin(), hosts.end(), [&](const auto& host) { return host == hosts[0]; });
  const auto identity = broadcast_value(connector, detail::new_gloo_identity(), 0);
  const auto make = [&] {
    ::gloo::transport::tcp::attr where(options.address.c_str());
    if (options.address.empty() && one_host) where.hostname = "127.0.0.1";
    return std::make_unique<detail::GlooLinks>(detail::gloo_device(where), self, options.deadline,
                                               detail::failure_channel_of(connector), identity);
  };
  const auto gather = [&](auto mine, auto all) {
    connector.all_gather(std::as_bytes(mine), std::as_writable_bytes(all));
  };
  return State::make(
      detail::GlooLinks::connected(self.context("GlooCommunicator"), options.deadline, make, std::identity(), gather));
}

}  // namespace distx::inline DISTX_ABI
