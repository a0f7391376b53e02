// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/optim/fused_update.hpp"
#include "distx/parallel/held_memory.hpp"
#include "distx/parallel/typed.hpp"

namespace distx::detail {

/// What a shard's update is told of the parameter that a piece belongs to.
struct PieceOf {
  std::size_t state = 0;   ///< where the piece begins in the shard
  std::size_t offset = 0;  ///< where it begins in the parameter
  std::size_t size = 0;    ///< of the whole parameter, in elements
  std::size_t rows = 0;    ///< of a matrix; 0: a vector
  double scale = 1;        ///< by which short gradients are multiplied; others have been
};

/// An optimizer and its state for one bucket's shard, both types forgotten.
template <MemorySpace Space>
class ShardUpdate {
 public:
  virtual ~ShardUpdate() = default;
  /// Updates a piece of one parameter.
  virtual void update(typename Space::stream stream, const Step& step, Span<AnyElement, Space> weight,
                      Span<AnyElement, Space> gradient, const PieceOf& piece) = 0;
  /// The values that a piece of the shard begins with.
  virtual void adopt(typename Space::stream, Span<AnyElement, Space>, std::size_t) {}
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
              Span<AnyElement, Space> gradient, const PieceOf& piece) override {
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

/// Updates master weights in float, from gradients of any type, and casts them to the weights.
template <MemorySpace Space, ElementwiseOptimizer Optimizer>
class MasterUpdate final : public ShardUpdate<Space> {
 public:
  MasterUpdate(const Optimizer& optimizer, std::size_t elements, const std::shared_ptr<MemoryAccount>& account)
      : update_(optimizer, elements, account),
        elements_(elements),
        master_(hold_local<Space>(account, MemoryKind::optimizer, elements * sizeof(float))),
        scratch_(hold_local<Space>(account, MemoryKind::in_flight, std::min(elements, block) * sizeof(float))) {}

  void update(typename Space::stream stream, const Step& step, Span<AnyElement, Space> weight,
              Span<AnyElement, Space> gradient, const PieceOf& piece) override {
    for (std::size_t begin = 0; begin < weight.size(); begin += block) {
      const std::size_t size = std::min(block, weight.size() - begin);
      const Span<float, Space> values = floats(*scratch_, block).first(size);
      const Span<float, Space> master = floats(*master_, elements_).subspan(piece.state + begin, size);
      cast_to<Space>(stream, values, gradient.subspan(begin, size));
      if (piece.scale != 1) scale(stream, values, piece.scale);
      PieceOf part = piece;
      part.state += begin;
      part.offset += begin;
      update_.update(stream, step, master, values, part);
      cast_to<Space>(stream, weight.subspan(begin, size), master);
    }
  }
  void adopt(typename Space::stream stream, Span<AnyElement, Space> weight, std::size_t state) override {
    cast_to<Space>(stream, floats(*master_, elements_).subspan(state, weight.size()), weight);
  }

 private:
  static constexpr std::size_t block = 16384;
  static Span<float, Space> floats(const HeldMemory<Space>& memory, std::size_t size) noexcept {
    return {reinterpret_cast<float*>(memory.span().data()), size};
  }

  ShardUpdateOf<Space, Optimizer, float> update_;
  std::size_t elements_;
  Held<Space> master_;
  Held<Space> scratch_;
};

/// @pre type is that of a FloatingElement
template <MemorySpace Space, ElementwiseOptimizer Optimizer>
std::unique_ptr<ShardUpdate<Space>> make_shard_update(const Optimizer& optimizer, ElementType type,
                                                      bool master, std::size_t elements,
                                                      const std::shared_ptr<MemoryAccount>& account) {
  const auto make = [&]<class T>(std::type_identity<T>) -> std::unique_ptr<ShardUpdate<Space>> {
    return std::make_unique<ShardUpdateOf<Space, Optimizer, T>>(optimizer, elements, account);
  };
  if (master) return std::make_unique<MasterUpdate<Space, Optimizer>>(optimizer, elements, account);
  switch (type) {
    case ElementType::f64: return make(std::type_identity<double>{});
    case ElementType::bf16: return make(std::type_identity<bfloat16>{});
    case ElementType::f16: return make(std::type_identity<float16>{});
    default: return make(std::type_identity<float>{});
  }
}

}  // namespace distx::detail
