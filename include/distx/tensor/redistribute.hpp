// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/tensor/detail/redistribution.hpp"
#include "distx/tensor/detail/relayout.hpp"
#include "distx/tensor/dist_tensor.hpp"

namespace distx {

namespace detail {

/// Carries `x` over into the memory of `out`.
template <class X, class Out>
[[nodiscard]] auto redistribution(const X& x, Out& out, typename X::space::stream stream,
                                  const std::source_location& location) {
  using Space = typename X::space;
  const auto ops = Ops<layout_of<X>, mesh_of<X>, value_of<X>>::all();
  return std::make_unique<Redistribution<Space>>(
      in_space<Space>(x.mesh().state()),
      relayout<layout_of<X>, layout_of<Out>, mesh_of<X>>(x.mesh().shape(), x.extents(), ops), ops,
      Span<const value_of<X>, Space>(x.local()), Span<value_of<X>, Space>(out.local()), stream, location);
}

}  // namespace detail

/// A tensor whose redistribution was started: move-only; it borrows the tensor that it is made of until `wait`.
///
/// Either `wait` is called once. Letting one go waits, as with every Pending.
template <class Result>
class PendingTensor {
  using Space = typename Result::space;

 public:
  PendingTensor(Result result, std::unique_ptr<detail::Redistribution<Space>> work, Pending<Space> pending)
      : work_(std::move(work)), result_(std::move(result)), pending_(std::move(pending)) {}
  PendingTensor(PendingTensor&&) noexcept = default;
  PendingTensor& operator=(PendingTensor&&) = delete;  // what is in flight would lose its memory

  /// Blocks the host until the tensor is there.
  [[nodiscard]] Result wait() {
    pending_.wait();
    if (work_->finish(result_.stream())) result_.stream().synchronize();
    return std::move(result_);
  }
  /// The tensor is there for what is enqueued on this stream, and on the mesh's, from now on; the host goes on.
  [[nodiscard]] Result wait(typename Space::stream stream) {
    pending_.wait(stream);
    work_->finish(stream);
    detail::order<Space>(stream, result_.stream());
    return std::move(result_);
  }
  /// Whether `wait` would return at once.
  [[nodiscard]] bool test() { return pending_.test(); }

 private:
  // In this order: the pending collective goes first.
  std::unique_ptr<detail::Redistribution<Space>> work_;
  Result result_;
  Pending<Space> pending_;
};

/// The same tensor in another layout: `redistribute<Shard<0, Data>>(x)`. Collective over the mesh; in the order of its
/// stream.
///
/// Partials are reduced, unless they are named again. Each rank receives what it lacks and no more.
/// @post with layouts of shards only, the way there and back gives the same bits
template <class... Ps, DistributedTensor X>
[[nodiscard]] auto redistribute(const X& x, std::source_location location = std::source_location::current()) {
  relaid<X, Layout<Ps...>> out({x.mesh(), x.extents()}, uninitialized);
  if constexpr (detail::may_become<layout_of<X>, Layout<Ps...>>())
    detail::redistribution(x, out, detail::stream_of(x), location)->run();
  return out;
}

/// In place, where the parts of both layouts are the same: the memory of `x` becomes that of the result.
template <class... Ps, class T, std::size_t Rank, class MeshT, class L, class Space>
[[nodiscard]] auto redistribute(DistTensor<T, Rank, MeshT, L, Space>&& x,
                                std::source_location location = std::source_location::current()) {
  using To = Layout<Ps...>;
  if (x.sharding() != sharding_of<To, MeshT>(x.mesh().shape(), x.extents()))
    return redistribute<Ps...>(std::as_const(x), location);
  TensorPlace<Rank, MeshT, To> place(x.mesh(), x.extents());
  DistTensorRef<T, Rank, MeshT, To, Space> out(place, x.local());
  if constexpr (detail::may_become<L, To>()) detail::redistribution(x, out, x.stream(), location)->run();
  return DistTensor<T, Rank, MeshT, To, Space>(std::move(place), x.release());
}

/// Into the memory of `out`, whose layout is the one asked for: none for elements is allocated after the first call.
/// @pre the memories of both do not overlap
/// @throws MismatchError where the tensors differ in their meshes or extents
template <DistributedTensor X, DistributedTensor Out>
void redistribute(const X& x, Out&& out, std::source_location location = std::source_location::current()) {
  static_assert(std::is_same_v<mesh_of<X>, mesh_of<Out>> && std::is_same_v<value_of<X>, value_of<Out>> &&
                    rank_of<X> == rank_of<Out>,
                "distx: the tensors differ in their meshes' axes, their elements or their number of dimensions");
  if (x.extents() != out.extents() || !(x.mesh() == out.mesh()))
    throw MismatchError(
        x.extents() != out.extents()
            ? "the extents are " + words_of(x.extents()) + ", and " + words_of(out.extents()) + " where it shall be put"
            : std::string("the tensors lie on two meshes"),
        {.operation = "redistribute", .rank = x.mesh().rank(), .size = x.mesh().size(), .location = location});
  if constexpr (detail::may_become<layout_of<X>, layout_of<Out>>())
    detail::redistribution(x, out, detail::stream_of(x), location)->run();
}

/// Begins after the work enqueued on `after`, where the preparations are made, and on the mesh's stream; what needs
/// several collectives does all but the last at once.
template <class... Ps, DistributedTensor X>
[[nodiscard]] auto start_redistribute(const X& x, typename X::space::stream after,
                                      std::source_location location = std::source_location::current()) {
  relaid<X, Layout<Ps...>> out({x.mesh(), x.extents()}, uninitialized);
  (void)detail::may_become<layout_of<X>, Layout<Ps...>>();
  auto work = detail::redistribution(x, out, after, location);
  auto pending = work->start();
  return PendingTensor<decltype(out)>(std::move(out), std::move(work), std::move(pending));
}
/// After the work on the mesh's stream alone.
template <class... Ps, DistributedTensor X>
[[nodiscard]] auto start_redistribute(const X& x, std::source_location location = std::source_location::current()) {
  return start_redistribute<Ps...>(x, detail::stream_of(x), location);
}
template <class... Ps, class T, std::size_t Rank, class MeshT, class L, class Space>
auto start_redistribute(const DistTensor<T, Rank, MeshT, L, Space>&&,
                        std::source_location = {}) = delete;  // it is borrowed until the wait
template <class... Ps, class T, std::size_t Rank, class MeshT, class L, class Space>
auto start_redistribute(const DistTensor<T, Rank, MeshT, L, Space>&&, typename Space::stream,
                        std::source_location = {}) = delete;

}  // namespace distx
