// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <cstddef>
#include <span>
#include <utility>

#include "distx/comm/calls/validate.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The messages of one collective between two ranks: first the descriptions of the call, then its data in two stages.
enum class MessageStage { description, first, second };

/// What carries the messages of one queue of collectives between ranks.
///
/// Messages of one tag from one rank to another match in their order. The memory of a message belongs to the transport
/// until `test` returns true for its request, or `release` for a request that is given up.
/// - `tag(stage, number)` returns the tag of a stage of the call with this number.
/// - `send` and `receive` start a message; the memory of `receive` may be longer than the message.
/// - `test(requests)` returns whether all requests are complete. A transport that cannot be asked may block until they
///   are, and throws if a rank fails, the communicator is revoked, or its deadline is over. Until then
///   `is_complete(request)` asks about one of them.
/// - `cancel(receives)` cancels requests that were not completed; `release(requests)` returns whether the transport has
///   stopped to use the memory of these, for which it may wait for a moment. Otherwise the memory is never freed.
/// - `staged`: the transport may keep memory after an error, so it is given copies only, never the caller's memory.
/// - `slice_bytes(ranks)` is the size of a large call's messages, a multiple of 64; `most_direct` the number of ranks
/// up to which each
///   sends its description directly to every other one.
template <class T>
concept MessageTransport = requires(T& transport, typename T::Request& request, std::span<typename T::Request> requests,
                                    typename T::Tag tag, std::byte* memory, const ErrorContext& context) {
  { T::staged } -> std::convertible_to<bool>;
  { T::most_direct } -> std::convertible_to<int>;
  { T::slice_bytes(std::size_t{2}) } -> std::same_as<std::size_t>;
  { T::no_request() } -> std::same_as<typename T::Request>;
  { transport.tag(MessageStage::first, std::uint64_t{}) } -> std::same_as<typename T::Tag>;
  transport.send(1, tag, std::as_const(memory), std::size_t{}, request, context);
  transport.receive(1, tag, memory, std::size_t{}, request, context);
  { transport.test(requests, context) } -> std::same_as<bool>;
  { transport.is_complete(request) } noexcept -> std::same_as<bool>;
  { transport.cancel(requests) } noexcept;
  { transport.release(requests) } noexcept -> std::same_as<bool>;
};

}  // namespace distx::inline DISTX_ABI::detail
