// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/checkpoint/detail/rectangles.hpp"
#include "distx/checkpoint/detail/safetensors_types.hpp"
#include "distx/memory/operations.hpp"
#include "distx/parallel/training_state.hpp"

namespace distx::inline DISTX_ABI::checkpoint::detail {

/// An array of a training's state as a file has it. Values without an element type become rows of bytes.
template <MemorySpace Space>
struct FileArray {
  explicit FileArray(const typename TrainingState<Space>::Array& array)
      : name(array.name),
        type(file_type_of(array.values.type())),
        shape(array.shape.begin(), array.shape.end()),
        part{{array.part_begin.begin(), array.part_begin.end()}, {array.part_shape.begin(), array.part_shape.end()}},
        memory(array.values.bytes(), array.values.size_bytes()) {
    const bool opaque = array.values.type() == ElementType::bytes;
    element_bytes = opaque ? 1 : array.values.element_bytes();
    const std::size_t factor = opaque ? array.values.element_bytes() : 1;
    if (opaque) {
      shape.push_back(factor);
      part.offsets.push_back(0);
      part.extents.push_back(factor);
    }
    begin = array.offset * factor;
    size = array.values.size() * factor;
    share_begin = begin + array.share_begin * factor;
    share_size = array.share_size * factor;
  }

  std::string name;
  std::string_view type;
  Shape shape;    ///< of the whole array
  ArrayBox part;  ///< of the whole array; the whole, except on a mesh that shards it
  std::size_t element_bytes = 1;
  std::uint64_t begin = 0;  ///< this rank holds elements [begin, begin + size) of the part
  std::uint64_t size = 0;
  std::uint64_t share_begin = 0;  ///< and saves [share_begin, share_begin + share_size) of the part
  std::uint64_t share_size = 0;
  Span<std::byte, Space> memory;  ///< of the elements that this rank holds

  /// Whether this rank saves the whole array's first element.
  [[nodiscard]] bool saves_first() const noexcept {
    return share_size > 0 && share_begin == 0 &&
           std::all_of(part.offsets.begin(), part.offsets.end(), [](auto offset) { return offset == 0; });
  }
  /// Returns the memory of elements [first, first + count) of the part.
  [[nodiscard]] Span<std::byte, Space> bytes_at(std::uint64_t first, std::uint64_t count) const noexcept {
    return memory.subspan(static_cast<std::size_t>(first - begin) * element_bytes,
                          static_cast<std::size_t>(count) * element_bytes);
  }
};

template <MemorySpace Space>
[[nodiscard]] std::vector<FileArray<Space>> file_arrays(const TrainingState<Space>& state) {
  std::vector<FileArray<Space>> arrays;
  for (const auto& array : state.arrays)
    if (elements_of(array.shape) != 0) arrays.emplace_back(array);
  return arrays;
}

}  // namespace distx::inline DISTX_ABI::checkpoint::detail
