// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <concepts>
#include <utility>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI {

/// The traits of a library's handle: its type, its null value, and how to close it.
template <class Traits>
concept HandleTraits = requires(typename Traits::handle_type handle) {
  { Traits::null() } noexcept -> std::convertible_to<typename Traits::handle_type>;
  { Traits::close(handle) } noexcept;
};

/// Owns a library's handle: move-only, closes it exactly once, never closes a null handle.
template <HandleTraits Traits>
class unique_handle {
 public:
  using handle_type = typename Traits::handle_type;

  unique_handle() noexcept : handle_(Traits::null()) {}
  unique_handle(unique_handle&& other) noexcept : handle_(other.release()) {}
  unique_handle& operator=(unique_handle&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~unique_handle() { reset(); }

  /// Takes ownership of a handle.
  [[nodiscard]] static unique_handle from_native_handle(handle_type handle) noexcept {
    unique_handle owner;
    owner.handle_ = handle;
    return owner;
  }
  /// Returns the handle, which stays owned.
  [[nodiscard]] handle_type native_handle() const noexcept { return handle_; }
  /// Returns the handle and gives up ownership.
  [[nodiscard]] handle_type release() noexcept { return std::exchange(handle_, Traits::null()); }
  /// Closes the handle and takes ownership of another.
  void reset(handle_type handle = Traits::null()) noexcept {
    const handle_type old = std::exchange(handle_, handle);
    if (!(old == Traits::null())) Traits::close(old);
  }
  /// Returns whether there is a handle.
  explicit operator bool() const noexcept { return !(handle_ == Traits::null()); }

 private:
  handle_type handle_;
};

}  // namespace distx::inline DISTX_ABI
