// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <ostream>

#include "distx/tensor/distribute.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

// As NumPy does: a tensor with more elements shows the first and the last indices of each long dimension.
inline constexpr std::size_t print_threshold = 1000, print_edge_items = 3;

template <class T>
void print_element(std::ostream& out, const T& x) {
  if constexpr (Element<T> && !std::floating_point<T> && !std::integral<T>)
    out << static_cast<float>(x);
  else if constexpr (sizeof(T) == 1)
    out << static_cast<int>(x);
  else
    out << x;
}
template <class T, std::size_t Rank>
void print_part(std::ostream& out, const TensorRef<const T, Rank>& x, std::size_t dim, std::size_t offset) {
  if (dim == Rank) {
    print_element(out, x.data()[offset]);
    return;
  }
  const std::size_t n = x.extent(dim);
  const bool summarized = x.values().size() > print_threshold && n > 2 * print_edge_items;
  out << '[';
  for (std::size_t i = 0; i < n; ++i) {
    if (i > 0) {
      out << ',';
      for (std::size_t line = dim + 1; line < Rank; ++line) out << '\n';
      out << std::string(dim + 1 < Rank ? dim + 1 : 1, ' ');
    }
    if (summarized && i == print_edge_items) {
      out << "...";
      i = n - print_edge_items - 1;
    } else {
      print_part(out, x, dim + 1, offset + i * x.stride(dim));
    }
  }
  out << ']';
}

template <class P>
std::string placement_to_string() {
  const std::string axis(axis_name<typename P::axis>());
  if constexpr (is_shard<P>)
    return "Shard<" + std::to_string(P::dim) + ", " + axis + ">";
  else
    return "Partial<" + axis + ">";
}
template <class... Ps>
std::string layout_to_string(Placements<Ps...>*) {
  std::string text;
  ((text += (text.empty() ? "" : ", ") + placement_to_string<Ps>()), ...);
  return text.empty() ? "replicated" : text;
}
inline std::string layout_to_string(PlaceholderLayout*) { return {}; }
template <class... Axes>
std::string mesh_to_string(const Mesh<Axes...>& mesh) {
  std::string text;
  ((text +=
    (text.empty() ? "" : " x ") + std::string(axis_name<Axes>()) + " " + std::to_string(mesh.template size<Axes>())),
   ...);
  return text;
}

}  // namespace detail

/// Writes the elements of a tensor of this process in nested brackets, and a line end.
///
/// Of a tensor with more than 1,000 elements, each dimension longer than 6 shows its first and last 3 indices with
/// `...` between them.
template <detail::WholeTensor X>
std::ostream& print(std::ostream& out, const X& x) {
  detail::print_part(out, detail::const_tensor_ref(x), 0, 0);
  return out << '\n';
}

/// Writes the element type, extents, layout and mesh of a distributed tensor on the root, then its elements as above.
///
/// Collective over the mesh; gathers the whole tensor in the root's memory and blocks the host. A Partial tensor does
/// not compile.
/// @throws InvalidArgument if `root` is not a rank of the mesh
template <DistributedTensor X>
void print(std::ostream& out, const X& x, int root = 0,
           std::source_location location = std::source_location::current()) {
  const auto whole = gather<Host>(x, root, location);
  if (x.mesh().rank() != root) return;
  out << name_of(element_type<detail::value_of<X>>) << ", " << detail::to_string(x.extents()) << ", "
      << detail::layout_to_string(static_cast<detail::layout_of<X>*>(nullptr)) << " on "
      << detail::mesh_to_string(x.mesh()) << '\n';
  print(out, whole);
}

}  // namespace distx::inline DISTX_ABI
