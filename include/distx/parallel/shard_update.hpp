// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/memory/buffer.hpp"
#include "distx/optim/fused_update.hpp"

namespace distx::detail {

/// An optimizer and its state for one bucket's shard, both types forgotten.
template <MemorySpace Space>
class ShardUpdate {
 public:
  virtual ~ShardUpdate() = default;
  /// Updates a piece of the shard that begins `offset` elements into it.
  virtual void update(typename Space::stream stream, const Step& step, Span<AnyElement, Space> weight,
                      Span<const AnyElement, Space> gradient, std::size_t offset) = 0;
};

template <MemorySpace Space, ElementwiseOptimizer Optimizer, FloatingElement T>
class ShardUpdateOf final : public ShardUpdate<Space> {
 public:
  ShardUpdateOf(const Optimizer& optimizer, std::size_t elements) : optimizer_(optimizer) {
    for (auto& values : state_) values = Buffer<accumulator_t<T>, Space>(elements);
  }
  void update(typename Space::stream stream, const Step& step, Span<AnyElement, Space> weight,
              Span<const AnyElement, Space> gradient, std::size_t offset) override {
    std::array<Span<accumulator_t<T>, Space>, Optimizer::states> state;
    for (std::size_t s = 0; s < state.size(); ++s) state[s] = state_[s].span().subspan(offset, weight.size());
    fused_update(stream, optimizer_, step, Span<T, Space>(static_cast<T*>(weight.data()), weight.size()),
                 Span<const T, Space>(static_cast<const T*>(gradient.data()), gradient.size()), state);
  }

 private:
  Optimizer optimizer_;
  std::array<Buffer<accumulator_t<T>, Space>, Optimizer::states> state_;
};

/// @pre type is that of a FloatingElement
template <MemorySpace Space, ElementwiseOptimizer Optimizer>
std::unique_ptr<ShardUpdate<Space>> make_shard_update(const Optimizer& optimizer, ElementType type,
                                                      std::size_t elements) {
  switch (type) {
    case ElementType::f64: return std::make_unique<ShardUpdateOf<Space, Optimizer, double>>(optimizer, elements);
    case ElementType::bf16: return std::make_unique<ShardUpdateOf<Space, Optimizer, bfloat16>>(optimizer, elements);
    case ElementType::f16: return std::make_unique<ShardUpdateOf<Space, Optimizer, float16>>(optimizer, elements);
    default: return std::make_unique<ShardUpdateOf<Space, Optimizer, float>>(optimizer, elements);
  }
}

}  // namespace distx::detail
