// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/parallel/detail/base/tensor_runs.hpp"
#include "distx/parallel/detail/engine/engine_interface.hpp"

namespace distx::inline DISTX_ABI::detail {

/// MeshPart::pass_whole: the ranks add their parts of a parameter, each in an array of zeros, as integers.
template <MemorySpace Space>
void pass_whole(MeshPart<Space>& mesh, const std::function<Span<const AnyElement, Space>()>& part,
                const std::function<void(const std::string&, Span<const AnyElement, Space>)>& f,
                typename Space::stream after, const std::source_location& location) {
  for (const auto& [name, type, empty, of, counted, sharded, trained, rows, arrays] : mesh.parameters) {
    Span<const AnyElement, Space> values(nullptr, 0, type, size_of(type));
    if (!empty) values = part();
    if (!sharded) {
      f(name, values);
      continue;
    }
    const std::size_t width = size_of(type), size = of.size();
    const auto sum_of_parts = buffer_on<std::uint32_t, Space>(after, (size * width + 3) / 4);
    const Span<std::byte, Space> whole(reinterpret_cast<std::byte*>(sum_of_parts.data()), size * width);
    const Span<const std::byte, Space> own(static_cast<const std::byte*>(values.data()), values.size() * width);
    if (of.first && !empty)
      for_each_run(of, [&](std::size_t to, std::size_t from, std::size_t count) {
        copy(after, whole.subspan(to * width, count * width), own.subspan(from * width, count * width));
      });
    make_in_order(*mesh.across,
                  AllReduce<std::uint32_t, Sum, Space>{sum_of_parts.span(), sum_of_parts.span(), sum, location}, after);
    f(name, {whole.data(), size, type, width});
  }
}

}  // namespace distx::inline DISTX_ABI::detail
