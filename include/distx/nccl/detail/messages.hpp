// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/calls/validate.hpp"
#include "distx/comm/runtime/first_uses.hpp"
#include "distx/nccl/detail/movement.hpp"

// Messages between two ranks. NCCL has no tags, and a message that is enqueued alone holds up later ones until the peer
// enters its side. So messages that are started one after another are passed to NCCL together, when a call needs one.
namespace distx::inline DISTX_ABI::nccl::detail {

/// @throws InvalidArgument for a tag other than 0
inline void check_tag(const calls::Call<Cuda>& c, const calls::RankOf& self) {
  if (distx::detail::traits_of(c.kind).message && c.tag != 0)
    throw InvalidArgument("invalid tag " + std::to_string(c.tag) +
                              ": NCCL has no tags and messages between two ranks match in order; pass 0",
                          self.context(c));
}

/// A message that has been started and not yet passed to NCCL.
struct NcclMessage {
  StreamCall* call = nullptr;
  bool sends = false;
  const std::byte* source = nullptr;  ///< of one that is sent
  std::byte* target = nullptr;        ///< of one that is received
  std::size_t bytes = 0;
  int peer = 0;
  CallRecord* record = nullptr;  ///< the description that is sent before it; null if it is not compared
};

/// Passes all messages to NCCL, except self-messages whose other side has not been started: these stay.
inline void enqueue(CommStream& ch, std::vector<NcclMessage>& messages, std::vector<NcclMessage>& enqueued) {
  const int me = ch.self.rank;
  std::size_t pairs[2] = {0, 0};
  for (const NcclMessage& message : messages)
    if (message.peer == me) ++pairs[message.sends ? 0 : 1];
  const std::size_t matched = std::min(pairs[0], pairs[1]);
  std::size_t seen[2] = {0, 0};
  enqueued.clear();
  std::erase_if(messages, [&](const NcclMessage& message) {
    if (message.peer == me && seen[message.sends ? 0 : 1]++ >= matched) return false;
    enqueued.push_back(message);
    return true;
  });
  if (enqueued.empty()) return;
  // Self-messages are copies, pair by pair.
  auto next = enqueued.begin();
  for (const NcclMessage& from : enqueued) {
    if (from.peer != me || !from.sends) continue;
    next = std::find_if(next, enqueued.end(), [&](const NcclMessage& m) { return m.peer == me && !m.sends; });
    if (next->bytes != from.bytes)
      throw InvalidArgument("this rank sends itself " + std::to_string(from.bytes) + " bytes and receives " +
                                std::to_string(next->bytes) + "; both sides need the same size",
                            from.call->context);
    ch.copy(next->target, from.source, from.bytes, from.call->context);
    ++next;
  }
  const auto leaves = [me](const NcclMessage& message) { return message.peer != me; };
  if (std::any_of(enqueued.begin(), enqueued.end(), leaves))
    ch.grouped(enqueued.front().call->context, [&] {
      for (const NcclMessage& message : enqueued) {
        if (message.peer == me) continue;
        const ErrorContext& where = message.call->context;
        auto* const record = reinterpret_cast<std::byte*>(message.record);
        const std::size_t bytes = record == nullptr ? 0 : sizeof(CallRecord);
        if (message.sends) {
          send_bytes(ch, record, bytes, message.peer, where);
          send_bytes(ch, message.source, message.bytes, message.peer, where);
        } else {
          receive_bytes(ch, record, bytes, message.peer, where);
          receive_bytes(ch, message.target, message.bytes, message.peer, where);
        }
      }
    });
}

/// The messages that have been started and not yet passed to NCCL.
class PostedMessages {
 public:
  void add(StreamCall* started, const calls::Call<Cuda>& c) {
    using enum calls::CollectiveKind;
    const bool both = c.kind == send_receive;
    if (c.kind == send || (both && !c.send.empty())) {
      waiting_.push_back(
          {.call = started, .sends = true, .source = c.send.bytes(), .bytes = c.send.size_bytes(), .peer = c.to});
      if (const auto description = compared(waiting_.back(), c.send, c.lengths))
        waiting_.back().record = started->comparison.sent(*description);
    }
    if (c.kind == receive || (both && !c.receive.empty())) {
      waiting_.push_back(
          {.call = started, .target = c.receive.bytes(), .bytes = c.receive.size_bytes(), .peer = c.from});
      if (const auto description = compared(waiting_.back(), c.receive, c.lengths))
        waiting_.back().record = started->comparison.open_received(*description, c.from);
    }
  }
  void clear() noexcept { waiting_.clear(); }
  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }
  [[nodiscard]] bool sends() const noexcept {
    return std::ranges::any_of(waiting_, [](const NcclMessage& m) { return m.sends; });
  }
  [[nodiscard]] bool has(const StreamCall* started) const noexcept {
    return std::ranges::any_of(waiting_, [started](const NcclMessage& m) { return m.call == started; });
  }
  /// Passes them to NCCL, and returns those that were.
  [[nodiscard]] const std::vector<NcclMessage>& enqueue(CommStream& comm) {
    detail::enqueue(comm, waiting_, leaving_);
    return leaving_;
  }

 private:
  /// Returns the description of a message if it is to be compared. Both ranks of a message decide the same, if they
  /// agree on all earlier ones in its direction.
  template <class AnySpan>
  [[nodiscard]] std::optional<calls::Fingerprint> compared(const NcclMessage& message, const AnySpan& span,
                                                           std::uint64_t lengths) {
    const CommStream& comm = *message.call->comm;
    const Check check = comm.options.check;
    if (check == Check::off || message.peer == comm.self.rank) return std::nullopt;
    const auto description = fingerprint_of_message(span, lengths);
    auto own = description;  // of this rank's messages
    own.root = message.peer;
    own.in_place = message.sends;
    if (check == Check::first_use && !known_.is_new(own)) return std::nullopt;
    return description;
  }

  distx::detail::FirstUses known_;
  std::vector<NcclMessage> waiting_;
  std::vector<NcclMessage> leaving_;
};

}  // namespace distx::inline DISTX_ABI::nccl::detail
