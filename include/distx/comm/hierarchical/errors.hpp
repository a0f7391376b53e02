// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <string>
#include <type_traits>
#include <vector>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail {

/// Returns the message of an error that a communicator of `ranks` has thrown, with those ranks listed.
inline std::string message_among(const std::vector<int>& ranks, const Error& error) {
  if (ranks.empty()) return error.what();
  std::string who = ranks.size() == 1 ? "on rank" : "among ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) who += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  return who + ": " + error.what();
}

/// Throws an error of a communicator of `ranks` again, with global rank numbers.
[[noreturn]] inline void throw_with_global_ranks(const std::vector<int>& ranks, const Error& error,
                                                 const ErrorContext& context) {
  const std::string message = message_among(ranks, error);
  if (const auto* const failure = dynamic_cast<const RankFailure*>(&error)) {
    const auto failed = static_cast<std::size_t>(failure->failed_rank());
    throw RankFailure(message, failed < ranks.size() ? ranks[failed] : failure->failed_rank(), failure->cause(),
                      context);
  }
  const auto throw_if = [&]<class E>(std::type_identity<E>, auto... more) {
    if (dynamic_cast<const E*>(&error) != nullptr) throw E(message, context, error.code(), more...);
  };
  throw_if(std::type_identity<InvalidArgument>());
  throw_if(std::type_identity<InvalidState>());
  throw_if(std::type_identity<MismatchError>());
  throw_if(std::type_identity<NonFiniteError>());
  throw_if(std::type_identity<TimeoutError>(), is_rank_loss(error));
  throw_if(std::type_identity<RevokedError>(), is_rank_loss(error));
  throw_if(std::type_identity<MemoryError>());
  throw BackendError(message, context, error.code());
}

/// Runs `f`; errors that it throws are rethrown with global rank numbers: rank i of the throwing communicator is
/// `ranks[i]`, or i if `ranks` is empty.
template <class F>
decltype(auto) with_global_ranks(const std::vector<int>& ranks, const ErrorContext& context, F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw_with_global_ranks(ranks, error, context);
  }
}

}  // namespace distx::inline DISTX_ABI::detail
