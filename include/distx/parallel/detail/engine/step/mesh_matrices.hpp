// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cstring>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/in_order.hpp"
#include "distx/memory/detail/lines.hpp"
#include "distx/parallel/detail/base/tensor_runs.hpp"
#include "distx/parallel/detail/base/typed.hpp"
#include "distx/parallel/detail/memory/tracked_memory.hpp"
#include "distx/parallel/detail/optimizer/any_optimizer.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Transforms the directions of the matrices of a mesh, for an optimizer that needs them whole.
///
/// In each round every rank of the mesh receives one direction whole, transforms it, and sends it to all ranks. A
/// direction is reduced as integers, from each rank's part in an array of zeros, so that it has the bits of the parts.
template <MemorySpace Space>
class MeshMatrices {
  using stream = typename Space::stream;

 public:
  /// @param comm  all ranks of the mesh  @param parameters  of the mesh, which are borrowed
  MeshMatrices(AnyCommunicator<Space> comm, const std::vector<MeshParameter>& parameters,
               MatrixTransform<Space> matrices, const std::shared_ptr<MemoryAccount>& account)
      : comm_(std::move(comm)), parameters_(parameters), matrices_(std::move(matrices)) {
    std::size_t scratch = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& each = parameters[i];
      if (each.rows == 0 || !each.trained) continue;
      numbers_.push_back(i);
      words_ = std::max(words_, bytes_of(each) / 4 + 2);
      scratch = std::max(scratch, matrices_.scratch(shape_of(each)) * size_of(state_type(each.type)));
    }
    words_ = round_up_to_lines(4 * words_) / 4;
    if (words_ > 0)
      memory_ = allocate_tracked_local<Space>(account, observe::MemoryKind::in_flight, 8 * words_ + scratch);
  }

  /// Collective over the mesh.
  /// @param direct  direct(number) returns this rank's part of the direction of the mesh's parameter of that number, if
  ///   this rank is the one that sends it, else nothing
  /// @param apply  apply(number, part, factor) is called with the transformed part
  template <class Direct, class Apply>
  void update(stream after, const std::source_location& location, Direct&& direct, Apply&& apply) {
    const auto ranks = static_cast<std::size_t>(comm_.size()), rank = static_cast<std::size_t>(comm_.rank());
    for (std::size_t begin = 0; begin < numbers_.size(); begin += ranks) {
      const std::size_t count = std::min(ranks, numbers_.size() - begin);
      for (std::size_t root = 0; root < count; ++root) {
        const auto& each = parameters_[numbers_[begin + root]];
        const auto words = words_of(each, root == rank);
        std::memset(words.data(), 0, words.size_bytes());
        const Span<AnyElement, Space> part = direct(numbers_[begin + root]);
        if (!part.empty())
          for_each_run(each.part, [&](std::size_t to, std::size_t from, std::size_t n) {
            const std::size_t width = part.element_bytes();
            std::memcpy(bytes(words) + to * width, part.bytes() + from * width, n * width);
          });
        make_in_order(comm_, Reduce<std::uint32_t, Sum, Space>{words, words, sum, static_cast<int>(root), location},
                      after);
      }
      if (rank < count) {
        const auto& each = parameters_[numbers_[begin + rank]];
        const auto words = words_of(each, true);
        const auto scratch = memory_->span().subspan(8 * words_, memory_->span().size() - 8 * words_);
        const double factor =
            matrices_.transform(after, shape_of(each), elements(each, words, each.part.size()), scratch);
        std::memcpy(bytes(words) + bytes_of(each), &factor, sizeof(factor));
      }
      for (std::size_t root = 0; root < count; ++root) {
        const auto& each = parameters_[numbers_[begin + root]];
        const auto words = words_of(each, root == rank);
        make_in_order(comm_, Broadcast<std::uint32_t, Space>{words, static_cast<int>(root), location}, after);
        double factor = 0;
        std::memcpy(&factor, bytes(words) + bytes_of(each), sizeof(factor));
        std::size_t size = 0;  // of the part, which moves to the beginning
        for_each_run(each.part, [&](std::size_t to, std::size_t from, std::size_t n) {
          const std::size_t width = size_of(state_type(each.type));
          std::memmove(bytes(words) + from * width, bytes(words) + to * width, n * width);
          size = from + n;
        });
        apply(numbers_[begin + root], elements(each, words, size), factor);
      }
    }
  }

 private:
  [[nodiscard]] static MatrixShape shape_of(const MeshParameter& each) noexcept {
    return {each.rows, each.part.size() / each.rows};
  }
  [[nodiscard]] static std::size_t bytes_of(const MeshParameter& each) noexcept {
    return each.part.size() * size_of(state_type(each.type));
  }
  [[nodiscard]] static std::byte* bytes(Span<std::uint32_t, Space> words) noexcept {
    return reinterpret_cast<std::byte*>(words.data());
  }
  [[nodiscard]] static Span<AnyElement, Space> elements(const MeshParameter& each, Span<std::uint32_t, Space> words,
                                                        std::size_t count) noexcept {
    const ElementType type = state_type(each.type);
    return {words.data(), count, type, size_of(type)};
  }
  /// Returns memory for a direction and, in the last two words, its factor.
  [[nodiscard]] Span<std::uint32_t, Space> words_of(const MeshParameter& each, bool own) const noexcept {
    auto* const first = reinterpret_cast<std::uint32_t*>(memory_->span().data());
    return {first + (own ? words_ : 0), bytes_of(each) / 4 + 2};
  }

  AnyCommunicator<Space> comm_;
  const std::vector<MeshParameter>& parameters_;
  MatrixTransform<Space> matrices_;
  std::vector<std::size_t> numbers_{};  // of the matrices in the mesh's list
  std::size_t words_ = 0;               // of the largest
  TrackedMemory<Space> memory_{};       // two directions, and scratch memory
};

}  // namespace distx::inline DISTX_ABI::detail
