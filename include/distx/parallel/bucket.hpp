// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/comm/any_communicator.hpp"
#include "distx/memory/operations.hpp"
#include "distx/parallel/parameter_list.hpp"
#include "distx/parallel/shard_update.hpp"

namespace distx::detail {

/// Borrowed gradients of at most this many bytes travel in one packed message; two copies cost less than a message.
inline constexpr std::size_t packed_gradient_bytes = 65536;

/// Which entries make up each bucket: those that are trained, in reverse order, as many as `bytes` hold, one at least.
///
/// The entries of a bucket have one element type, and are all owned or all borrowed.
template <MemorySpace Space>
std::vector<std::vector<std::size_t>> plan_buckets(const std::vector<Entry<Space>>& entries, std::size_t first_bytes,
                                                   std::size_t bytes) {
  std::vector<std::vector<std::size_t>> buckets;
  std::size_t held = 0;
  for (std::size_t i = entries.size(); i-- > 0;) {
    const auto& entry = entries[i];
    if (!entry.trained()) continue;
    const std::size_t limit = buckets.size() <= 1 ? first_bytes : bytes;
    const auto fits = [&] {
      const auto& last = entries[buckets.back().back()];
      return last.type() == entry.type() && (last.owned != nullptr) == (entry.owned != nullptr) && held <= limit &&
             entry.bytes() <= limit - held;
    };
    if (buckets.empty() || !fits()) {
      buckets.emplace_back();
      held = 0;
    }
    buckets.back().push_back(i);
    held += entry.bytes();
  }
  return buckets;
}

/// Gradients that are reduced together: where they lie, the messages that they travel in, and the messages in flight.
template <MemorySpace Space>
class Bucket {
 public:
  using stream = typename Space::stream;
  using Call = AllReduce<AnyElement, AnyOp, Space>;

  explicit Bucket(std::vector<std::size_t> entries) : members(std::move(entries)), missing(members.size()) {}

  /// Borrowed gradients: the large ones are reduced where they are, the small ones in one packed copy. Collective.
  void borrow(AnyCommunicator<Space>& comm, const std::vector<Entry<Space>>& entries) {
    std::size_t packed = 0;
    for (const auto member : members) {
      const auto gradient = entries[member].gradient;
      if (gradient.size_bytes() > packed_gradient_bytes) {
        messages_.push_back(gradient);
      } else {
        packed_.push_back(gradient);
        packed += gradient.size();
      }
    }
    if (packed_.size() == 1) {
      messages_.push_back(packed_.front());
      packed_.clear();
    }
    if (packed_.empty()) return;
    const auto& first = packed_.front();
    memory_ = comm.template allocate<std::byte>(packed * first.element_bytes());
    messages_.push_back({memory_.data(), packed, first.type(), first.element_bytes()});
  }

  /// Owned gradients lie side by side already.
  void own(Span<AnyElement, Space> gradients) { messages_.push_back(gradients); }

  /// Begins to reduce.
  void start(AnyCommunicator<Space>& comm, stream after, const std::source_location& location) {
    pack(after);
    for (const auto& message : messages_) pending_.push_back(comm.start(call(message, location), after));
  }
  /// Reduces.
  void execute(AnyCommunicator<Space>& comm, stream after, const std::source_location& location) {
    pack(after);
    for (const auto& message : messages_) comm.execute(call(message, location));
    unpack(after);
  }
  /// Ends what `start` began.
  void finish(stream after) {
    for (auto& pending : pending_) pending.wait(after);
    pending_.clear();
    unpack(after);
  }
  /// Gives a backend without a thread of its own the opportunity to go on.
  void advance() {
    for (auto& pending : pending_)
      if (!pending.test()) return;
  }

  const std::vector<std::size_t> members;  ///< entries, in the order in which they lie in the bucket
  std::size_t missing;                     ///< of the members, those that are not ready yet
  std::unique_ptr<ShardUpdate<Space>> update{};

 private:
  static Call call(Span<AnyElement, Space> message, const std::source_location& location) {
    return {message, message, average_of(message.type()), location};
  }
  static AnyOp average_of(ElementType type) noexcept {
    switch (type) {
      case ElementType::f64: return AnyOp::make<double>(average);
      case ElementType::bf16: return AnyOp::make<bfloat16>(average);
      case ElementType::f16: return AnyOp::make<float16>(average);
      default: return AnyOp::make<float>(average);
    }
  }
  template <class F>
  void each_packed(F&& f) {
    std::size_t begin = 0;
    for (const auto& gradient : packed_) {
      f(Span<std::byte, Space>(gradient.bytes(), gradient.size_bytes()),
        memory_.span().subspan(begin, gradient.size_bytes()));
      begin += gradient.size_bytes();
    }
  }
  void pack(stream after) {
    each_packed([&](auto gradient, auto place) { copy(after, place, gradient); });
  }
  void unpack(stream after) {
    each_packed([&](auto gradient, auto place) { copy(after, gradient, place); });
  }

  std::vector<Span<AnyElement, Space>> messages_;
  std::vector<Span<AnyElement, Space>> packed_;
  CommunicatorMemory<std::byte, Space> memory_;  // before the pendings, which borrow it
  std::vector<AnyPending<Space>> pending_;
};

}  // namespace distx::detail
