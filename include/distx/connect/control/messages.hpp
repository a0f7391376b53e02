// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "distx/connect/connector.hpp"
#include "distx/connect/detail/name_ranks.hpp"
#include "distx/connect/detail/variables.hpp"
#include "distx/core/deadline.hpp"
#include "distx/core/error.hpp"
#include "distx/core/version.hpp"
#include "distx/posix/process.hpp"

// The messages between the ranks of a connector.
namespace distx::inline DISTX_ABI::detail::control {

/// The kinds of frames, and the fields that each has.
enum class FrameKind : std::uint16_t {
  // From a rank to rank 0.
  hello = 1,  ///< rank, size, limit, time left, text (its process): asks to join; size 0: a running job
  call,       ///< limit, text (the call), bytes: enters a collective call
  notify,     ///< identity, text (the reason): publishes a failure, which rank 0 passes on
  leave,      ///< end: the last frame
  shrink,     ///< limit, identity (of its group): asks to continue without the ranks that do not ask
  // From rank 0 to a rank.
  refuse,     ///< error, rank, text: the ranks cannot be connected, or continue without this one
  result,     ///< bytes (of all ranks, in rank order): the call is complete
  fail,       ///< error, rank, text: the call has failed
  ended,      ///< rank, end, error, text (the message): a rank has left or failed
  regrouped,  ///< rank, size, local rank, local size, identity (of the group): all ranks have joined, or the next group
};

/// The ways in which a rank can end.
enum class RankEnd : std::uint8_t { left, threw, exited };

/// Of a wait without a limit, in nanoseconds.
inline constexpr std::int64_t no_limit = Timeout(no_timeout).limit().count();

/// The fields of a fixed size, as they are sent: in the byte order of the hosts, which is the same for all of a job.
struct FrameFields {
  FrameKind kind{};
  RankEnd end{};
  /// c: ConnectError, f: RankFailure of `rank`, m: MismatchError, r: RevokedError, t: TimeoutError
  char error = 'c';
  std::uint32_t text_size = 0;  ///< set when the frame is sent, as `bytes_size` is
  std::uint64_t bytes_size = 0;
  std::int32_t rank = -1, size = 0, local_rank = 0, local_size = 1;
  std::int64_t limit = no_limit;      ///< the deadline in nanoseconds
  std::int64_t time_left = no_limit;  ///< of it
  std::uint64_t identity = 0;
};
static_assert(std::has_unique_object_representations_v<FrameFields>);

/// One message between two ranks.
struct Frame : FrameFields {
  std::string text{};
  std::string bytes{};
};

/// The most bytes of a frame over a connection; a longer one ends it.
inline constexpr std::size_t most_frame_bytes = std::size_t{1} << 28;

inline void append_frame(std::string& out, const Frame& frame) {
  FrameFields fields = frame;
  fields.text_size = static_cast<std::uint32_t>(frame.text.size());
  fields.bytes_size = frame.bytes.size();
  out.append(reinterpret_cast<const char*>(&fields), sizeof fields);
  out.append(frame.text).append(frame.bytes);
}

/// Takes the first frame from the received bytes, from `begin` on, and advances `begin`; null if it is not complete.
/// @param most  the most bytes of its text and of its bytes together: for a longer one, returns a frame of no kind
[[nodiscard]] inline std::optional<Frame> parse_frame(std::string_view received, std::size_t& begin,
                                                      std::size_t most = most_frame_bytes) {
  Frame frame;
  FrameFields& fields = frame;
  auto rest = received.substr(begin);
  if (rest.size() < sizeof fields) return std::nullopt;
  std::memcpy(&fields, rest.data(), sizeof fields);
  rest.remove_prefix(sizeof fields);
  if (fields.text_size > most || fields.bytes_size > most - fields.text_size) return Frame();
  const std::size_t size = fields.text_size + fields.bytes_size;
  if (rest.size() < size) return std::nullopt;
  frame.text = rest.substr(0, fields.text_size);
  frame.bytes = rest.substr(fields.text_size, fields.bytes_size);
  begin += sizeof fields + size;
  return frame;
}

/// Returns a frame as the content of a file.
[[nodiscard]] inline std::string text_of(const Frame& frame) {
  std::string text;
  append_frame(text, frame);
  return text;
}
/// Returns the frame that a file contains; one of no kind if it is malformed.
[[nodiscard]] inline Frame frame_from(std::string_view text) {
  std::size_t end = 0;
  auto frame = parse_frame(text, end, text.size());
  return frame && end == text.size() ? std::move(*frame) : Frame();
}

using posix::Process;

/// Throws the error that a frame describes.
[[noreturn]] inline void raise(const Frame& frame, const ErrorContext& context) {
  if (frame.error == 'f') throw RankFailure(frame.text, frame.rank, nullptr, context);
  if (frame.error == 'm') throw MismatchError(frame.text, context);
  if (frame.error == 'r') throw RevokedError(frame.text, context);
  if (frame.error == 't') throw TimeoutError(frame.text, context);
  throw ConnectError(frame.text, context);
}

using time_point = Deadline::clock::time_point;

[[nodiscard]] inline Timeout timeout_of(std::int64_t limit) { return std::chrono::nanoseconds(limit); }

/// The call that admits the processes that wait to join.
inline constexpr const char* grow_call = "grow";
/// Returns the name of the operation of a call, such as "broadcast of 8 bytes from rank 0".
[[nodiscard]] inline std::string_view operation_of(std::string_view call) { return call.substr(0, call.find(' ')); }

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
[[nodiscard]] inline std::string name_of(int rank, int size) { return name_ranks({rank}, size); }
[[nodiscard]] inline std::string destroyed(const std::string& rank, RankEnd how) {
  const bool threw = how == RankEnd::threw;
  return rank + " destroyed its connector " +
         (threw ? "while unwinding from an exception" : "and will not enter this call");
}
/// Returns the notification that a rank enters no further call.
[[nodiscard]] inline Frame end_of(int rank, RankEnd how, const std::string& message) {
  return {{.kind = FrameKind::ended, .end = how, .error = how == RankEnd::threw ? 'r' : 'f', .rank = rank}, message};
}
/// Returns the reply to a call that a rank will not enter, which has ended.
[[nodiscard]] inline Frame failed_by(Frame end) {
  end.kind = FrameKind::fail;
  return end;
}
/// Returns the reply to a call that a rank will not enter, which has entered `shrink`.
[[nodiscard]] inline Frame failed_by_shrink(const std::string& rank) {
  return {{.kind = FrameKind::fail, .error = 'r'}, rank + " has entered shrink and will not enter this call"};
}
[[nodiscard]] inline Frame refusal(const std::string& message) { return {{.kind = FrameKind::refuse}, message}; }
[[nodiscard]] inline Frame other_size(int rank, int their_size, int size) {
  return refusal("rank " + std::to_string(rank) + " expects " + std::to_string(their_size) + " ranks, rank 0 expects " +
                 std::to_string(size) + ": start every rank with the same size");
}
[[nodiscard]] inline Frame twins(int rank, const Process& one, const Process& other) {
  return refusal("two processes have rank " + std::to_string(rank) + " (" + one.to_string() + " and " +
                 other.to_string() + "): give every process a different rank");
}
/// @param place  where the ranks meet, such as "at host:port"
[[nodiscard]] inline Frame not_joined(const std::vector<int>& ranks, int size, const Timeout& limit,
                                      const std::string& place) {
  return {{.kind = FrameKind::refuse, .error = 't'},
          "timed out after " + limit.to_string() + ": " + name_ranks(ranks, size) + " did not join " + place};
}
[[nodiscard]] inline Frame exited_early(int rank, int size, const Process& process) {
  return {{.kind = FrameKind::refuse, .error = 'f', .rank = rank},
          name_of(rank, size) + " (" + process.to_string() + ") exited before all ranks had joined"};
}
/// @}

}  // namespace distx::inline DISTX_ABI::detail::control
