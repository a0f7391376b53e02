// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/bucket/bucket.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Updates this rank's part of a bucket while its gradients are reduced: passed to the reduction, it takes the
/// gradients from all ranks' memory, and no average is stored.
template <MemorySpace Space>
class OnePassUpdate final : public OperandConsumer {
 public:
  /// Borrows both until the last reduction of the bucket is complete.
  void begin(const Bucket<Space>& bucket, const FragmentSteps<Space>& fragments) {
    bucket_ = &bucket;
    fragments_ = &fragments;
    consumed_.assign(bucket.buffers.size(), false);
  }
  /// Takes the gradients of one of the bucket's buffers next.
  [[nodiscard]] OperandConsumer* of(std::size_t buffer) noexcept {
    buffer_ = buffer;
    first_ = 0;
    for (std::size_t i = 0; i < buffer; ++i) first_ += bucket_->buffers[i].updated.size();
    return this;
  }
  void consume(std::size_t begin, std::span<const void* const> operands, std::size_t count) override {
    consumed_[buffer_] = true;
    const auto& buffer = bucket_->buffers[buffer_];
    for (const auto& each : *fragments_) {
      if (each.index < first_ || each.index >= first_ + buffer.updated.size()) continue;
      const FragmentRange& range = buffer.updated[each.index - first_];
      const std::size_t at = range.at - buffer.begin;
      const std::size_t from = std::max(begin, at), to = std::min(begin + count, at + range.size);
      if (from >= to) continue;
      gradients_.clear();
      for (const void* const operand : operands)
        gradients_.push_back(static_cast<const std::byte*>(operand) + (from - begin) * buffer.layout.element_bytes);
      bucket_->update->update_by_operands(each, from - at, gradients_, to - from);
    }
  }
  /// Returns whether the gradients of a fragment were consumed; if not, the reduction has stored them.
  [[nodiscard]] bool consumed(std::size_t fragment) const noexcept {
    std::size_t end = 0;
    for (std::size_t i = 0; i < consumed_.size(); ++i)
      if (fragment < (end += bucket_->buffers[i].updated.size())) return consumed_[i];
    return false;
  }

 private:
  const Bucket<Space>* bucket_ = nullptr;
  const FragmentSteps<Space>* fragments_ = nullptr;
  std::size_t buffer_ = 0;
  std::size_t first_ = 0;         // of its fragments
  std::vector<bool> consumed_{};  // of each buffer
  std::vector<const void*> gradients_{};
};

}  // namespace distx::inline DISTX_ABI::detail
