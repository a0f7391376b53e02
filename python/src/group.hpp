// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <array>
#include <atomic>
#include <distx/connect/key_value.hpp>
#include <distx/shm.hpp>
#include <list>
#include <map>
#include <mutex>

#include "tensors.hpp"

namespace distx_torch {

/// c10d's store as a KeyValueStore.
struct TorchStore {
  c10::intrusive_ptr<c10d::Store> store;

  void set(const std::string& key, const std::string& value) {
    store->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
  }
  std::optional<std::string> get(const std::string& key, milliseconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    try {
      const c10d::StoreTimeoutGuard guard(*store, std::max(limit, milliseconds(1)));
      return store->get_to_str(key);
    } catch (const std::exception&) {  // its types of a timeout differ between stores
      if (std::chrono::steady_clock::now() < end) throw;
      return std::nullopt;
    }
  }
};

/// Whether the store has the prefix "cuda/", which torch.distributed adds if CUDA is a group's only or first device.
struct StorePrefix : c10d::PrefixStore {
  [[nodiscard]] static bool is_cuda(const c10d::Store& store) {
    const auto* const prefixed = dynamic_cast<const c10d::PrefixStore*>(&store);
    return prefixed != nullptr && prefixed->*&StorePrefix::prefix_ == "cuda/";
  }
};

/// Which tags each rank has sent to each other rank, in memory that all of them see: receives from any rank ask it.
class SentTags {
 public:
  SentTags(distx::ShmCommunicator& comm);

  /// Notes a send, before it is started. Blocks while the receiver has not looked at the last `most` sends.
  void add(int to, int tag, milliseconds limit);
  /// Notes a receive from a known rank.
  void receive(int from, int tag);
  /// Returns a rank that has sent a message that no receive is noted for; nothing if there is none.
  [[nodiscard]] std::optional<int> receive_any(int tag);

 private:
  static constexpr std::uint32_t most = 62;
  struct Pair {                          // of the rank that owns the row and another rank
    std::atomic<std::uint32_t> sent{0};  // by the owner to the other
    std::atomic<std::uint32_t> seen{0};  // by the owner, of what the other has sent to it
    std::array<std::int32_t, most> tags{};
  };
  [[nodiscard]] Pair& pair(int owner, int other) const noexcept;
  void look();

  int rank_ = 0, size_ = 0;
  std::size_t row_bytes_ = 0;
  distx::detail::CommonMemory<distx::Host> memory_;
  std::vector<std::map<int, int>> unreceived_;  // of each rank, by tag; negative where a receive is ahead
};

/// A point-to-point message in flight.
struct Message {
  at::Tensor tensor{}, staging{};
  distx::Pending<> pending{};
  bool sends = false, started = false, done = false;
  int peer = -1, tag = 0;  // peer: -1 until a rank has sent to a receive from any
  std::exception_ptr error{};
};

/// Makes one call of a collective; its spans may be of a GPU's memory.
using Execute = std::function<void(const distx::calls::Call<>&)>;
/// The calls of a collective, with the copies before and after them.
using Calls = std::function<void(const Execute&)>;

/// What the handles of one process group share: a communicator for collectives in host memory, one for messages, and
/// the thread that makes asynchronous calls in their order.
struct Group {
  Group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, milliseconds timeout);

  /// Makes the communicators, at once or, of a group for CUDA, when host memory is first used. Collective.
  void connect();
  /// Ends the communicators, if need be as soon as they are made.
  void revoke(const std::string& reason);
  /// Makes a collective's calls, one thread at a time.
  void run(const Calls& calls);

  std::shared_ptr<Message> send(const at::Tensor& tensor, int to, int tag);
  /// @param from  -1: any rank
  std::shared_ptr<Message> receive(const at::Tensor& tensor, int from, int tag);
  /// Returns whether a message is complete, or failed.
  bool test(Message& message);

  const c10::intrusive_ptr<c10d::Store> store;
  const int rank, size;
  const milliseconds deadline;        ///< of the communicators
  std::atomic<milliseconds> timeout;  ///< the deadline, or a shorter time that was set later
  const bool for_cuda;
  std::atomic<int> queued{0};
  std::atomic<std::uint64_t> sequence{0};

 private:
  bool test_locked(Message& message);
  std::shared_ptr<Message> post(Message message);

  std::once_flag connected_;
  std::optional<distx::ShmCommunicator> comm_, messages_;
  std::exception_ptr connect_error_{};
  std::mutex revoking_;
  std::function<void(const std::string&)> revoke_;
  std::string revoked_{};
  std::mutex turn_, message_mutex_;
  std::optional<SentTags> sent_tags_;
  std::list<std::shared_ptr<Message>> in_flight_;  // whatever becomes of the handles

 public:
  distx::detail::ProgressThread thread;  // last: its tasks use the members above
};

inline SentTags::SentTags(distx::ShmCommunicator& comm)
    : rank_(comm.rank()), size_(comm.size()), unreceived_(static_cast<std::size_t>(comm.size())) {
  constexpr std::size_t page = 4096;
  const auto ranks = static_cast<std::size_t>(size_);
  row_bytes_ = (ranks * sizeof(Pair) + page - 1) / page * page;
  memory_ =
      comm.allocate_common(ranks * row_bytes_, {{static_cast<std::size_t>(rank_) * row_bytes_, row_bytes_}}).value();
}
inline SentTags::Pair& SentTags::pair(int owner, int other) const noexcept {
  auto* const row = memory_.span.data() + static_cast<std::size_t>(owner) * row_bytes_;
  return reinterpret_cast<Pair*>(row)[other];  // zeros are its initial state
}
inline void SentTags::add(int to, int tag, milliseconds limit) {
  Pair& mine = pair(rank_, to);
  const auto sent = mine.sent.load(std::memory_order_relaxed);
  const auto has_room = [&] {
    look();  // the receiver may be waiting for this rank to do the same
    return sent - pair(to, rank_).seen.load(std::memory_order_acquire) < most;
  };
  if (distx::detail::wait_until(limit, has_room, [] { return false; }) != distx::detail::WaitEnd::ready)
    C10_THROW_ERROR(DistBackendError, "distx: send: rank " + std::to_string(to) + " has received none of the last " +
                                          std::to_string(most) + " messages");
  mine.tags[sent % most] = tag;
  mine.sent.store(sent + 1, std::memory_order_release);
}
inline void SentTags::look() {
  for (int other = 0; other < size_; ++other) {
    const Pair& theirs = pair(other, rank_);
    auto& seen = pair(rank_, other).seen;
    auto next = seen.load(std::memory_order_relaxed);
    for (const auto sent = theirs.sent.load(std::memory_order_acquire); next != sent; ++next)
      ++unreceived_[static_cast<std::size_t>(other)][theirs.tags[next % most]];
    seen.store(next, std::memory_order_release);
  }
}
inline void SentTags::receive(int from, int tag) {
  look();
  --unreceived_[static_cast<std::size_t>(from)][tag];
}
inline std::optional<int> SentTags::receive_any(int tag) {
  look();
  for (int other = 0; other < size_; ++other) {
    auto& left = unreceived_[static_cast<std::size_t>(other)][tag];
    if (left <= 0) continue;
    --left;
    return other;
  }
  return std::nullopt;
}

inline Group::Group(const c10::intrusive_ptr<c10d::Store>& s, int r, int n, milliseconds limit)
    : store(s), rank(r), size(n), deadline(limit), timeout(limit), for_cuda(StorePrefix::is_cuda(*s)) {
  if (!for_cuda) connect();
}
inline void Group::connect() {
  std::call_once(connected_, [this] {
    try {
      distx::KeyValueConnector connector(TorchStore{store}, "distx/", rank, size, deadline);
      comm_.emplace(connector, deadline);
      messages_.emplace(comm_->split(0, rank));
      sent_tags_.emplace(*messages_);
    } catch (...) {  // its keys stay in the store: another attempt would read them
      connect_error_ = std::current_exception();
      return;
    }
    const std::lock_guard lock(revoking_);
    revoke_ = comm_->revoker();  // of both
    if (!revoked_.empty()) revoke_(revoked_);
  });
  if (connect_error_) std::rethrow_exception(connect_error_);
}
inline void Group::revoke(const std::string& reason) {
  const std::lock_guard lock(revoking_);
  if (revoke_) return revoke_(reason);
  revoked_ = reason;
}

inline void Group::run(const Calls& calls) {
  connect();
  const std::lock_guard lock(turn_);
  calls([this](const distx::calls::Call<>& call) { comm_->execute(call); });
}
inline std::shared_ptr<Message> Group::post(Message message) {
  const auto posted = std::make_shared<Message>(std::move(message));
  test_locked(*posted);
  in_flight_.remove_if([this](const auto& other) { return test_locked(*other); });
  in_flight_.push_back(posted);
  return posted;
}
inline std::shared_ptr<Message> Group::send(const at::Tensor& tensor, int to, int tag) {
  connect();
  const std::lock_guard lock(message_mutex_);
  if (to >= 0 && to < size) sent_tags_->add(to, tag, timeout);
  return post({.tensor = tensor, .staging = packed(tensor), .sends = true, .peer = to, .tag = tag});
}
inline std::shared_ptr<Message> Group::receive(const at::Tensor& tensor, int from, int tag) {
  connect();
  const std::lock_guard lock(message_mutex_);
  if (from >= 0 && from < size) sent_tags_->receive(from, tag);
  return post({.tensor = tensor, .staging = room_for(tensor), .peer = from, .tag = tag});
}
inline bool Group::test(Message& message) {
  const std::lock_guard lock(message_mutex_);
  return test_locked(message);
}
inline bool Group::test_locked(Message& message) {
  if (message.done) return true;
  try {
    if (!message.started && message.peer < 0) message.peer = sent_tags_->receive_any(message.tag).value_or(-1);
    if (!message.started) {
      if (message.peer < 0) return false;
      distx::calls::Call<> call;
      call.kind = message.sends ? distx::calls::CollectiveKind::send : distx::calls::CollectiveKind::receive;
      call.send = call.receive = {message.staging.data_ptr(), static_cast<std::size_t>(message.staging.nbytes()),
                                  distx::ElementType::bytes, 1};
      call.to = call.from = message.peer;
      call.tag = message.tag;
      message.pending = messages_->start(call);
      message.started = true;
    }
    if (!message.pending.test()) return false;
    message.pending.wait();
    const at::NoGradGuard no_grad;
    if (!message.sends) unpack(message.staging, message.tensor);
  } catch (...) {
    message.error = translated(std::current_exception(), timeout);
  }
  message.done = true;
  return true;
}

}  // namespace distx_torch
