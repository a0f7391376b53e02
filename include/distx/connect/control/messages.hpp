// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "distx/connect/connector.hpp"
#include "distx/connect/control/frame.hpp"
#include "distx/core/deadline.hpp"
#include "distx/core/error.hpp"
#include "distx/posix/process.hpp"

// The messages between the ranks of a connector.
namespace distx::inline DISTX_ABI::detail::control {

using posix::Process;

/// An error as it is sent: the letter of its type, the rank that failed, and the message.
struct SentError {
  char type = 'c';  ///< c: ConnectError, f: RankFailure, m: MismatchError, r: RevokedError, t: TimeoutError
  int failed_rank = -1;
  std::string message;

  [[noreturn]] void raise(const ErrorContext& context) const {
    if (type == 'f') throw RankFailure(message, failed_rank, nullptr, context);
    if (type == 'm') throw MismatchError(message, context);
    if (type == 'r') throw RevokedError(message, context);
    if (type == 't') throw TimeoutError(message, context);
    throw ConnectError(message, context);
  }
  [[nodiscard]] Frame frame(FrameKind kind) const {
    return FrameWriter(kind).number(type).number(failed_rank + 1).text(message).finish();
  }
  [[nodiscard]] static SentError from(const Frame& frame) {
    FrameReader in(frame.body);
    SentError error;
    error.type = static_cast<char>(in.small(127));
    error.failed_rank = in.small(1 << 30) - 1;
    error.message = in.text();
    return error;
  }
};

/// The ways in which a rank can end.
enum class RankEnd : std::uint8_t { left, threw, exited };

/// Returns the numbers of each rank.
/// @param ranks  objects from which `process_of` returns a Process
template <class Ranks, class ProcessOf = std::identity>
[[nodiscard]] std::vector<RankNumbers> numbers_of(const Ranks& ranks, ProcessOf process_of = {}) {
  const auto host_of = [&](const auto& rank) -> std::string_view { return std::invoke(process_of, rank).host; };
  std::map<std::string_view, int> local_sizes, local_ranks;
  for (const auto& rank : ranks) ++local_sizes[host_of(rank)];
  std::vector<RankNumbers> all;
  for (const auto& rank : ranks)
    all.emplace_back(static_cast<int>(all.size()), static_cast<int>(ranks.size()), local_ranks[host_of(rank)]++,
                     local_sizes[host_of(rank)]);
  return all;
}

using time_point = Deadline::clock::time_point;

inline constexpr std::uint64_t no_limit = ~std::uint64_t{0};

[[nodiscard]] inline std::uint64_t milliseconds_of(const Timeout& timeout) {
  if (timeout.unlimited()) return no_limit;
  const auto count = std::chrono::ceil<std::chrono::milliseconds>(timeout.limit()).count();
  return count < 0 ? 0 : static_cast<std::uint64_t>(count);
}
[[nodiscard]] inline Timeout timeout_of(std::uint64_t milliseconds) {
  constexpr std::uint64_t most = 3'200'000'000'000;
  if (milliseconds >= most) return no_timeout;
  return std::chrono::milliseconds(static_cast<std::int64_t>(milliseconds));
}

/// The call that admits the processes that wait to join.
inline constexpr std::string_view grow_call = "grow";

/// The parts of a call that a rank receives.
enum class CallResult : std::uint8_t { nothing, of_root, of_all };

/// One rank's part of a collective call.
struct CallPart {
  std::uint64_t limit = 0;  ///< in milliseconds; the largest number stands for no deadline
  std::string call{};       ///< such as "broadcast of 8 bytes from rank 0", equal on all ranks
  CallResult result{};
  int root = 0;
  std::string bytes{};

  [[nodiscard]] Frame frame() const {
    return FrameWriter(FrameKind::call).number(limit).text(call).number(result).number(root).text(bytes).finish();
  }
  /// Returns null if the frame is malformed.
  [[nodiscard]] static std::optional<CallPart> from(const Frame& frame, int size) {
    FrameReader in(frame.body);
    CallPart part;
    part.limit = in.number();
    part.call = in.text();
    part.result = static_cast<CallResult>(in.small(2));
    part.root = in.small(size - 1);
    part.bytes = in.text();
    if (!in.complete()) return std::nullopt;
    return part;
  }
};

/// Returns the reply to a call that all ranks have entered: its result, or that the ranks make different calls.
/// @param parts  of all ranks, none of them null
[[nodiscard]] inline Frame reply_to(const std::vector<const CallPart*>& parts) {
  const CallPart& first = *parts[0];
  for (std::size_t rank = 1; rank < parts.size(); ++rank)
    if (parts[rank]->call != first.call)
      return SentError{'m', -1,
                       "rank 0 calls " + first.call + ", rank " + std::to_string(rank) + " " + parts[rank]->call}
          .frame(FrameKind::fail);
  Frame frame{FrameKind::result, {}};
  if (first.result == CallResult::of_root) frame.body = parts[static_cast<std::size_t>(first.root)]->bytes;
  if (first.result == CallResult::of_all)
    for (const auto* part : parts) frame.body += part->bytes;
  return frame;
}

/// The largest number of ranks.
inline constexpr int most_ranks = 65536;

/// @throws ConnectError unless the size is in [1, most_ranks] and the rank in [0, size)
inline void check_rank(int rank, int size, std::string_view backend) {
  const ErrorContext context{.operation = "connect", .backend = backend};
  if (size < 1 || size > most_ranks)
    throw ConnectError("invalid size " + std::to_string(size) + ": must be in [1, " + std::to_string(most_ranks) + "]",
                       context);
  if (rank < 0 || rank >= size)
    throw ConnectError("invalid rank " + std::to_string(rank) + ": must be in [0, " + std::to_string(size) + ")",
                       context);
}

/// @name Messages that all kinds of connectors have
/// @{
[[nodiscard]] inline std::string name_of(int rank, int size) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size);
}
[[nodiscard]] inline std::string destroyed(const std::string& rank) {
  return rank + " destroyed its connector and will not enter this call";
}
[[nodiscard]] inline std::string unwound(const std::string& rank) {
  return rank + " destroyed its connector while unwinding from an exception";
}
[[nodiscard]] inline std::string shrinks(const std::string& rank) {
  return rank + " has entered shrink and will not enter this call";
}
[[nodiscard]] inline SentError other_size(int rank, int their_size, int size) {
  return {'c', -1,
          "rank " + std::to_string(rank) + " expects " + std::to_string(their_size) + " ranks, rank 0 expects " +
              std::to_string(size) + ": start every rank with the same size"};
}
[[nodiscard]] inline SentError twins(int rank, const Process& one, const Process& other) {
  return {'c', -1,
          "two processes have rank " + std::to_string(rank) + " (" + one.to_string() + " and " + other.to_string() +
              "): give every process a different rank"};
}
[[nodiscard]] inline SentError exited_early(int rank, int size, const Process& process) {
  return {'f', rank, name_of(rank, size) + " (" + process.to_string() + ") exited before all ranks had joined"};
}
/// @}

}  // namespace distx::inline DISTX_ABI::detail::control
