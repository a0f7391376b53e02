// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail::control {

/// The kinds of frames; a frame is 4 bytes of length, 1 byte of kind, and the rest, all numbers little-endian.
enum class FrameKind : std::uint8_t {
  // From a rank to rank 0.
  hello = 1,  ///< rank, size, limit, time left, process: asks to join; size 0: a running job
  call,       ///< limit, call, kind of result, root, bytes: enters a collective call
  notify,     ///< identity, reason: publishes a failure
  leave,      ///< whether it is unwinding: the last frame
  shrink,     ///< limit: asks to continue without the ranks that do not ask
  // From rank 0 to a rank.
  refuse,     ///< error: the ranks cannot be connected, or continue without this one
  result,     ///< bytes: the call is complete
  fail,       ///< error: the call has failed
  published,  ///< identity, reason: a failure that a rank has published
  ended,      ///< rank, how, message: a rank has left or failed
  regrouped,  ///< rank, size, local rank, local size: all ranks have joined, or the ranks after `shrink` or `grow`
};

/// The most bytes of a frame; a longer one ends the connection.
inline constexpr std::size_t most_frame_bytes = std::size_t{1} << 28;
inline constexpr std::size_t frame_header_bytes = 5;

/// One message between two ranks.
struct Frame {
  FrameKind kind{};
  std::string body;
};

/// Appends fields to a frame.
class FrameWriter {
 public:
  explicit FrameWriter(FrameKind kind) : frame_{kind, {}} {}

  /// @param value  an integer or an enumerator
  template <class Number>
  FrameWriter& number(Number value) {
    for (int shift = 0; shift < 64; shift += 8)
      frame_.body += static_cast<char>(static_cast<std::uint64_t>(value) >> shift);
    return *this;
  }
  FrameWriter& text(std::string_view value) {
    number(value.size());
    frame_.body += value;
    return *this;
  }
  [[nodiscard]] Frame finish() { return std::move(frame_); }

 private:
  Frame frame_;
};

/// Reads the fields of a frame; a field that is not there makes every later `valid()` false.
class FrameReader {
 public:
  explicit FrameReader(std::string_view body) noexcept : rest_(body) {}

  std::uint64_t number() noexcept {
    if (rest_.size() < 8) return fail();
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 8; ++i) value |= std::uint64_t{static_cast<std::uint8_t>(rest_[i])} << (8 * i);
    rest_.remove_prefix(8);
    return value;
  }
  /// Returns a number that fits an int and is at most `most`.
  int small(int most) noexcept {
    const auto value = number();
    if (value > static_cast<std::uint64_t>(most)) return static_cast<int>(fail());
    return static_cast<int>(value);
  }
  std::string_view text() noexcept {
    const auto size = number();
    if (size > rest_.size()) fail();
    const auto value = rest_.substr(0, valid_ ? static_cast<std::size_t>(size) : 0);
    rest_.remove_prefix(value.size());
    return value;
  }
  /// Returns whether every field read so far was there.
  [[nodiscard]] bool valid() const noexcept { return valid_; }
  /// Returns whether that holds, and nothing is left.
  [[nodiscard]] bool complete() const noexcept { return valid_ && rest_.empty(); }

 private:
  std::uint64_t fail() noexcept {
    valid_ = false;
    rest_ = {};
    return 0;
  }

  std::string_view rest_;
  bool valid_ = true;
};

inline void append_frame(std::string& out, const Frame& frame) {
  const auto length = static_cast<std::uint32_t>(frame.body.size());
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(length >> shift);
  out += static_cast<char>(frame.kind);
  out += frame.body;
}

/// The result of looking for a frame in received bytes.
struct ParsedFrame {
  std::optional<Frame> frame;  ///< null if it is not complete
  bool too_long = false;
};

/// Takes the first frame from the received bytes, from `begin` on, and advances `begin`.
[[nodiscard]] inline ParsedFrame parse_frame(std::string_view received, std::size_t& begin) {
  if (received.size() - begin < frame_header_bytes) return {};
  std::size_t length = 0;
  for (std::size_t i = 0; i < 4; ++i) length |= std::size_t{static_cast<std::uint8_t>(received[begin + i])} << (8 * i);
  if (length > most_frame_bytes) return {std::nullopt, true};
  if (received.size() - begin - frame_header_bytes < length) return {};
  Frame frame{static_cast<FrameKind>(received[begin + 4]),
              std::string(received.substr(begin + frame_header_bytes, length))};
  begin += frame_header_bytes + length;
  return {std::move(frame), false};
}

}  // namespace distx::inline DISTX_ABI::detail::control
