// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <ostream>

#include "distx/tensor/distribute.hpp"

namespace distx {

namespace detail {

template <class T, std::size_t Rank>
void print_part(std::ostream& out, const TensorRef<const T, Rank>& x, std::size_t dim, std::size_t& at) {
  if (dim == Rank) {
    if constexpr (Element<T> && !std::floating_point<T> && !std::integral<T>)
      out << static_cast<float>(x.data()[at++]);
    else if constexpr (sizeof(T) == 1)
      out << static_cast<int>(x.data()[at++]);
    else
      out << x.data()[at++];
    return;
  }
  out << '[';
  for (std::size_t i = 0; i < x.extent(dim); ++i) {
    if (i > 0) {
      out << ',';
      for (std::size_t line = dim + 1; line < Rank; ++line) out << '\n';
      out << std::string(dim + 1 < Rank ? dim + 1 : 1, ' ');
    }
    print_part(out, x, dim + 1, at);
  }
  out << ']';
}

template <class P>
std::string words_of_placement() {
  const std::string axis(axis_name<typename P::axis>());
  if constexpr (is_shard<P>)
    return "Shard<" + std::to_string(P::dim) + ", " + axis + ">";
  else
    return "Partial<" + axis + ">";
}
template <class... Ps>
std::string words_of_layout(Placements<Ps...>*) {
  std::string words;
  ((words += (words.empty() ? "" : ", ") + words_of_placement<Ps>()), ...);
  return words.empty() ? "replicated" : words;
}
template <class... Axes>
std::string words_of_mesh(const Mesh<Axes...>& mesh) {
  std::string words;
  ((words +=
    (words.empty() ? "" : " x ") + std::string(axis_name<Axes>()) + " " + std::to_string(mesh.template size<Axes>())),
   ...);
  return words;
}

}  // namespace detail

/// Writes the elements in nested brackets.
template <WholeTensor X>
std::ostream& print(std::ostream& out, const X& x) {
  std::size_t at = 0;
  detail::print_part(out, detail::const_tensor_ref(x), 0, at);
  return out << '\n';
}

/// Writes a tensor at the root: its type, where it lies, and its elements. Collective; it is gathered at the root.
template <DistributedTensor X>
void print(std::ostream& out, const X& x, int root = 0,
           std::source_location location = std::source_location::current()) {
  const auto whole = gather<Host>(x, root, location);
  if (x.mesh().rank() != root) return;
  out << name_of(element_type<value_of<X>>) << ", " << words_of(x.extents()) << ", "
      << detail::words_of_layout(static_cast<layout_of<X>*>(nullptr)) << " on " << detail::words_of_mesh(x.mesh())
      << '\n';
  print(out, whole);
}

}  // namespace distx
