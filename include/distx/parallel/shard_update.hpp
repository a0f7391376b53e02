// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/optim/fused_update.hpp"
#include "distx/parallel/held_memory.hpp"

namespace distx::detail {

/// What a shard's update is told of the parameter that a piece belongs to.
struct PieceOf {
  std::size_t state = 0;   ///< where the piece begins in the shard
  std::size_t offset = 0;  ///< where it begins in the parameter
  std::size_t size = 0;    ///< of the whole parameter, in elements
  std::size_t rows = 0;    ///< of a matrix; 0: a vector
};

/// An optimizer and its state for one bucket's shard, both types forgotten.
template <MemorySpace Space>
class ShardUpdate {
 public:
  virtual ~ShardUpdate() = default;
  /// Updates a piece of one parameter.
  virtual void update(typename Space::stream stream, const Step& step, Span<AnyElement, Space> weight,
                      Span<const AnyElement, Space> gradient, const PieceOf& piece) = 0;
};

template <MemorySpace Space, ElementwiseOptimizer Optimizer, FloatingElement T>
class ShardUpdateOf final : public ShardUpdate<Space> {
  using A = accumulator_t<T>;

 public:
  ShardUpdateOf(const Optimizer& optimizer, std::size_t elements, const std::shared_ptr<MemoryAccount>& account)
      : optimizer_(optimizer), elements_(elements) {
    for (auto& values : state_) values = hold_local<Space>(account, MemoryKind::optimizer, elements * sizeof(A));
  }
  void update(typename Space::stream stream, const Step& step, Span<AnyElement, Space> weight,
              Span<const AnyElement, Space> gradient, const PieceOf& piece) override {
    std::array<Span<A, Space>, Optimizer::states> state;
    for (std::size_t s = 0; s < state.size(); ++s)
      state[s] = Span<A, Space>(reinterpret_cast<A*>(state_[s]->span().data()), elements_)
                     .subspan(piece.state, weight.size());
    fused_update(stream, optimizer_, step, Span<T, Space>(static_cast<T*>(weight.data()), weight.size()),
                 Span<const T, Space>(static_cast<const T*>(gradient.data()), gradient.size()), state);
  }

 private:
  Optimizer optimizer_;
  std::size_t elements_;
  std::array<Held<Space>, Optimizer::states> state_;
};

/// @pre type is that of a FloatingElement
template <MemorySpace Space, ElementwiseOptimizer Optimizer>
std::unique_ptr<ShardUpdate<Space>> make_shard_update(const Optimizer& optimizer, ElementType type,
                                                      std::size_t elements,
                                                      const std::shared_ptr<MemoryAccount>& account) {
  const auto make = [&]<class T>(std::type_identity<T>) -> std::unique_ptr<ShardUpdate<Space>> {
    return std::make_unique<ShardUpdateOf<Space, Optimizer, T>>(optimizer, elements, account);
  };
  switch (type) {
    case ElementType::f64: return make(std::type_identity<double>{});
    case ElementType::bf16: return make(std::type_identity<bfloat16>{});
    case ElementType::f16: return make(std::type_identity<float16>{});
    default: return make(std::type_identity<float>{});
  }
}

}  // namespace distx::detail
