// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstring>
#include <type_traits>
#include <vector>

#include "distx/comm/runtime/peer_views.hpp"

namespace distx::inline DISTX_ABI::detail {

/// A message to every peer before a call, which the ranks compare: the call, its counts, and its operand if small.
///
/// This is the header; `write` appends the counts and the operand. Messages are aligned to 8 bytes.
struct CallDescription {
  Fingerprint call;
  std::uint64_t send_count = 0, receive_count = 0;
  std::int32_t rank = 0;
  std::uint32_t send_counts = 0, receive_counts = 0;  ///< the number of counts that follow
  std::uint32_t payload = 0;                          ///< bytes of the operand, after the counts
  std::uint64_t inlined = 0;                          ///< whether the operand follows

  /// Writes the description of a call to `message`; returns its bytes.
  /// @param most_inlined  the maximum bytes of an operand that is appended
  static std::size_t write(const Call<Host>& call, int rank, std::size_t most_inlined, bool with_counts,
                           std::byte* message) {
    PeerView own;
    view_own_call(own, call, rank);
    const std::size_t operand = sends(call, rank) ? own.send_count * element_width(call) : 0;
    CallDescription made{fingerprint(call), own.send_count, own.receive_count, rank};
    made.inlined = operand <= most_inlined ? 1 : 0;
    made.payload = made.inlined != 0 ? static_cast<std::uint32_t>(operand) : 0;
    if (with_counts) {
      made.send_counts = static_cast<std::uint32_t>(own.send_counts.size());
      made.receive_counts = static_cast<std::uint32_t>(own.receive_counts.size());
    }
    std::byte* to = message;
    const auto put = [&to](const void* from, std::size_t count) {
      if (from != nullptr && count != 0) std::memcpy(to, from, count);
      to += count;
    };
    put(&made, sizeof made);
    put(own.send_counts.data(), made.send_counts * sizeof(std::size_t));
    put(own.receive_counts.data(), made.receive_counts * sizeof(std::size_t));
    put(own.send, made.payload);
    return at(message).bytes();
  }
  /// Returns the description that `write` has written.
  [[nodiscard]] static const CallDescription& at(const std::byte* message) noexcept {
    return *reinterpret_cast<const CallDescription*>(message);
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return sizeof *this + (std::size_t{send_counts} + receive_counts) * sizeof(std::size_t) +
           (std::size_t{payload} + 7) / 8 * 8;
  }
  /// Returns the rank's view of the call; it refers to this message.
  [[nodiscard]] PeerView view() const noexcept {
    const auto* const counts = reinterpret_cast<const std::size_t*>(this + 1);
    return {.send = reinterpret_cast<const std::byte*>(counts + send_counts + receive_counts),
            .send_count = send_count,
            .receive_count = receive_count,
            .send_counts = {counts, send_counts},
            .receive_counts = {counts + send_counts, receive_counts},
            .inlined = inlined != 0};
  }
};
static_assert(sizeof(CallDescription) % 8 == 0 && std::is_trivially_copyable_v<CallDescription>);

/// Compares the ranks' descriptions and stores their views.
/// @param own  this rank's description
/// @param message  `message(i)` returns the i-th description in any order of ranks; it is called once for each
/// @throws MismatchError on every rank if the calls differ; it names the lowest rank whose call differs
template <class F>
void compare_descriptions(const Call<Host>& call, const std::byte* own, F&& message, std::vector<PeerView>& views,
                          bool with_counts, const ErrorContext& context) {
  const Fingerprint& mine = CallDescription::at(own).call;
  const CallDescription* other = nullptr;
  for (std::size_t i = 0; i < views.size(); ++i) {
    const CallDescription& found = CallDescription::at(message(i));
    views[static_cast<std::size_t>(found.rank)] = found.view();
    if (found.call != mine && (other == nullptr || found.rank < other->rank)) other = &found;
  }
  if (other != nullptr) throw MismatchError(difference(mine, other->call, other->rank), context);
  if (with_counts) check_blocks(call, views, context);
}

/// Returns whether the descriptions contain all data that the ranks send.
[[nodiscard]] inline bool all_inlined(const Call<Host>& call, const std::vector<PeerView>& views) noexcept {
  for (std::size_t rank = 0; rank < views.size(); ++rank)
    if (sends(call, static_cast<int>(rank)) && !views[rank].inlined) return false;
  return true;
}

}  // namespace distx::inline DISTX_ABI::detail
