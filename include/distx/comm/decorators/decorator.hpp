// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>

#include "distx/comm/arguments.hpp"
#include "distx/comm/communicator.hpp"
#include "distx/comm/split_rule.hpp"

namespace distx::inline DISTX_ABI::detail {

/// The base of all wrapper communicators: forwards everything to the inner communicator except calls, `share` and
/// `split`.
template <Communicator C>
class Decorator {
 public:
  using space = typename C::space;

  Decorator(Decorator&&) noexcept = default;
  Decorator& operator=(Decorator&&) noexcept = default;

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  [[nodiscard]] std::string_view backend() const { return inner_.backend(); }
  template <class T>
  [[nodiscard]] CommunicatorMemory<T, space> allocate(std::size_t size,
                                                      std::source_location location = std::source_location::current()) {
    if constexpr (requires { inner_.template allocate<T>(size, location); })
      return inner_.template allocate<T>(size, location);
    else
      return inner_.template allocate<T>(size);
  }
  template <SpanArgument A>
    requires requires(C& inner, A&& memory, std::source_location where) { inner.adopt(memory, where); }
  [[nodiscard]] auto adopt(A&& memory, std::source_location location = std::source_location::current()) {
    return inner_.adopt(std::forward<A>(memory), location);
  }
  [[nodiscard]] std::optional<CommonMemory<space>> allocate_common(
      std::size_t bytes, const std::vector<ByteRange>& own,
      std::source_location location = std::source_location::current())
    requires requires(C& inner) { inner.allocate_common(bytes, own, location); }
  {
    return inner_.allocate_common(bytes, own, location);
  }
  [[nodiscard]] std::optional<CommonMemory<space>> allocate_for_host(
      std::size_t bytes, std::source_location location = std::source_location::current())
    requires requires(C& inner) { inner.allocate_for_host(bytes, location); }
  {
    return inner_.allocate_for_host(bytes, location);
  }
  [[nodiscard]] bool passes_operands() const
    requires requires(const C& inner) { inner.passes_operands(); }
  {
    return inner_.passes_operands();
  }
  [[nodiscard]] Span<std::byte, space> scratch(std::size_t bytes)
    requires requires(C& inner) { inner.scratch(bytes); }
  {
    return inner_.scratch(bytes);
  }
  /// Returns a cache separate from the inner communicator's, because groups of a wrapper are wrapped as well.
  [[nodiscard]] GroupCache& group_cache() noexcept { return *groups_; }
  void revoke(const std::string& reason) { inner_.revoke(reason); }
  [[nodiscard]] std::function<void(const std::string&)> revoker() const
    requires requires(const C& inner) { inner.revoker(); }
  {
    return inner_.revoker();
  }

  /// Returns the inner communicator; calls made on it directly are not observed.
  [[nodiscard]] C& inner() noexcept { return inner_; }
  [[nodiscard]] const C& inner() const noexcept { return inner_; }

  /// Returns whether both are handles on one communicator.
  friend bool operator==(const Decorator& a, const Decorator& b)
    requires std::equality_comparable<C>
  {
    return a.inner_ == b.inner_;
  }

 protected:
  explicit Decorator(C inner) : inner_(std::move(inner)), groups_(std::make_shared<GroupCache>()) {}
  Decorator(C inner, std::shared_ptr<GroupCache> groups) : inner_(std::move(inner)), groups_(std::move(groups)) {}
  ~Decorator() = default;

  [[nodiscard]] const std::shared_ptr<GroupCache>& groups() const noexcept { return groups_; }
  [[nodiscard]] C split_inner(int color, int key, const std::source_location& location) {
    return split_by(inner_, SplitRule(color, key), location);
  }

 private:
  C inner_;
  std::shared_ptr<GroupCache> groups_;
};

/// Returns the innermost communicator, inside all wrappers.
template <class C>
[[nodiscard]] auto& innermost(C& comm) noexcept {
  if constexpr (requires { comm.inner(); })
    return innermost(comm.inner());
  else
    return comm;
}

}  // namespace distx::inline DISTX_ABI::detail
