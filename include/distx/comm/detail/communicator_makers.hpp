// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>
#include <type_traits>

#include "distx/core/error.hpp"

namespace distx::detail {

/// The maker of a vendor whose header is not included.
struct NoMaker {};

struct SharedMemoryTag {};
struct MpiTag {};

/// Returns the type by which a vendor's header makes communicators, selected by an overload for the vendor's tag. It
/// has `static AnyCommunicator<> make(connector, deadline)` and, for MPI, `static bool serves_threads()`. It is looked
/// up when `best_communicator` is instantiated, so programs that do not call it do not compile the makers.
NoMaker maker_for(...);

template <class Tag, class Connector>
struct DependentTag : Tag {};

template <class Tag, class Connector>
using maker_t = decltype(maker_for(DependentTag<Tag, Connector>{}));

/// Checks that the vendor's header is included. @throws ConnectError that names the missing header
template <class Maker>
void demand_maker(const char* header, const ErrorContext& context) {
  if constexpr (std::is_same_v<Maker, NoMaker>)
    throw ConnectError("these " + std::to_string(context.size) + " ranks need a communicator of <distx/" + header +
                           ">: include it beside <distx/distx.hpp>",
                       context);
}

}  // namespace distx::detail
