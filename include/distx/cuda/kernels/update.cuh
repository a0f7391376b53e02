// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <new>

#include "distx/cuda/detail/fused_update.hpp"
#include "distx/cuda/kernels/operations.cuh"

namespace distx {

namespace cuda::detail {

/// One element's update. If Low is not T, the T are the masters of weights of Low.
template <class Optimizer, class T, class Low, class Gradient>
struct UpdateBody {
  using A = accumulator_t<T>;
  distx::detail::coefficients_t<Optimizer, A> coefficients;
  A factor;

  template <class... S>
  __device__ void operator()(T& weight, const Gradient& gradient, S&... state) const
    requires std::same_as<T, Low>
  {
    update(weight, gradient, state...);
  }
  template <class... S>
  __device__ void operator()(T& master, const Gradient& gradient, Low& weight, S&... state) const
    requires(!std::same_as<T, Low>)
  {
    update(master, gradient, state...);
    weight = narrow<Low>(master);
  }

 private:
  template <class... S>
  __device__ void update(T& weight, const Gradient& gradient, S&... state) const {
    using Number = Rounded<A>;
    Number value = wide(weight);
    [&](auto... own) {
      Optimizer::update(coefficients, value, scaled(gradient), own...);
      ((state = own.number()), ...);
    }(Number(state)...);
    weight = narrow<T>(value.number());
  }
  /// The bits that the gradient has after `scale`, which rounds to the gradient's type; where there are masters it is
  /// scaled after its conversion.
  __device__ Rounded<A> scaled(const Gradient& gradient) const {
    const auto product = Rounded<A>(wide(gradient)) * factor;
    if constexpr (std::same_as<T, Low> && !std::same_as<T, A>)
      return factor == 1 ? Rounded<A>(wide(gradient)) : Rounded<A>(wide(narrow<Gradient>(product.number())));
    else
      return product;
  }
};

/// The arrays of one piece.
template <class Optimizer, class T, class Low, class Gradient>
struct PieceArrays {
  using A = accumulator_t<T>;
  distx::detail::coefficients_t<Optimizer, A> coefficients;
  T* weight;
  const Gradient* gradient;
  Low* low;
  std::array<A*, Optimizer::states> state;
  std::size_t count;
  unsigned shift;  ///< elements between a boundary of vectors and the arrays' begin
  bool alike;      ///< whether that is so of all of them
};

/// Sizes of the table of one launch, which is a parameter of the kernel: the small one is copied faster, and a
/// parameter has at most 4 KiB before CUDA 12.1.
inline constexpr std::size_t small_table_bytes = 4000;
inline constexpr std::size_t large_table_bytes = CUDART_VERSION >= 12010 ? 32000 : small_table_bytes;

/// The pieces of one launch.
template <class Optimizer, class T, class Low, class Gradient, std::size_t Bytes>
struct PieceTable {
  using Piece = PieceArrays<Optimizer, T, Low, Gradient>;
  static constexpr unsigned capacity =
      static_cast<unsigned>((Bytes - 40 - sizeof(Optimizer)) / (sizeof(Piece) + sizeof(unsigned)));

  Piece pieces[capacity];
  unsigned first_tile[capacity + 1];
  unsigned count = 0;
  double factor = 1;
  const double* factor_there = nullptr;
  const StepNumbers* numbers = nullptr;  ///< if not null, the step of all pieces
  const distx::detail::coefficients_t<Optimizer, accumulator_t<T>>* coefficients = nullptr;  ///< if not null, of each
  Optimizer optimizer;

  explicit PieceTable(const Optimizer& of) : optimizer(of) { first_tile[0] = 0; }
};

/// The optimizer's coefficients for a step in the GPU's memory, computed once in each block.
template <class Optimizer, class A>
__device__ const distx::detail::coefficients_t<Optimizer, A>& coefficients_in_block(const Optimizer& optimizer,
                                                                                    const StepNumbers* numbers) {
  using C = distx::detail::coefficients_t<Optimizer, A>;
  static_assert(sizeof(C) <= 256 && alignof(C) <= 16,
                "distx::cuda::register_optimizer: coefficients have at most 256 bytes");
  void* const memory = block_memory();
  if (threadIdx.x == 0) {
    Step step;
    step.learning_rate = numbers->learning_rate;
    step.number = numbers->number;
    if (numbers->sets_decay) step.weight_decay = numbers->weight_decay;
    ::new (memory) C(optimizer.template coefficients<A>(step));
  }
  __syncthreads();
  return *static_cast<const C*>(memory);
}

/// Updates one tile of a piece.
template <class Optimizer, class T, class Low, class Gradient, std::size_t... I>
__device__ void update_tile(const UpdateBody<Optimizer, T, Low, Gradient>& body,
                            const PieceArrays<Optimizer, T, Low, Gradient>& piece, std::size_t tile,
                            std::index_sequence<I...>) {
  using A = accumulator_t<T>;
  constexpr int width = vector_width<InOut<T>, InOut<A>>;
  const auto with = [&](auto... arrays) {
    if (piece.alike)
      tile_of<width, vectors_in_flight>(body, tile, piece.count, piece.shift, arrays...);
    else
      tile_of<1, width * vectors_in_flight>(body, tile, piece.count, 0, arrays...);
  };
  if constexpr (std::same_as<T, Low>)
    with(InOut<T>{piece.weight}, In<Gradient>{piece.gradient}, InOut<A>{piece.state[I]}...);
  else
    with(InOut<T>{piece.weight}, In<Gradient>{piece.gradient}, Out<Low>{piece.low}, InOut<A>{piece.state[I]}...);
}

/// Returns the piece that has a tile of the launch.
template <class Table>
__device__ unsigned piece_of(const Table& table, unsigned tile) {
  unsigned piece = 0, end = table.count;
  while (end - piece > 1) {
    const unsigned middle = (piece + end) / 2;
    if (table.first_tile[middle] <= tile)
      piece = middle;
    else
      end = middle;
  }
  return piece;
}

/// @tparam NumbersThere whether the step's numbers are in the GPU's memory
template <bool NumbersThere, class Optimizer, class T, class Low, class Gradient, std::size_t Bytes>
__global__ void __launch_bounds__(block_threads, NumbersThere ? 3 : 4)
    update_kernel(const __grid_constant__ PieceTable<Optimizer, T, Low, Gradient, Bytes> table) {
  using A = accumulator_t<T>;
  const auto factor = static_cast<A>(table.factor_there != nullptr ? *table.factor_there : table.factor);
  if (factor != factor) return;  // the step is skipped
  const auto update = [&](const distx::detail::coefficients_t<Optimizer, A>& coefficients, unsigned piece,
                          std::size_t tile) {
    update_tile(UpdateBody<Optimizer, T, Low, Gradient>{coefficients, factor}, table.pieces[piece], tile,
                std::make_index_sequence<Optimizer::states>{});
  };
  if constexpr (NumbersThere) {
    const auto& coefficients = coefficients_in_block<Optimizer, A>(table.optimizer, table.numbers);
    for (unsigned tile = blockIdx.x; tile < table.first_tile[1]; tile += gridDim.x) update(coefficients, 0, tile);
  } else {
    for (unsigned tile = blockIdx.x; tile < table.first_tile[table.count]; tile += gridDim.x) {
      const unsigned piece = piece_of(table, tile);
      update(table.pieces[piece].coefficients, piece, tile - table.first_tile[piece]);
    }
  }
}

/// The same with coefficients in the GPU's memory, which take registers: with 4 blocks per multiprocessor some spill.
template <class Optimizer, class T, class Low, class Gradient, std::size_t Bytes>
__global__ void __launch_bounds__(block_threads, std::same_as<T, double> ? 2 : 3)
    captured_update_kernel(const __grid_constant__ PieceTable<Optimizer, T, Low, Gradient, Bytes> table) {
  using A = accumulator_t<T>;
  const auto factor = static_cast<A>(table.factor_there != nullptr ? *table.factor_there : table.factor);
  if (factor != factor) return;
  for (unsigned tile = blockIdx.x; tile < table.first_tile[table.count]; tile += gridDim.x) {
    const unsigned piece = piece_of(table, tile);
    update_tile(UpdateBody<Optimizer, T, Low, Gradient>{table.coefficients[piece], factor}, table.pieces[piece],
                tile - table.first_tile[piece], std::make_index_sequence<Optimizer::states>{});
  }
}

/// Whether the optimizer's update takes other numbers than float and double.
template <class Optimizer, class A, std::size_t... I>
constexpr bool takes_rounded(std::index_sequence<I...>) {
  using V = Rounded<A>;
  return requires(const distx::detail::coefficients_t<Optimizer, A>& c, V& value, std::array<V, sizeof...(I)>& state) {
    Optimizer::update(c, value, V(value), state[I]...);
  };
}

/// Enqueues pieces by tables of that many bytes.
template <std::size_t Bytes, class Optimizer, class T, class Low, class Gradient>
void enqueue_tables(CudaStreamRef stream, const Optimizer& optimizer,
                    std::span<const CudaPiece<Optimizer, T, Low, Gradient>> pieces, const GradientFactor& factor,
                    const StepThere& there) {
  using A = accumulator_t<T>;
  constexpr int width = vector_width<InOut<T>, InOut<A>>;
  constexpr std::size_t tile = std::size_t{width} * vectors_in_flight * block_threads;
  PieceTable<Optimizer, T, Low, Gradient, Bytes> table(optimizer);
  table.factor = factor.value;
  table.factor_there = factor.there;
  table.numbers = there.numbers;
  table.coefficients = static_cast<decltype(table.coefficients)>(there.coefficients);
  const auto flush = [&] {
    if (table.count == 0) return;
    const unsigned blocks = blocks_for(table.first_tile[table.count], 32);
    if constexpr (Bytes == small_table_bytes && std::same_as<T, Low>) {
      if (there.numbers != nullptr)
        enqueue<&update_kernel<true, Optimizer, T, Low, Gradient, Bytes>>(stream, blocks, block_threads, table);
    }
    if constexpr (Bytes == large_table_bytes) {
      if (there.coefficients != nullptr)
        enqueue<&captured_update_kernel<Optimizer, T, Low, Gradient, Bytes>>(stream, blocks, block_threads, table);
    }
    if (there.numbers == nullptr && there.coefficients == nullptr)
      enqueue<&update_kernel<false, Optimizer, T, Low, Gradient, Bytes>>(stream, blocks, block_threads, table);
    if (table.coefficients != nullptr) table.coefficients += table.count;
    table.count = 0;
  };
  for (const auto& piece : pieces) {
    if (piece.weight.empty()) continue;
    auto& arrays = table.pieces[table.count];
    if (there.numbers == nullptr && there.coefficients == nullptr)
      arrays.coefficients = optimizer.template coefficients<A>(piece.step);
    arrays.weight = piece.weight.data();
    arrays.gradient = piece.gradient.data();
    arrays.low = piece.low.data();
    arrays.count = piece.weight.size();
    arrays.shift = shift_of<width>(InOut<T>{arrays.weight});
    arrays.alike = shift_of<width>(In<Gradient>{arrays.gradient}) == arrays.shift &&
                   (std::same_as<T, Low> || shift_of<width>(Out<Low>{arrays.low}) == arrays.shift);
    for (std::size_t s = 0; s < piece.state.size(); ++s) {
      arrays.state[s] = piece.state[s].data();
      arrays.alike = arrays.alike && shift_of<width>(InOut<A>{arrays.state[s]}) == arrays.shift;
    }
    if (!arrays.alike) arrays.shift = 0;
    const std::size_t tiles = (arrays.count + arrays.shift + tile - 1) / tile;
    table.first_tile[table.count + 1] = table.first_tile[table.count] + static_cast<unsigned>(tiles);
    if (++table.count == table.capacity || there.numbers != nullptr) flush();
  }
  flush();
}

template <class Optimizer, class T, class Low, class Gradient>
void enqueue_update(CudaStreamRef stream, const Optimizer& optimizer,
                    std::span<const CudaPiece<Optimizer, T, Low, Gradient>> pieces, const GradientFactor& factor,
                    const StepThere& there) {
  using A = accumulator_t<T>;
  static_assert(
      std::is_trivially_copyable_v<Optimizer> &&
          std::is_trivially_copyable_v<distx::detail::coefficients_t<Optimizer, A>>,
      "distx::cuda::register_optimizer: a GPU receives the optimizer and its coefficients as bytes, so they must "
      "be trivially copyable");
  constexpr bool takes = takes_rounded<Optimizer, A>(std::make_index_sequence<Optimizer::states>{});
  static_assert(takes,
                "distx::cuda::register_optimizer: a GPU updates numbers each of whose operations rounds by itself: "
                "let weight, gradient and state be of a separate type V, as in template <class T, class V> "
                "update(const Coefficients<T>&, V& weight, V gradient, V& state)");
  if constexpr (takes) {
    constexpr std::size_t few = PieceTable<Optimizer, T, Low, Gradient, small_table_bytes>::capacity;
    if (there.numbers != nullptr || (there.coefficients == nullptr && pieces.size() <= few))
      enqueue_tables<small_table_bytes>(stream, optimizer, pieces, factor, there);
    else
      enqueue_tables<large_table_bytes>(stream, optimizer, pieces, factor, there);
  }
}

template <class Optimizer, class T, class Low, class Gradient = Low>
void register_update() noexcept {
  update_slot<Optimizer, T, Low, Gradient> = &enqueue_update<Optimizer, T, Low, Gradient>;
}

}  // namespace cuda::detail

namespace cuda {

/// Compiles an optimizer's GPU kernels for weights of float, double, bfloat16 and float16, and for bfloat16 and float16
/// weights with float masters. Call it once for each optimizer, at namespace scope of a file that nvcc compiles:
/// `const bool registered = distx::cuda::register_optimizer<MyOptimizer>();`
/// @return true
template <ElementwiseOptimizer Optimizer>
bool register_optimizer() noexcept {
  cuda::detail::register_update<Optimizer, float, float>();
  cuda::detail::register_update<Optimizer, double, double>();
  cuda::detail::register_update<Optimizer, bfloat16, bfloat16>();
  cuda::detail::register_update<Optimizer, float16, float16>();
  cuda::detail::register_update<Optimizer, float, bfloat16>();
  cuda::detail::register_update<Optimizer, float, bfloat16, float16>();
  cuda::detail::register_update<Optimizer, float, bfloat16, float>();
  cuda::detail::register_update<Optimizer, float, float16>();
  cuda::detail::register_update<Optimizer, float, float16, bfloat16>();
  cuda::detail::register_update<Optimizer, float, float16, float>();
  return true;
}

}  // namespace cuda

}  // namespace distx
