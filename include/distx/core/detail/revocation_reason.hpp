// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cerrno>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Why a communicator was revoked.
///
/// The kind decides what the other ranks throw: MismatchError and NonFiniteError concern every rank, also those that
/// have not compared the calls or seen the value themselves; any other reason is a RevokedError, with the code ENOMEM
/// for a failed allocation. Ranks publish reasons to each other as text, in which a mark in front denotes the kind.
struct RevocationReason {
  enum class Kind : char {
    lost,  ///< the rank may not continue
    mismatch,
    memory,      ///< an allocation has failed
    not_finite,  ///< a loss or gradient
    own_error    ///< another error of the rank's own calls or data: the rank is not lost
  };

  std::string text;
  Kind kind = Kind::lost;
  bool thrown = false;  ///< this rank has thrown the MismatchError

  /// Returns the reason that an exception gives.
  [[nodiscard]] static RevocationReason of(const Error& error) {
    const Kind kind = kind_of(error);
    return {(kind == Kind::memory ? "out of memory: " : "") + std::string(error.what()), kind};
  }
  /// Returns the reason that the exception gives that is being handled.
  [[nodiscard]] static RevocationReason of_current() {
    try {
      throw;
    } catch (const Error& error) {
      return of(error);
    } catch (const std::bad_alloc& error) {
      return {error.what(), Kind::memory};
    } catch (const std::exception& error) {
      return {error.what()};
    } catch (...) {
      return {unknown_exception};
    }
  }
  [[nodiscard]] static RevocationReason parse(std::string_view published) {
    const Kind kind = mark_of(published);
    return {std::string(published.substr(kind == Kind::lost ? 0 : 1)), kind};
  }
  /// Returns the kind of a published reason.
  [[nodiscard]] static Kind mark_of(std::string_view published) noexcept {
    const char front = published.empty() ? '\0' : published.front();
    return front > '\0' && front <= static_cast<char>(Kind::own_error) ? static_cast<Kind>(front) : Kind::lost;
  }
  [[nodiscard]] std::string published() const { return kind == Kind::lost ? text : static_cast<char>(kind) + text; }
  /// Returns the reason as the other ranks report it.
  [[nodiscard]] RevocationReason by(int rank) const {
    return {"rank " + std::to_string(rank) + " revoked the communicator: " + text, kind};
  }

  /// Returns the code of the RevokedError.
  [[nodiscard]] int code() const noexcept { return kind == Kind::memory ? ENOMEM : 0; }
  [[nodiscard]] bool rank_loss() const noexcept { return kind == Kind::lost || kind == Kind::memory; }
  /// Returns whether every rank throws the error itself.
  [[nodiscard]] static bool on_all_ranks(Kind kind) noexcept {
    return kind == Kind::mismatch || kind == Kind::not_finite;
  }
  /// Throws NonFiniteError if it is one, MismatchError the first time if it is one, otherwise RevokedError.
  [[noreturn]] void raise(const ErrorContext& context) {
    if (kind == Kind::not_finite) throw NonFiniteError(text, context);
    if (kind == Kind::mismatch && !std::exchange(thrown, true)) throw MismatchError(text, context);
    throw RevokedError(text, context, code(), rank_loss());
  }

 private:
  template <class T>
  [[nodiscard]] static bool is(const Error& error) noexcept {
    return dynamic_cast<const T*>(&error) != nullptr;
  }
  [[nodiscard]] static Kind kind_of(const Error& error) noexcept {
    if (is<MismatchError>(error)) return Kind::mismatch;
    if (is<MemoryError>(error)) return Kind::memory;
    if (is<NonFiniteError>(error)) return Kind::not_finite;
    if (is<TimeoutError>(error) || is<RevokedError>(error)) return is_rank_loss(error) ? Kind::lost : Kind::own_error;
    return is<InvalidArgument>(error) || is<InvalidState>(error) || is<DataError>(error) || is<CheckpointError>(error)
               ? Kind::own_error
               : Kind::lost;
  }
};

}  // namespace distx::inline DISTX_ABI::detail
