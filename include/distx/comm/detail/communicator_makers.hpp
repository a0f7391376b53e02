// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>
#include <type_traits>

#include "distx/core/error.hpp"

namespace distx::detail {

/// A vendor whose header is not included makes nothing.
struct NoMaker {};

struct SharedMemoryTag {};
struct MpiTag {};

/// What a vendor's header makes communicators with: the overload that it declares beside this one for its tag, a type
/// with `static AnyCommunicator<> make(connector, deadline)` and, for MPI, `static bool serves_threads()`. Found when
/// `best_communicator` is called, so that who does not call it compiles none of this.
NoMaker maker_for(...);

template <class Tag, class Connector>
struct DependentTag : Tag {};

template <class Tag, class Connector>
using maker_t = decltype(maker_for(DependentTag<Tag, Connector>{}));

/// @throws ConnectError that names the header to include, where that is not included
template <class Maker>
void demand_maker(const char* header, const ErrorContext& context) {
  if constexpr (std::is_same_v<Maker, NoMaker>)
    throw ConnectError("these " + std::to_string(context.size) + " ranks need a communicator of <distx/" + header +
                           ">: include it beside <distx/distx.hpp>",
                       context);
}

}  // namespace distx::detail
