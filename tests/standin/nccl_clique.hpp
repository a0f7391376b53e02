// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "standin/nccl_element.hpp"

// Where the ranks of one communicator, which are threads of this process, meet.
namespace standin {

struct Comm;

/// One operation as one rank sees it.
struct Op {
  enum class What {
    all_reduce,
    reduce,
    broadcast,
    all_gather,
    reduce_scatter,
    all_to_all,
    gather,
    scatter,
    send,
    receive
  };

  What what = What::all_reduce;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  Arithmetic arithmetic = Arithmetic::sum;
  Scalar scalar{};
  const void* device_scalar = nullptr;  ///< where the factor is read when the operation runs
  int root = 0;                         ///< or the peer

  [[nodiscard]] bool one_to_one() const { return what == What::send || what == What::receive; }
  /// Whether two ranks' operations are the same collective.
  [[nodiscard]] bool matches(const Op& other) const;
};

/// The connections of one rank: per algorithm of collectives, per peer and direction of messages.
struct Connections {
  std::set<std::string> algorithms;
  std::set<int> sends;
  std::set<int> receives;
};

class Clique {
 public:
  using Card = std::vector<std::int64_t>;

  explicit Clique(int ranks) : size(static_cast<std::size_t>(ranks)) {}

  /// Returns the cards of all ranks that meet under a key; nothing if this rank was stopped while it waited.
  std::optional<std::map<int, Card>> gather(const std::string& key, int rank, Card card, std::size_t expected,
                                            const std::function<bool()>& stopped);
  /// Leaves a card for one rank; cards of one sender and key are taken in order.
  void post(int from, int to, const std::string& key, Card card);
  /// The next card of one rank; nothing where this rank was stopped while it waited.
  std::optional<Card> take(int from, int to, const std::string& key, const std::function<bool()>& stopped);
  /// Returns the object that the ranks share under a key; the first that asks makes it.
  std::shared_ptr<Clique> child(const std::string& key, int child_size);
  /// Runs what one rank has enqueued together. Returns early where this rank was stopped.
  void run(Comm& comm, const std::vector<Op>& ops);
  /// Wakes waiting ranks, so that they look whether they were stopped.
  void wake();

  /// Takes note of a rank's GPU, before the first operation.
  void join(int device);
  /// The lowest compute capability of the ranks' GPUs.
  [[nodiscard]] int capability();
  /// The ranks' GPUs, one bit each.
  [[nodiscard]] std::uint64_t gpus();

  const std::size_t size;

 private:
  /// One collective.
  struct Meeting {
    std::map<int, Op> ops;
    std::size_t done = 0;
    std::size_t left = 0;
    int readers = 0;
    bool broken = false;  ///< a rank left before the end: the others wait until they are stopped too
  };
  /// One message.
  struct Message {
    std::optional<Op> send;
    std::optional<Op> receive;
    bool read = false;
    bool done = false;
    bool broken = false;
  };
  struct Channel {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
    std::map<std::uint64_t, std::shared_ptr<Message>> messages;
  };
  using Lock = std::unique_lock<std::mutex>;

  void collective(Lock& lock, Comm& comm, Op op);
  std::shared_ptr<Message> post(const Comm& comm, const Op& op);
  void complete(Lock& lock, const Comm& comm, Message& message, const Op& op);

  std::mutex mutex_;
  int capability_ = 1000;
  std::uint64_t gpus_ = 0;
  std::condition_variable changed_;
  std::map<std::uint64_t, Meeting> meetings_;
  std::map<std::pair<int, int>, Channel> channels_;
  std::map<std::string, std::map<int, Card>> gatherings_;
  std::map<std::string, std::deque<Card>> posted_;
  std::map<std::string, std::shared_ptr<Clique>> children_;
};

}  // namespace standin
