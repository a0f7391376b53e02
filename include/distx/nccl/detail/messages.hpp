// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/comm/calls/validate.hpp"
#include "distx/nccl/detail/job.hpp"
#include "distx/nccl/detail/movement.hpp"

// Messages between two ranks. NCCL has no tags, and a message that is enqueued alone holds up those behind it until the
// other side has come. So what is started one after another is enqueued as one, when a call needs it to be.
namespace distx::nccl {

template <Collective Call>
inline constexpr bool is_message = Call::name == "send" || Call::name == "receive" || Call::name == "send_receive";

/// @throws MismatchError for a tag other than 0
template <Collective Call>
void check_tag(const Call& c, const RankOf& self) {
  if constexpr (is_message<Call>)
    if (c.tag != 0)
      throw MismatchError("tag " + std::to_string(c.tag) +
                              ": NCCL has no tags, only 0 is allowed; messages between two "
                              "ranks meet in the order in which they are sent",
                          self.context(c));
}

inline void post(std::vector<Message>& messages, Job* job, const Send<AnyElement, Cuda>& c) {
  messages.push_back(
      {.job = job, .sends = true, .source = c.buffer.bytes(), .bytes = c.buffer.size_bytes(), .peer = c.to});
}
inline void post(std::vector<Message>& messages, Job* job, const Receive<AnyElement, Cuda>& c) {
  messages.push_back({.job = job, .target = c.buffer.bytes(), .bytes = c.buffer.size_bytes(), .peer = c.from});
}
inline void post(std::vector<Message>& messages, Job* job, const SendReceive<AnyElement, Cuda>& c) {
  if (!c.send.empty())
    messages.push_back(
        {.job = job, .sends = true, .source = c.send.bytes(), .bytes = c.send.size_bytes(), .peer = c.to});
  if (!c.receive.empty())
    messages.push_back({.job = job, .target = c.receive.bytes(), .bytes = c.receive.size_bytes(), .peer = c.from});
}

/// Stands for the call of several messages in errors.
struct Messages {
  static constexpr std::string_view name = "messages";
  using element = AnyElement;
  using space = Cuda;
  std::source_location location{};
};

/// Enqueues all messages but those to oneself whose other side has not been started; these stay.
/// The jobs' events are the caller's to record.
inline void enqueue(Channel& ch, std::vector<Message>& messages, std::vector<Message>& enqueued) {
  const Messages call{};
  const int me = ch.self.rank;
  std::size_t pairs[2] = {0, 0};
  for (const Message& message : messages)
    if (message.peer == me) ++pairs[message.sends ? 0 : 1];
  const std::size_t matched = std::min(pairs[0], pairs[1]);
  std::size_t seen[2] = {0, 0};
  enqueued.clear();
  std::erase_if(messages, [&](const Message& message) {
    if (message.peer == me && seen[message.sends ? 0 : 1]++ >= matched) return false;
    enqueued.push_back(message);
    return true;
  });
  if (enqueued.empty()) return;
  // To oneself: copies, pair by pair.
  auto next = enqueued.begin();
  for (const Message& from : enqueued) {
    if (from.peer != me || !from.sends) continue;
    next = std::find_if(next, enqueued.end(), [&](const Message& m) { return m.peer == me && !m.sends; });
    if (next->bytes != from.bytes)
      throw MismatchError(
          "this rank sends itself " + std::to_string(from.bytes) + " bytes and receives " + std::to_string(next->bytes),
          ch.self.context(call));
    ch.copy(next->target, from.source, from.bytes, call);
    ++next;
  }
  const auto leaves = [me](const Message& message) { return message.peer != me; };
  if (std::any_of(enqueued.begin(), enqueued.end(), leaves))
    ch.grouped(call, [&] {
      for (const Message& message : enqueued) {
        if (message.peer == me) continue;
        if (message.sends)
          send_bytes(ch, message.source, message.bytes, message.peer, call);
        else
          receive_bytes(ch, message.target, message.bytes, message.peer, call);
      }
    });
}

/// Messages that wait to be enqueued together.
class Posted {
 public:
  template <Collective Call>
  void add(Job* job, const Call& call) {
    post(waiting_, job, call);
  }
  void clear() noexcept { waiting_.clear(); }
  [[nodiscard]] bool empty() const noexcept { return waiting_.empty(); }
  [[nodiscard]] bool sends() const noexcept {
    return std::ranges::any_of(waiting_, [](const Message& m) { return m.sends; });
  }
  [[nodiscard]] bool has(const Job* job) const noexcept {
    return std::ranges::any_of(waiting_, [job](const Message& m) { return m.job == job; });
  }
  /// @return those that are enqueued now
  [[nodiscard]] const std::vector<Message>& enqueue(Channel& channel) {
    nccl::enqueue(channel, waiting_, leaving_);
    return leaving_;
  }

 private:
  std::vector<Message> waiting_;
  std::vector<Message> leaving_;
};

}  // namespace distx::nccl
