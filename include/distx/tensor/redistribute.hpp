// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/redistribution.hpp"
#include "distx/tensor/detail/relayout.hpp"
#include "distx/tensor/dist_tensor.hpp"

namespace distx::inline DISTX_ABI {

namespace detail {

/// The redistribution of `x` into the memory of `out`.
template <class X, class Out>
[[nodiscard]] auto redistribution(const X& x, Out& out, typename X::space::stream stream,
                                  const std::source_location& location) {
  using Space = typename X::space;
  const auto ops = PartialOps<layout_of<X>, mesh_of<X>, value_of<X>>::all();
  return std::make_unique<Redistribution<Space>>(
      in_space<Space>(state_of(x.mesh())),
      relayout<layout_of<X>, layout_of<Out>, mesh_of<X>>(shape_of(x.mesh()), x.extents(), ops), ops,
      Span<const value_of<X>, Space>(x.local()), Span<value_of<X>, Space>(out.local()), stream, location);
}

}  // namespace detail

/// A tensor whose redistribution is in progress, returned by `start_redistribute`. Move-only.
///
/// Borrows the source tensor until `wait`, one of whose overloads is called once. The destructor waits, as that of
/// every Pending.
template <class Result>
class PendingTensor {
  using Space = typename Result::space;

 public:
  PendingTensor(Result result, std::unique_ptr<detail::Redistribution<Space>> work, Pending<Space> pending)
      : work_(std::move(work)), result_(std::move(result)), pending_(std::move(pending)) {}
  PendingTensor(PendingTensor&&) noexcept = default;
  PendingTensor& operator=(PendingTensor&&) = delete;  // a redistribution in progress would lose its memory

  /// Blocks the host until the tensor is complete, and returns it.
  [[nodiscard]] Result wait() {
    pending_.wait();
    if (work_->finish(result_.stream())) result_.stream().synchronize();
    return std::move(result_);
  }
  /// Returns the tensor and makes later work on `stream`, and on the mesh's stream, wait for it; does not block the
  /// host.
  [[nodiscard]] Result wait(typename Space::stream stream) {
    pending_.wait(stream);
    work_->finish(stream);
    detail::order<Space>(stream, result_.stream());
    return std::move(result_);
  }
  /// Whether `wait` would return without waiting.
  [[nodiscard]] bool test() { return pending_.test(); }

 private:
  // In this order, so that the pending collective is destroyed first.
  std::unique_ptr<detail::Redistribution<Space>> work_;
  Result result_;
  Pending<Space> pending_;
};

/// Returns the tensor in another layout: `redistribute<Shard<0, Data>>(x)`.
///
/// Collective over the mesh, ordered on its stream; on the host's memory it blocks until the result is complete.
/// Partials are reduced unless they are named again; then each rank receives the elements that it lacks, and no more.
/// The collectives follow from the two layouts; `redistribution_cost` counts their bytes. Redistributing to a Partial
/// that the tensor does not have does not compile.
/// @post between layouts without Partial, redistributing there and back gives the same bits
/// @throws MismatchError, TimeoutError, RevokedError, RankFailure as the collectives do
template <class... Ps, DistributedTensor X>
[[nodiscard]] auto redistribute(const X& x, std::source_location location = std::source_location::current()) {
  detail::relaid<X, Layout<Ps...>> out({x.mesh(), x.extents()}, uninitialized);
  if constexpr (detail::may_become<detail::layout_of<X>, Layout<Ps...>>())
    detail::redistribution(x, out, detail::stream_of(x), location)->run();
  return out;
}

/// Returns the tensor in another layout and reuses the memory of `x` if this rank's part is the same in both layouts,
/// as when a Partial becomes Replicated.
template <class... Ps, class T, std::size_t Rank, class MeshT, class L, class Space>
[[nodiscard]] auto redistribute(DistTensor<T, Rank, MeshT, L, Space>&& x,
                                std::source_location location = std::source_location::current()) {
  using To = Layout<Ps...>;
  if (detail::sharding_of(x) != detail::sharding_of<To, MeshT>(detail::shape_of(x.mesh()), x.extents()))
    return redistribute<Ps...>(std::as_const(x), location);
  DistTensorSpec<Rank, MeshT, To> spec(x.mesh(), x.extents());
  DistTensorRef<T, Rank, MeshT, To, Space> out(spec, x.local());
  if constexpr (detail::may_become<L, To>()) detail::redistribution(x, out, x.stream(), location)->run();
  return DistTensor<T, Rank, MeshT, To, Space>(std::move(spec), x.release());
}

/// Redistributes `x` into `out`, whose type says the layout; allocates no memory for elements after the first call.
/// @pre the memories of both do not overlap
/// @throws InvalidArgument if the tensors have different extents or different meshes
template <DistributedTensor X, DistributedTensor Out>
void redistribute(const X& x, Out&& out, std::source_location location = std::source_location::current()) {
  static_assert(std::is_same_v<detail::mesh_of<X>, detail::mesh_of<Out>> &&
                    std::is_same_v<detail::value_of<X>, detail::value_of<Out>> &&
                    detail::rank_of<X> == detail::rank_of<Out>,
                "distx: redistribute: the tensors differ in the axes of their meshes, their element types or their "
                "numbers of dimensions");
  if (x.extents() != out.extents())
    throw InvalidArgument("the source has extents " + detail::to_string(x.extents()) + ", the target " +
                              detail::to_string(out.extents()) + ": make them equal",
                          detail::context_of(x.mesh(), "redistribute", location));
  if (!(x.mesh() == out.mesh()))
    throw InvalidArgument("the tensors are on different meshes; construct them from the same Mesh object",
                          detail::context_of(x.mesh(), "redistribute", location));
  if constexpr (detail::may_become<detail::layout_of<X>, detail::layout_of<Out>>())
    detail::redistribution(x, out, detail::stream_of(x), location)->run();
}

/// Starts `redistribute` and returns a `PendingTensor`; `x` must outlive its `wait`.
///
/// Collective over the mesh. The redistribution begins after the work enqueued on `after` and on the mesh's stream. If
/// it needs several collectives, all but the last are done before this call returns.
template <class... Ps, DistributedTensor X>
[[nodiscard]] auto start_redistribute(const X& x, typename X::space::stream after,
                                      std::source_location location = std::source_location::current()) {
  detail::relaid<X, Layout<Ps...>> out({x.mesh(), x.extents()}, uninitialized);
  (void)detail::may_become<detail::layout_of<X>, Layout<Ps...>>();
  auto work = detail::redistribution(x, out, after, location);
  auto pending = work->start();
  return PendingTensor<decltype(out)>(std::move(out), std::move(work), std::move(pending));
}
/// Starts `redistribute` after the work on the mesh's stream.
template <class... Ps, DistributedTensor X>
[[nodiscard]] auto start_redistribute(const X& x, std::source_location location = std::source_location::current()) {
  return start_redistribute<Ps...>(x, detail::stream_of(x), location);
}
template <class... Ps, class T, std::size_t Rank, class MeshT, class L, class Space>
auto start_redistribute(const DistTensor<T, Rank, MeshT, L, Space>&&,
                        std::source_location = {}) = delete;  // the source is borrowed until `wait`
template <class... Ps, class T, std::size_t Rank, class MeshT, class L, class Space>
auto start_redistribute(const DistTensor<T, Rank, MeshT, L, Space>&&, typename Space::stream,
                        std::source_location = {}) = delete;

}  // namespace distx::inline DISTX_ABI
