// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>
#include <type_traits>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The maker of a vendor whose header is not included.
struct NoMaker {};

struct SharedMemoryTag {};
struct MpiTag {};
struct GlooTag {};

/// Returns the type by which a vendor's header makes communicators, selected by an overload for the vendor's tag. It
/// has `static AnyCommunicator<> make(connector, deadline)` and, for MPI, `static bool serves(connector)`, which
/// returns whether MPI started the ranks, and `static bool serves_threads()`, which requires that MPI is initialized.
/// It is looked up when `best_communicator` is instantiated, so programs that do not call it do not compile the makers.
NoMaker maker_for(...);

template <class Tag, class Connector>
struct DependentTag : Tag {};

template <class Tag, class Connector>
using maker_t = decltype(maker_for(DependentTag<Tag, Connector>{}));

template <class Maker>
inline constexpr bool is_included = !std::is_same_v<Maker, NoMaker>;

/// @throws ConnectError that names the header of the missing maker
[[noreturn]] inline void demand_maker(const std::string& header, const ErrorContext& context) {
  throw ConnectError("no communicator fits these " + std::to_string(context.size) + " ranks: include " + header,
                     context);
}

}  // namespace distx::inline DISTX_ABI::detail
