// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "distx/comm/messages/message_transport.hpp"
#include "distx/comm/runtime/peer_views.hpp"
#include "distx/memory/buffer.hpp"

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

/// Sends each rank's description of a call, and its operand if small, to every rank.
///
/// Up to `T::most_direct` ranks send directly to each other in one round; more ranks use Bruck's all-gather in
/// ceil(log2 N) rounds (Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in
/// multiport message-passing systems", 1997).
template <MessageTransport T>
class DescriptionExchange {
 public:
  /// @param with_counts  whether descriptions contain the counts of a call
  DescriptionExchange(T& transport, const RankOf& self, bool with_counts)
      : transport_(transport),
        self_(self),
        with_counts_(with_counts),
        direct_(self.size <= T::most_direct),
        views_(static_cast<std::size_t>(self.size)) {
    const auto ranks = static_cast<std::size_t>(self.size);
    capacity_ = sizeof(CallDescription) + (with_counts ? 2 * ranks * sizeof(std::size_t) : 0) + inline_bytes(self.size);
    capacity_ = (capacity_ + 7) / 8 * 8;
    memory_ = Buffer<std::byte>(capacity_ * ranks);
    receives_ = direct_ ? ranks - 1 : 1;
    requests_ = std::vector<Request>(2 * receives_);
    std::ranges::generate(requests_, T::no_request);
  }
  DescriptionExchange(const DescriptionExchange&) = delete;
  DescriptionExchange& operator=(const DescriptionExchange&) = delete;

  /// Returns the maximum bytes of an operand that is sent with the description; the same on every rank.
  [[nodiscard]] static std::size_t inline_bytes(int size) noexcept {
    return size <= T::most_direct ? 2048 : std::max<std::size_t>(64, 16384 / static_cast<std::size_t>(size) / 8 * 8);
  }

  /// Describes a call and starts the first messages. @pre over()
  void begin(const Call<Host>& call, std::uint64_t number, const ErrorContext& context) {
    tag_ = transport_.tag(MessageStage::description, number);
    std::byte* const block = direct_ ? slot(self_.rank) : memory_.data();
    filled_ = CallDescription::write(call, self_.rank, inline_bytes(self_.size), with_counts_, block);
    blocks_ = 1;
    missing_ = self_.size - 1;
    if (direct_)
      post_all(block, context);
    else
      post_round(context);
  }
  /// Progresses; returns `over()`. Until that is true, the transport accesses this object.
  bool advance(const ErrorContext& context) {
    while (missing_ > 0) {
      if (!transport_.test(requests_, context)) return false;
      if (direct_) {
        missing_ = 0;
      } else {
        take_round();
        if (missing_ > 0) post_round(context);
      }
    }
    return true;
  }
  /// Returns whether every rank's description has arrived.
  [[nodiscard]] bool over() const noexcept { return missing_ == 0; }
  /// Gives the messages up; returns whether the transport has stopped to use this object.
  [[nodiscard]] bool abandon() noexcept {
    if (over()) return true;
    const std::span<Request> all(requests_);
    transport_.cancel(all.first(receives_));
    if (!transport_.release(all)) return false;
    missing_ = 0;
    return true;
  }
  /// Returns the ranks whose description has not arrived.
  [[nodiscard]] std::vector<int> missing() {
    std::vector<int> ranks;
    if (direct_) {
      for (std::size_t i = 0; i < receives_; ++i)
        if (!transport_.is_complete(requests_[i])) ranks.push_back(other_of(i));
    } else {
      for (int distance = blocks_; distance < self_.size; ++distance)
        ranks.push_back((self_.rank + distance) % self_.size);
    }
    return ranks;
  }

  /// Reads the descriptions. @pre over()
  /// @throws MismatchError on every rank if the ranks' calls differ
  void compare(const Call<Host>& call, const ErrorContext& context) {
    const std::byte* at = memory_.data();
    const auto message = [&](std::size_t i) {
      const std::byte* const block = direct_ ? slot(static_cast<int>(i)) : at;
      at += CallDescription::at(block).bytes();
      return block;
    };
    compare_descriptions(call, direct_ ? slot(self_.rank) : memory_.data(), message, views_, with_counts_, context);
  }
  /// Returns every rank's side of the call, until the next `begin`. @pre compare() returned
  [[nodiscard]] const std::vector<PeerView>& views() const noexcept { return views_; }
  /// Returns whether the descriptions contain all data that the ranks send. @pre compare() returned
  [[nodiscard]] bool all_inlined(const Call<Host>& call) const noexcept {
    return detail::all_inlined(call, views_) && (with_counts_ || !traits_of(call.kind).exchanges_counts);
  }
  /// Completes the call on this rank. @pre all_inlined(call)
  void complete(const Call<Host>& call) { complete_inlined(call, self_, views_, sources_); }

 private:
  using Request = typename T::Request;

  [[nodiscard]] std::byte* slot(int rank) const noexcept {
    return memory_.data() + static_cast<std::size_t>(rank) * capacity_;
  }
  /// Returns the rank of request `i` among those to the other ranks.
  [[nodiscard]] int other_of(std::size_t i) const noexcept {
    const int other = static_cast<int>(i);
    return other < self_.rank ? other : other + 1;
  }

  void post_all(const std::byte* block, const ErrorContext& context) {
    for (std::size_t i = 0; i < receives_; ++i)
      transport_.receive(other_of(i), tag_, slot(other_of(i)), capacity_, requests_[i], context);
    for (std::size_t i = 0; i < receives_; ++i)
      transport_.send(other_of(i), tag_, block, filled_, requests_[receives_ + i], context);
  }
  /// Sends the first blocks to the rank `blocks_` before this one, and receives the same number from the rank after it.
  void post_round(const ErrorContext& context) {
    const int count = std::min(blocks_, self_.size - blocks_);
    std::size_t bytes = 0;
    for (int i = 0; i < count; ++i) bytes += CallDescription::at(memory_.data() + bytes).bytes();
    const int to = (self_.rank + self_.size - blocks_) % self_.size, from = (self_.rank + blocks_) % self_.size;
    const auto room = capacity_ * static_cast<std::size_t>(count);
    transport_.receive(from, tag_, memory_.data() + filled_, room, requests_[0], context);
    transport_.send(to, tag_, memory_.data(), bytes, requests_[1], context);
  }
  void take_round() noexcept {
    const int count = std::min(blocks_, self_.size - blocks_);
    for (int i = 0; i < count; ++i) filled_ += CallDescription::at(memory_.data() + filled_).bytes();
    blocks_ += count;
    missing_ = self_.size - blocks_;
  }

  T& transport_;
  RankOf self_;
  bool with_counts_, direct_;
  std::size_t capacity_ = 0;  ///< bytes of the largest block
  Buffer<std::byte> memory_;  ///< by rank if direct, otherwise packed with this rank's block first
  std::size_t receives_ = 0;
  std::vector<PeerView> views_;
  std::vector<const void*> sources_;
  typename T::Tag tag_{};
  int missing_ = 0, blocks_ = 0;
  std::size_t filled_ = 0;
  std::vector<Request> requests_;  ///< receives, then sends; last: destroyed before the memory that they use
};

}  // namespace distx::inline DISTX_ABI::detail
