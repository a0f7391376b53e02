// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <optional>

#include "distx/comm/communicator.hpp"
#include "distx/comm/hierarchical/hosts.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A connector of the ranks of one host, over an existing communicator.
template <Communicator C>
class HostConnector {
 public:
  explicit HostConnector(C comm) : comm_(std::move(comm)) {}

  [[nodiscard]] int rank() const { return comm_.rank(); }
  [[nodiscard]] int size() const { return comm_.size(); }
  [[nodiscard]] int local_rank() const { return comm_.rank(); }
  [[nodiscard]] int local_size() const { return comm_.size(); }
  [[nodiscard]] int root_rank() const noexcept { return 0; }
  void barrier() { comm_.execute(Barrier<Host>{}); }
  void broadcast(std::span<std::byte> bytes, int root) { comm_.execute(Broadcast<std::byte>{bytes, root}); }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    comm_.execute(AllGather<std::byte>{send, receive});
  }

 private:
  C comm_;
};

/// Makes the two communicators of a hierarchy: one of the ranks of this host, one of all ranks. Collective.
/// @throws ConnectError on every rank if one of them fails
template <Connector C, class MakeInner, class MakeOuter>
[[nodiscard]] auto make_levels(C& connector, MakeInner&& make_inner, MakeOuter&& make_outer) {
  const Hosts hosts = hosts_of(connector);
  const int rank = connector.rank();
  auto outer = make_outer(connector);
  HostConnector host(outer.split(hosts.host(rank), hosts.index(rank)));
  struct HostFailure {
    char text[400] = {};
  } mine;
  std::optional<decltype(make_inner(host))> inner;
  try {
    inner.emplace(make_inner(host));
  } catch (const std::exception& error) {
    mine.text[std::string_view(error.what()).copy(mine.text, sizeof mine.text - 1)] = '\0';
  }
  std::vector<HostFailure> all(static_cast<std::size_t>(outer.size()));
  outer.execute(AllGather<HostFailure>{{&mine, 1}, all});
  for (std::size_t other = 0; other < all.size(); ++other)
    if (all[other].text[0] != '\0')
      throw ConnectError("rank " + std::to_string(other) + ": " + all[other].text,
                         {.operation = "connect", .backend = "hierarchical", .rank = rank, .size = outer.size()});
  return std::pair(std::move(*inner), std::move(outer));
}

}  // namespace distx::inline DISTX_ABI::detail
