// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx {

namespace detail {

/// Where in this rank's rows of a table an id is; nothing if it is in another rank's.
/// @throws MismatchError if it is in none's
template <class Id>
std::optional<std::size_t> row_of(Id id, std::size_t first, std::size_t rows, std::size_t all,
                                  std::string_view operation) {
  if (std::cmp_less(id, 0) || std::cmp_greater_equal(id, all))
    throw MismatchError("there is an id " + std::to_string(id) + ", and the vocabulary has " + std::to_string(all),
                        {.operation = operation});
  const auto at = static_cast<std::size_t>(id);
  return at >= first && at - first < rows ? std::optional(at - first) : std::nullopt;
}

/// Copies rows of the table, and zeros for ids whose rows are elsewhere: an operation of the host's memory.
template <class Id, class T>
void take_rows(HostStream, Span<const Id> ids, MatrixRef<const T> table, std::size_t first, std::size_t all,
               MatrixRef<T> out) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto row = row_of(ids[i], first, table.rows, all, Embedding::name);
    if (row)
      std::copy_n(table.at(*row, 0), table.columns, out.at(i, 0));
    else
      std::fill_n(out.at(i, 0), table.columns, T{});
  }
}
/// Adds each gradient to its id's row, the first id first.
template <class Id, class T>
void add_to_rows_of(HostStream stream, Span<const Id> ids, MatrixRef<const T> gradient, std::size_t first,
                    std::size_t all, MatrixRef<T> out) {
  fill(stream, out.values, T{});
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (const auto row = row_of(ids[i], first, out.rows, all, EmbeddingBackward::name))
      for (std::size_t j = 0; j < out.columns; ++j) *out.at(*row, j) += *gradient.at(i, j);
}

template <class Ids, class Table>
void refuse_embedding() {
  using Missing = missing_case<Embedding, Ids, Table>;
  constexpr AxisPlace ids = Missing::operands[0], table = Missing::operands[1];
  if constexpr (!on_one_mesh<Ids, Table>)
    static_assert(on_one_mesh<Ids, Table>, "distx: embedding: the operands lie on meshes of two types");
  else if constexpr (ids.is_partial())
    static_assert(is_ruled<Missing>, "distx: embedding: the ids are Partial: redistribute them first");
  else if constexpr (ids.is_shard())
    static_assert(is_ruled<Missing>,
                  "distx: embedding: one axis shards the ids, and the table is sharded or Partial there: redistribute "
                  "the ids or the table to Replicated");
  else
    static_assert(is_ruled<Missing>,
                  "distx: embedding: the table is Partial with another op than Sum: redistribute it first");
}
template <class Table, class Ids, class G>
void refuse_embedding_backward() {
  using Missing = missing_case<EmbeddingBackward, Table, Ids, G>;
  constexpr AxisPlace table = Missing::operands[0];
  if constexpr (!on_one_mesh<Table, Ids, G>)
    static_assert(on_one_mesh<Table, Ids, G>, "distx: embedding_backward: the operands lie on meshes of two types");
  else if constexpr (table.is_shard(0))
    static_assert(is_ruled<Missing>,
                  "distx: embedding_backward: the table's vocabulary is sharded, so each of its ranks needs all ids "
                  "and gradients: redistribute the ids and the gradient to Replicated there");
  else
    static_assert(is_ruled<Missing>,
                  "distx: embedding_backward: the gradient does not lie as the result of embedding: redistribute it "
                  "to that layout");
}

}  // namespace detail

/// The rows of a table that the ids name. Where an axis shards the vocabulary, the result is Partial over it.
/// @throws MismatchError for an id that the vocabulary has not
template <class Ids, class Table>
  requires Applicable<Embedding, Ids, Table>
[[nodiscard]] auto embedding(const Ids& ids, const Table& table) {
  static_assert(std::integral<value_of<Ids>>, "distx: embedding: the ids are no integers");
  return apply<Embedding>(ids, table, [&](auto names, auto rows, auto out) {
    detail::take_rows(typename Table::space::stream{}, names.values(), detail::as_rows(rows),
                      detail::box_of(table).begin[0], table.extents()[0], detail::as_rows(out));
  });
}
/// The gradient of the table, of which only the layout and the extents matter, from that of the result.
template <class Table, class Ids, class G>
  requires Applicable<EmbeddingBackward, Table, Ids, G>
[[nodiscard]] auto embedding_backward(const Table& table, const Ids& ids, const G& gradient) {
  static_assert(std::integral<value_of<Ids>>, "distx: embedding: the ids are no integers");
  return apply<EmbeddingBackward>(table, ids, gradient, [&](auto, auto names, auto slopes, auto out) {
    detail::add_to_rows_of(typename Table::space::stream{}, names.values(), detail::as_rows(slopes),
                           detail::box_of(table).begin[0], table.extents()[0], detail::as_rows(out));
  });
}

template <class Ids, class Table>
  requires Operands<Ids, Table>
auto embedding(const Ids&, const Table&) -> detail::refused<Table, rank_of<Ids> + 1> {
  detail::refuse_embedding<Ids, Table>();
  return detail::never<detail::refused<Table, rank_of<Ids> + 1>>();
}
template <class Table, class Ids, class G>
  requires Operands<Table, Ids, G>
auto embedding_backward(const Table&, const Ids&, const G&) -> detail::refused<Table> {
  detail::refuse_embedding_backward<Table, Ids, G>();
  return detail::never<detail::refused<Table>>();
}

}  // namespace distx
