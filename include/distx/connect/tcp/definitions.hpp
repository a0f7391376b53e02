// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/detail/announced_ranks.hpp"
#include "distx/connect/detail/connect_url.hpp"
#include "distx/connect/tcp/detail/slurm_hosts.hpp"
#include "distx/connect/tcp/detail/start_by_store.hpp"
#include "distx/connect/tcp/tcp_connector.hpp"
#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

DISTX_INLINE TcpConnector::TcpConnector(const std::string& host, int port, int rank, int size,
                                        const TcpConnectorOptions& options)
    : TcpConnector(
          detail::tcp::start_group({host, port}, options.bind, {rank, size, options.deadline, options.token})) {}
DISTX_INLINE TcpConnector TcpConnector::join(const std::string& host, int port, const TcpConnectorOptions& options) {
  return TcpConnector(detail::tcp::join_running({host, port}, {.deadline = options.deadline, .token = options.token}));
}

namespace detail::tcp {

DISTX_INLINE AnyConnector connect_by_url(const ConnectUrl& url) {
  url.allow_parameters({"rank", "size", "bind", "timeout"});
  if (!url.path().empty() && url.path() != "/") url.refuse("unexpected path '" + url.path() + "'");
  const Endpoint endpoint = endpoint_from(url.authority());
  if (endpoint.host.empty() || endpoint.port < 1 || endpoint.port > 65535)
    url.refuse("'" + url.authority() + "' is not host:port with a port in [1, 65535]");
  const TcpConnectorOptions options{.deadline = url.timeout(), .bind = url.parameter("bind")};
  if (url.joins_running_job()) return TcpConnector::join(endpoint.host, endpoint.port, options);
  const bool is_indexed = !is_set("DISTX_RANK") && is_set("JOB_COMPLETION_INDEX");
  const auto [rank, size] = url.rank(is_indexed ? "JOB_COMPLETION_INDEX" : "DISTX_RANK");
  return TcpConnector(endpoint.host, endpoint.port, rank.value, size.value, options);
}

DISTX_INLINE AnyConnector connect_by_variables() {
  const Variables variables("env");
  if (parse_int(variable("WORLD_SIZE")) == 1 && !is_set("RANK")) return SelfConnector();
  const auto [rank, size] = rank_from(variables, "RANK", "WORLD_SIZE");
  const auto local_size = variables.number_if_set("LOCAL_WORLD_SIZE", 1, most_ranks);
  const auto local_rank = variables.number_if_set("LOCAL_RANK", 0, most_ranks - 1);
  if (local_size && local_size->value > size.value)
    variables.refuse(local_size->source + " contradicts " + size.source + ": a host has at most all ranks");
  if (local_size && local_rank) variables.check_rank(*local_rank, *local_size);
  if (size.value == 1) return SelfConnector();
  const Endpoint endpoint{variables.text("MASTER_ADDR"), variables.number("MASTER_PORT", 1, 65535).value};
  const auto agent = variable("TORCHELASTIC_USE_AGENT_STORE");
  if (agent != "True" && agent != "true" && agent != "1")
    return TcpConnector(endpoint.host, endpoint.port, rank.value, size.value);
  // A restart of the ranks finds the same store, with the keys of those before it.
  const auto restart = variables.number_if_set("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30);
  const auto prefix =
      "distx/" + variable("TORCHELASTIC_RUN_ID") + "/" + std::to_string(restart ? restart->value : 0) + "/";
  return start_by_store(endpoint, prefix, local_size && local_size->value == size.value,
                        {rank.value, size.value, default_deadline, {}});
}

DISTX_INLINE AnyConnector connect_in_slurm() {
  const Variables variables("slurm");
  (void)variables.text("SLURM_PROCID");  // the rank of another launcher would not do
  const auto [rank, size] = rank_from(variables, "SLURM_PROCID", slurm_size_variable());
  if (const auto local = variables.number_if_set("SLURM_LOCALID", 0, most_ranks - 1))
    variables.check_rank(*local, size);
  if (size.value == 1) return SelfConnector();
  const auto list = variables.text("SLURM_STEP_NODELIST");
  auto host = first_slurm_host(list);
  if (!host) variables.refuse("invalid SLURM_STEP_NODELIST '" + list + "': must be a list such as node[01-03,7]");
  const auto hosts = variables.number_if_set("SLURM_STEP_NUM_NODES", 1, most_ranks);
  if (hosts && hosts->value == 1) host = "127.0.0.1";
  const auto job = variables.id("SLURM_JOB_ID");
  const auto step = is_set("SLURM_STEP_ID") ? variables.id("SLURM_STEP_ID") : 0;
  return TcpConnector(*host, slurm_port(job, step), rank.value, size.value);
}

}  // namespace detail::tcp

}  // namespace distx::inline DISTX_ABI
