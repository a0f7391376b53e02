// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/nccl_clique.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "standin/device.hpp"
#include "standin/nccl_comm.hpp"

namespace standin {

namespace {

using What = Op::What;

/// Returns one rank's result of a collective. Reads all ranks' operands and writes nothing.
std::vector<unsigned char> result_of(const std::vector<Op>& ops, std::size_t rank) {
  const Op& mine = ops[rank];
  const std::size_t bytes = mine.count * bytes_of(mine.type);
  const auto sent = [&](std::size_t from, std::size_t block) {
    return static_cast<const unsigned char*>(ops[from].send) + block * bytes;
  };
  const bool is_root = static_cast<std::size_t>(mine.root) == rank;
  std::vector<unsigned char> result;
  const auto append = [&](const unsigned char* from) { result.insert(result.end(), from, from + bytes); };
  switch (mine.what) {
    case What::reduce:
      if (!is_root) return result;
      [[fallthrough]];
    case What::all_reduce:
    case What::reduce_scatter: {
      std::vector<const void*> inputs;
      std::vector<Scalar> scalars;
      for (std::size_t from = 0; from < ops.size(); ++from) {
        inputs.push_back(sent(from, mine.what == What::reduce_scatter ? rank : 0));
        scalars.push_back(ops[from].scalar);
      }
      result.resize(bytes);
      reduce(mine.type, mine.arithmetic, inputs, scalars, result.data(), mine.count);
      return result;
    }
    case What::broadcast:
      append(sent(static_cast<std::size_t>(mine.root), 0));
      return result;
    case What::scatter:
      append(sent(static_cast<std::size_t>(mine.root), rank));
      return result;
    case What::gather:
      if (!is_root) return result;
      [[fallthrough]];
    case What::all_gather:
      for (std::size_t from = 0; from < ops.size(); ++from) append(sent(from, 0));
      return result;
    case What::all_to_all:
      for (std::size_t from = 0; from < ops.size(); ++from) append(sent(from, rank));
      return result;
    case What::send:
    case What::receive:
      break;
  }
  return result;
}

}  // namespace

bool Op::matches(const Op& other) const {
  return what == other.what && count == other.count && type == other.type && arithmetic == other.arithmetic &&
         root == other.root;
}

void Clique::join(int device) {
  const std::lock_guard lock(mutex_);
  capability_ = std::min(capability_, capability_of(device));
  gpus_ |= std::uint64_t{1} << device;
}

std::uint64_t Clique::gpus() {
  const std::lock_guard lock(mutex_);
  return gpus_;
}

int Clique::capability() {
  const std::lock_guard lock(mutex_);
  return capability_;
}

void Clique::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

std::optional<std::map<int, Clique::Card>> Clique::gather(const std::string& key, int rank, Card card,
                                                          std::size_t expected, const std::function<bool()>& stopped) {
  Lock lock(mutex_);
  auto& cards = gatherings_[key];
  cards[rank] = std::move(card);
  changed_.notify_all();
  while (!stopped() && cards.size() < expected) changed_.wait_for(lock, std::chrono::milliseconds(1));
  if (cards.size() < expected) return std::nullopt;
  return cards;
}

namespace {

std::string address(int from, int to, const std::string& key) {
  return key + " from " + std::to_string(from) + " to " + std::to_string(to);
}

}  // namespace

void Clique::post(int from, int to, const std::string& key, Card card) {
  const std::lock_guard lock(mutex_);
  posted_[address(from, to, key)].push_back(std::move(card));
  changed_.notify_all();
}

std::optional<Clique::Card> Clique::take(int from, int to, const std::string& key,
                                         const std::function<bool()>& stopped) {
  Lock lock(mutex_);
  auto& cards = posted_[address(from, to, key)];
  while (!stopped() && cards.empty()) changed_.wait_for(lock, std::chrono::milliseconds(1));
  if (cards.empty()) return std::nullopt;
  Card card = std::move(cards.front());
  cards.pop_front();
  return card;
}

std::shared_ptr<Clique> Clique::child(const std::string& key, int child_size) {
  const std::lock_guard lock(mutex_);
  auto& made = children_[key];
  if (made == nullptr) made = std::make_shared<Clique>(child_size);
  return made;
}

void Clique::run(Comm& comm, const std::vector<Op>& ops) {
  Lock lock(mutex_);
  // A rank that does not arrive, or has met an error, waits to be stopped.
  while (!comm.stopped && comm.hangs()) changed_.wait_for(lock, std::chrono::milliseconds(1));
  std::vector<std::shared_ptr<Message>> messages;
  for (const Op& op : ops) messages.push_back(op.one_to_one() ? post(comm, op) : nullptr);
  changed_.notify_all();
  for (const Op& op : ops)
    if (!op.one_to_one()) collective(lock, comm, op);
  // All are posted, so each receive finds its message; then each send is done.
  for (const What what : {What::receive, What::send})
    for (std::size_t i = 0; i < ops.size(); ++i)
      if (ops[i].what == what) complete(lock, comm, *messages[i], ops[i]);
}

void Clique::collective(Lock& lock, Comm& comm, Op op) {
  const std::uint64_t number = comm.collectives++;
  if (comm.stopped) {
    meetings_[number].broken = true;
    return;
  }
  if (op.device_scalar != nullptr) std::memcpy(op.scalar.data(), op.device_scalar, bytes_of(op.type));
  Meeting& meeting = meetings_[number];
  meeting.ops[comm.rank] = op;
  changed_.notify_all();
  changed_.wait(lock, [&] {
    if (comm.stopped) return true;
    return meeting.ops.size() == size && !meeting.broken && comm.error == ncclSuccess &&
           std::ranges::all_of(meeting.ops, [&](const auto& other) { return op.matches(other.second); });
  });
  if (!comm.stopped) {
    std::vector<Op> ops;
    for (const auto& [rank, theirs] : meeting.ops) ops.push_back(theirs);
    ++meeting.readers;
    lock.unlock();
    const std::vector<unsigned char> result = result_of(ops, static_cast<std::size_t>(comm.rank));
    lock.lock();
    --meeting.readers;
    ++meeting.done;
    changed_.notify_all();
    // Another rank may still read the memory that this one writes.
    changed_.wait(lock, [&] { return comm.stopped || meeting.done == size; });
    if (meeting.done == size && !result.empty()) {
      lock.unlock();
      std::memcpy(op.receive, result.data(), result.size());
      lock.lock();
    }
  }
  if (meeting.done < size) {
    meeting.broken = true;
    changed_.wait(lock, [&] { return meeting.readers == 0; });
    return;
  }
  if (++meeting.left == size) meetings_.erase(number);
}

std::shared_ptr<Clique::Message> Clique::post(const Comm& comm, const Op& op) {
  const bool sends = op.what == What::send;
  Channel& channel = channels_[sends ? std::pair(comm.rank, op.root) : std::pair(op.root, comm.rank)];
  auto& message = channel.messages[sends ? channel.sent++ : channel.received++];
  if (message == nullptr) message = std::make_shared<Message>();
  (sends ? message->send : message->receive) = op;
  std::shared_ptr<Message> result = message;
  if (result->send && result->receive)
    channel.messages.erase(sends ? channel.sent - 1 : channel.received - 1);  // both hold it
  return result;
}

void Clique::complete(Lock& lock, const Comm& comm, Message& message, const Op& op) {
  if (op.what == What::send) {
    changed_.wait(lock, [&] { return comm.stopped || message.done; });
    if (message.done) return;
    message.broken = true;
    changed_.wait(lock, [&] { return !message.read; });
    return;
  }
  changed_.wait(lock, [&] {
    if (comm.stopped) return true;
    return message.send.has_value() && !message.broken && comm.error == ncclSuccess &&
           message.send->count == op.count && message.send->type == op.type;
  });
  if (comm.stopped) return;
  message.read = true;
  lock.unlock();
  const std::size_t bytes = op.count * bytes_of(op.type);
  std::vector<unsigned char> staged(bytes);
  std::memcpy(staged.data(), message.send->send, bytes);
  std::memcpy(op.receive, staged.data(), bytes);
  lock.lock();
  message.read = false;
  message.done = true;
  changed_.notify_all();
}

}  // namespace standin
