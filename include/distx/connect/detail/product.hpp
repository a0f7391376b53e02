// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/connect/self.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The failure channels of the inner and the outer ranks as one.
///
/// Each inner rank publishes to the outer ranks by itself, because it may be the only one of its process that still
/// can. That an inner rank failed only the inner channel knows; the first rank that polls it passes it on.
class ProductFailureChannel final : public FailureChannel {
 public:
  /// @pre neither is null
  ProductFailureChannel(std::shared_ptr<FailureChannel> inner, std::shared_ptr<FailureChannel> outer)
      : inner_(std::move(inner)), outer_(std::move(outer)) {}

  void publish(std::uint64_t identity, const std::string& reason) noexcept override {
    inner_->publish(identity, reason);
    outer_->publish(identity, reason);
  }
  [[nodiscard]] std::optional<std::string> poll(std::uint64_t identity) override {
    if (auto near = inner_->poll(identity)) {
      outer_->publish(identity, *near);
      return near;
    }
    return outer_->poll(identity);
  }

 private:
  std::shared_ptr<FailureChannel> inner_;
  std::shared_ptr<FailureChannel> outer_;
};

/// Several inner ranks in each outer rank: rank = outer rank * inner size + inner rank.
///
/// Every inner rank holds one; only inner rank 0 uses the outer connector, which need not be thread-safe (its failure
/// channel is). The outer connector is borrowed and must outlive the product. Every outer rank has the same number of
/// inner ranks.
template <Connector Inner, Connector Outer>
class ProductConnector : public RankNumbers {
 public:
  ProductConnector(Inner inner, Outer& outer)
      : RankNumbers(outer.rank() * inner.size() + inner.rank(), outer.size() * inner.size(),
                    outer.local_rank() * inner.size() + inner.rank(), outer.local_size() * inner.size(),
                    outer.root_rank() * inner.size() + inner.root_rank()),
        inner_(std::move(inner)),
        outer_(&outer) {
    // Over the outer connector alone: a gather of all ranks has a size only if the numbers are equal.
    std::vector<int> sizes(static_cast<std::size_t>(outer.size()));
    if (inner_.rank() == 0) sizes = all_gather_values(outer, inner_.size());
    inner_.broadcast(std::as_writable_bytes(std::span(sizes)), 0);
    for (const int size : sizes)
      if (size != inner_.size())
        throw MismatchError("one process has " + std::to_string(size) + " inner ranks, this one " +
                                std::to_string(inner_.size()) + ": every process needs the same number",
                            {.operation = "product", .backend = "connector", .rank = rank_, .size = size_});
  }

  void barrier() {
    inner_.barrier();
    if (inner_.rank() == 0) outer_->barrier();
    inner_.barrier();
  }
  void broadcast(std::span<std::byte> bytes, int root) {
    check_control_root(root, rank_, size_);
    const int inner_root = root % inner_.size();
    const int outer_root = root / inner_.size();
    // First within the root's process, so that its inner rank 0 has what it passes on.
    if (outer_->rank() == outer_root) inner_.broadcast(bytes, inner_root);
    if (inner_.rank() == 0) outer_->broadcast(bytes, outer_root);
    inner_.broadcast(bytes, 0);
  }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    std::vector<std::byte> mine(send.size() * static_cast<std::size_t>(inner_.size()));
    inner_.all_gather(send, mine);
    if (inner_.rank() == 0) outer_->all_gather(mine, receive);
    inner_.broadcast(receive, 0);
  }
  /// Returns null if the inner or the outer connector has none.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const {
    auto near = failure_channel_of(inner_);
    auto far = failure_channel_of(*outer_);
    if (near == nullptr || far == nullptr) return nullptr;
    return std::make_shared<ProductFailureChannel>(std::move(near), std::move(far));
  }

 private:
  Inner inner_;
  Outer* outer_;
};

}  // namespace distx::inline DISTX_ABI::detail
