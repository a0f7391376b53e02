// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/hierarchical/backend.hpp"
#include "distx/comm/hierarchical/connector.hpp"
#include "distx/core/deadline.hpp"

namespace distx::inline DISTX_ABI {

/// Combines two communicators: `Inner` of the ranks of one host, and `Outer` of all ranks.
///
/// - Reductions, broadcasts and all-gathers run inside each host, then across hosts, then inside each host again. The
///   number of ranks per host that communicate across hosts is that of the smallest host.
/// - All-to-alls, gathers and scatters use `Outer` only; a message uses `Inner` if both ranks are on one host.
/// - Hosts may have different numbers of ranks. If the ranks of a host are not consecutive, all-gathers,
///   reduce-scatters and reductions with a non-commutative op use `Outer` only.
/// - The ranks compare their calls before each collective; an error on one level revokes both.
/// - Asynchronous collectives run on a progress thread, which requires MPI_THREAD_MULTIPLE with MPI.
template <Communicator Inner, Communicator Outer>
  requires std::same_as<typename Inner::space, Host> && std::same_as<typename Outer::space, Host>
class Hierarchical
    : public detail::BasicCommunicator<Hierarchical<Inner, Outer>, detail::HierarchicalBackend<Inner, Outer>> {
  using Base = detail::BasicCommunicator<Hierarchical, detail::HierarchicalBackend<Inner, Outer>>;
  using State = typename Base::State;
  friend Base;

 public:
  /// Takes ownership of existing communicators. Collective over `outer`.
  /// @pre `inner` contains exactly the ranks of this host, in the order of their ranks in `outer`
  /// @throws InvalidArgument on every rank if the order differs
  Hierarchical(Inner inner, Outer outer) : Base(State::make(std::move(inner), std::move(outer))) {}

  /// Makes both communicators from a connector, whose local ranks determine which ranks share a host. Collective.
  /// @throws ConnectError on every rank if the local ranks match no assignment to hosts, or if a level cannot be made
  template <class C>
    requires(!std::same_as<std::remove_const_t<C>, Hierarchical>) && Connector<C>
  explicit Hierarchical(C& connector, Timeout deadline = default_deadline)
      : Hierarchical(detail::make_levels(connector, maker<Inner>(deadline), maker<Outer>(deadline))) {}

 private:
  using Base::Base;
  explicit Hierarchical(std::pair<Inner, Outer> levels)
      : Hierarchical(std::move(levels.first), std::move(levels.second)) {}

  /// Returns a function that makes a communicator with a deadline, or with options that contain one.
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

}  // namespace distx::inline DISTX_ABI
