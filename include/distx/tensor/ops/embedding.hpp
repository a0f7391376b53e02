// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/ops/apply.hpp"
#include "distx/tensor/ops/rules.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The index of an id's row among this rank's rows of a table, or nothing if another rank holds it.
/// @throws DataError if the id is out of range
template <class Id>
std::optional<std::size_t> row_of(Id id, std::size_t first, std::size_t rows, std::size_t all,
                                  const ErrorContext& context) {
  if (std::cmp_less(id, 0) || std::cmp_greater_equal(id, all))
    throw DataError("token id " + std::to_string(id) + " is out of range for a vocabulary of size " +
                        std::to_string(all) + ": ids must be in [0, " + std::to_string(all) + ")",
                    context);
  const auto at = static_cast<std::size_t>(id);
  return at >= first && at - first < rows ? std::optional(at - first) : std::nullopt;
}

/// Copies rows of the table, and zeros for ids whose rows another rank holds, on the host's memory.
template <class Id, class T>
void take_rows(HostStream, Span<const Id> ids, MatrixRef<const T> table, std::size_t first, std::size_t all,
               MatrixRef<T> out, const ErrorContext& context) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto row = row_of(ids[i], first, table.rows, all, context);
    if (row)
      std::copy_n(table.at(*row, 0), table.columns, out.at(i, 0));
    else
      std::fill_n(out.at(i, 0), table.columns, T{});
  }
}
/// Adds each gradient to its id's row, in the order of the ids.
template <class Id, class T>
void add_to_rows_of(HostStream stream, Span<const Id> ids, MatrixRef<const T> gradient, std::size_t first,
                    std::size_t all, MatrixRef<T> out, const ErrorContext& context) {
  fill(stream, out.values, T{});
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (const auto row = row_of(ids[i], first, out.rows, all, context))
      for (std::size_t j = 0; j < out.columns; ++j) *out.at(*row, j) += *gradient.at(i, j);
}

template <class Missing>
consteval void check_embedding() {
  constexpr AxisPlacement ids = Missing::operands[0];
  if constexpr (ids.is_partial())
    static_assert(is_supported<Missing>, "distx: embedding: the ids are Partial; redistribute them first");
  else if constexpr (ids.is_shard())
    static_assert(is_supported<Missing>,
                  "distx: embedding: one axis shards the ids, and the table is sharded or Partial there; redistribute "
                  "the ids or the table to Replicated");
  else
    static_assert(is_supported<Missing>,
                  "distx: embedding: the table is Partial with an op other than Sum; redistribute it first");
}
template <class Missing>
consteval void check_embedding_backward() {
  constexpr bool shards = Missing::operands[0].is_shard(0);
  static_assert(supported_unless<Missing, shards>,
                "distx: embedding_backward: the table's vocabulary is sharded, so each of its ranks needs all ids and "
                "gradients; redistribute the ids and the gradient to Replicated there");
  static_assert(supported_unless<Missing, !shards>,
                "distx: embedding_backward: the gradient's layout differs from that of embedding's result; "
                "redistribute it to that layout");
}

}  // namespace detail

namespace ops {

/// Returns the rows of table (v, n) that ids (…) select, (…, n), with the table's element type. Local, stream-ordered.
///
/// Ids are integers in [0, v). On each axis one of ids and table is replicated: sharded ids shard the result; a table
/// that is sharded in its vocabulary (dimension 0) makes the result Partial, one that is sharded in n (dimension 1)
/// shards the last dimension of the result.
/// @throws DataError for an id outside [0, v); in GPU memory, where the check would block the host, its row is NaNs, or
///                   integers with all bits set
/// @throws InvalidArgument if the operands are on different meshes
template <DistributedTensor Ids, DistributedTensor Table>
[[nodiscard]] auto embedding(const Ids& ids, const Table& table,
                             std::source_location location = std::source_location::current()) {
  static_assert(std::integral<detail::value_of<Ids>>, "distx: embedding: the ids are not integers");
  using Rule = rules::Embedding;
  detail::check_embedding<detail::missing_case<Rule, Ids, Table>>();
  return detail::applied<Rule>(
      {"embedding", location},
      [&](auto stream, auto selected, auto rows, auto out) {
        using detail::take_rows;
        take_rows(stream, selected.values(), detail::as_rows(rows), detail::box_of(table).begin[0], table.extents()[0],
                  detail::as_rows(out), detail::context_of(table.mesh(), "embedding", location));
      },
      ids, table);
}
/// Returns the gradient of table (v, n) in `embedding`, from ids (…) and the gradient of the result (…, n). Local,
/// stream-ordered; in GPU memory for float and double.
///
/// Of `table` only the extents and the layout matter. The result is sharded as the table; where the ids are sharded it
/// is Partial. Gradients of equal ids are added in the order of the ids.
/// @throws DataError for an id outside [0, v); in GPU memory its gradient is ignored
/// @throws InvalidArgument if the extents do not match, or the operands are on different meshes
template <DistributedTensor Table, DistributedTensor Ids, DistributedTensor G>
[[nodiscard]] auto embedding_backward(const Table& table, const Ids& ids, const G& gradient,
                                      std::source_location location = std::source_location::current()) {
  static_assert(std::integral<detail::value_of<Ids>>, "distx: embedding_backward: the ids are not integers");
  using Rule = rules::EmbeddingBackward;
  detail::check_embedding_backward<detail::missing_case<Rule, Table, Ids, G>>();
  return detail::applied<Rule>(
      {"embedding_backward", location},
      [&](auto stream, auto, auto selected, auto grads, auto out) {
        using detail::add_to_rows_of;
        add_to_rows_of(stream, selected.values(), detail::as_rows(grads), detail::box_of(table).begin[0],
                       table.extents()[0], detail::as_rows(out),
                       detail::context_of(table.mesh(), "embedding_backward", location));
      },
      table, ids, gradient);
}

}  // namespace ops

}  // namespace distx::inline DISTX_ABI
