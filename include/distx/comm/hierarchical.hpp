// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/hierarchical/backend.hpp"
#include "distx/comm/hierarchical/connector.hpp"
#include "distx/core/deadline.hpp"

namespace distx {

/// A communicator made of two: `Inner` among the ranks of a host, `Outer` among all ranks.
///
/// - Reductions, broadcasts and all-gathers run inside each host, then across hosts with as many ranks of a host as the
///   smallest host has, then inside again. All-to-alls, gathers and scatters go straight over `Outer`; messages over
///   the communicator that reaches the peer.
/// - Hosts may have different numbers of ranks. If the ranks of a host are not consecutive, all-gathers,
/// reduce-scatters
///   and custom ops that do not commute go straight over `Outer`.
/// - The ranks compare their calls before each collective; an error on one level revokes both.
/// - Asynchronous collectives run on a progress thread, which with MPI requires MPI_THREAD_MULTIPLE.
template <Communicator Inner, Communicator Outer>
  requires std::same_as<typename Inner::space, Host> && std::same_as<typename Outer::space, Host>
class Hierarchical
    : public detail::BasicCommunicator<Hierarchical<Inner, Outer>, detail::HierarchicalBackend<Inner, Outer>> {
  using Base = detail::BasicCommunicator<Hierarchical, detail::HierarchicalBackend<Inner, Outer>>;
  using State = typename Base::State;
  friend Base;

 public:
  /// Takes ownership of existing communicators. Collective over `outer`.
  /// @pre both have the same ranks of this host, in the same order
  /// @throws InvalidArgument on every rank if the order differs
  Hierarchical(Inner inner, Outer outer) : Base(std::make_shared<State>(std::move(inner), std::move(outer))) {}

  /// Made among the ranks of a connector, whose local ranks say which ranks share a host. Collective.
  /// @throws ConnectError on every rank if the local ranks fit no assignment to hosts, or a level cannot be made
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, Hierarchical>) && Connector<C>
  explicit Hierarchical(C& connector, Timeout deadline = default_deadline)
      : Hierarchical(detail::make_levels(connector, maker<Inner>(deadline), maker<Outer>(deadline))) {}

 private:
  using Base::Base;
  explicit Hierarchical(std::pair<Inner, Outer> levels)
      : Hierarchical(std::move(levels.first), std::move(levels.second)) {}

  /// Makes a communicator with a deadline, or with options that have one.
  template <class Level>
  static auto maker(Timeout deadline) {
    return [deadline](auto& connector) {
      if constexpr (requires { Level(connector, deadline); })
        return Level(connector, deadline);
      else
        return Level(connector, {.deadline = deadline});
    };
  }
};

}  // namespace distx
