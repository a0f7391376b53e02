// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <new>

#include "distx/cuda/fused_update.hpp"
#include "distx/cuda/kernels/operations.cuh"
#include "distx/cuda/kernels/step.cuh"
#include "distx/optim/two_pass_optimizer.hpp"

namespace distx::inline DISTX_ABI {

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
  unsigned shift;  ///< elements between a boundary of vectors and the weights' begin
  bool alike;      ///< whether that is so of all arrays
};

/// Sizes of the table of one launch, which is a parameter of the kernel: the small one is copied faster, and a
/// parameter has at most 4 KiB before CUDA 12.1.
inline constexpr std::size_t small_table_bytes = 4000;
inline constexpr std::size_t large_table_bytes = CUDART_VERSION >= 12010 ? 32000 : small_table_bytes;

/// The pieces of one launch.
template <class Optimizer, class T, class Low, class Gradient, std::size_t Bytes>
struct PieceTable {
  using Piece = PieceArrays<Optimizer, T, Low, Gradient>;
  static constexpr unsigned capacity = static_cast<unsigned>((Bytes - 40) / (sizeof(Piece) + sizeof(unsigned)));

  Piece pieces[capacity];
  unsigned first_tile[capacity + 1];
  unsigned count = 0;
  double factor = 1;
  const double* factor_there = nullptr;
  /// If not null, the optimizer's coefficients of each piece in the GPU's memory, instead of the pieces' own.
  const distx::detail::coefficients_t<Optimizer, accumulator_t<T>>* coefficients = nullptr;

  PieceTable() { first_tile[0] = 0; }
};

/// Elements of each array that a thread has: vectors of the widest array have 16 bytes.
template <class Optimizer, class T>
inline constexpr int update_width =
    Optimizer::states == 0 ? vector_width<InOut<T>> : vector_width<InOut<T>, InOut<accumulator_t<T>>>;

/// Updates one tile of a piece.
template <class Optimizer, class T, class Low, class Gradient, std::size_t... I>
__device__ void update_tile(const UpdateBody<Optimizer, T, Low, Gradient>& body,
                            const PieceArrays<Optimizer, T, Low, Gradient>& piece, std::size_t tile,
                            std::index_sequence<I...>) {
  using A = accumulator_t<T>;
  constexpr int width = update_width<Optimizer, T>;
  const auto with = [&](auto... arrays) {
    if (piece.alike)
      tile_of<true, width>(body, tile, piece.count, piece.shift, arrays...);
    else
      tile_of<false, width>(body, tile, piece.count, piece.shift, arrays...);
  };
  if constexpr (std::same_as<T, Low>)
    with(InOut<T>{piece.weight}, In<Gradient>{piece.gradient}, InOut<A>{piece.state[I]}...);
  else
    with(InOut<T>{piece.weight}, In<Gradient>{piece.gradient}, Out<Low>{piece.low}, InOut<A>{piece.state[I]}...);
}

/// Blocks per multiprocessor: coefficients in the GPU's memory, and the first pass's direction of double, take
/// registers, with which some kernels would spill.
template <bool There, class Optimizer, class T>
inline constexpr int updating_blocks =
    (There ? 3 : 4) - (std::same_as<T, double> && (There || distx::detail::number_of_pass<Optimizer> == 1) ? 1 : 0);

/// @tparam There whether the optimizer's coefficients are in the GPU's memory
template <bool There, class Optimizer, class T, class Low, class Gradient, std::size_t Bytes>
__global__ void __launch_bounds__(block_threads, updating_blocks<There, Optimizer, T>)
    update_kernel(const __grid_constant__ PieceTable<Optimizer, T, Low, Gradient, Bytes> table) {
  using A = accumulator_t<T>;
  const auto factor = static_cast<A>(table.factor_there != nullptr ? *table.factor_there : table.factor);
  if (factor != factor) return;  // the step is skipped
  const unsigned piece = piece_of(table, blockIdx.x);
  const auto& arrays = table.pieces[piece];
  const auto& coefficients = There ? table.coefficients[piece] : arrays.coefficients;
  update_tile(UpdateBody<Optimizer, T, Low, Gradient>{coefficients, factor}, arrays,
              blockIdx.x - table.first_tile[piece], std::make_index_sequence<Optimizer::states>{});
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
template <bool There, std::size_t Bytes, class Optimizer, class T, class Low, class Gradient>
void enqueue_tables(CudaStreamRef stream, std::span<const CudaPiece<Optimizer, T, Low, Gradient>> pieces,
                    const GradientFactor& factor, const void* coefficients) {
  using A = accumulator_t<T>;
  constexpr int width = update_width<Optimizer, T>;
  constexpr std::size_t tile = tile_elements<width>;
  PieceTable<Optimizer, T, Low, Gradient, Bytes> table;
  table.factor = factor.value;
  table.factor_there = factor.there;
  table.coefficients = static_cast<decltype(table.coefficients)>(coefficients);
  const auto flush = [&] {
    if (table.count == 0) return;
    enqueue<&update_kernel<There, Optimizer, T, Low, Gradient, Bytes>>(stream, table.first_tile[table.count],
                                                                       block_threads, table);
    if (There) table.coefficients += table.count;
    table.count = 0;
  };
  for (const auto& piece : pieces) {
    if (piece.weight.empty()) continue;
    auto& arrays = table.pieces[table.count];
    if (!There) arrays.coefficients = piece.coefficients;
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
    const std::size_t tiles = (arrays.count + arrays.shift + tile - 1) / tile;
    table.first_tile[table.count + 1] = table.first_tile[table.count] + static_cast<unsigned>(tiles);
    if (++table.count == table.capacity) flush();
  }
  flush();
}

template <class Optimizer, class T, class Low, class Gradient>
void enqueue_update(CudaStreamRef stream, std::span<const CudaPiece<Optimizer, T, Low, Gradient>> pieces,
                    const GradientFactor& factor, const void* coefficients) {
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
    const auto by_tables = [&]<bool There, std::size_t Bytes>() {
      enqueue_tables<There, Bytes>(stream, pieces, factor, coefficients);
    };
    [[maybe_unused]] const bool few =
        pieces.size() <= PieceTable<Optimizer, T, Low, Gradient, small_table_bytes>::capacity;
    if constexpr (distx::detail::number_of_pass<Optimizer> != 0)
      by_tables.template operator()<false, large_table_bytes>();  // the host waits between the passes
    else if (coefficients == nullptr)
      few ? by_tables.template operator()<false, small_table_bytes>()
          : by_tables.template operator()<false, large_table_bytes>();
    else if (std::same_as<T, Low> && few)
      by_tables.template operator()<true, std::same_as<T, Low> ? small_table_bytes : large_table_bytes>();
    else
      by_tables.template operator()<true, large_table_bytes>();
  }
}

template <class Optimizer, class T, class Low, class Gradient = Low>
void register_update() noexcept {
  update_slot<Optimizer, T, Low, Gradient> = &enqueue_update<Optimizer, T, Low, Gradient>;
}

/// For weights without masters, and for bfloat16 and float16 weights with float masters.
template <class Optimizer>
void register_weights() noexcept {
  register_update<Optimizer, float, float>();
  register_update<Optimizer, double, double>();
  register_update<Optimizer, bfloat16, bfloat16>();
  register_update<Optimizer, float16, float16>();
  register_update<Optimizer, float, bfloat16>();
  register_update<Optimizer, float, float16>();
}
/// For gradients of another type than the weights that have masters.
template <class Optimizer>
void register_gradients() noexcept {
  register_update<Optimizer, float, bfloat16, float16>();
  register_update<Optimizer, float, bfloat16, float>();
  register_update<Optimizer, float, float16, bfloat16>();
  register_update<Optimizer, float, float16, float>();
}

}  // namespace cuda::detail

namespace cuda {

/// Compiles an optimizer's GPU kernels for weights of float, double, bfloat16 and float16, and for bfloat16 and float16
/// weights with float masters. Call it once for each optimizer other than SGD and AdamW, at namespace scope of a
/// file that nvcc compiles: `const bool registered = distx::cuda::register_optimizer<distx::LAMB>();`
/// @return true
template <ElementwiseOptimizer Optimizer>
bool register_optimizer() noexcept {
  cuda::detail::change_step_slot<Optimizer> = &cuda::detail::enqueue_change_step<Optimizer>;
  cuda::detail::register_weights<Optimizer>();
  cuda::detail::register_gradients<Optimizer>();
  return true;
}
/// Does the same for LAMB, Muon and other optimizers by norms or matrices.
template <class Optimizer>
  requires NormOptimizer<Optimizer> || MatrixOptimizer<Optimizer>
bool register_optimizer() noexcept {
  cuda::detail::register_weights<distx::detail::FirstPass<Optimizer>>();
  cuda::detail::register_gradients<distx::detail::FirstPass<Optimizer>>();
  cuda::detail::register_weights<distx::detail::SecondPass<Optimizer>>();
  return true;
}

}  // namespace cuda

}  // namespace distx::inline DISTX_ABI
