// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
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

/// Runs `f`; errors that it throws are rethrown with global rank numbers: rank i of the throwing communicator is
/// `ranks[i]`, or i if `ranks` is empty.
template <class F>
decltype(auto) with_global_ranks(const std::vector<int>& ranks, const ErrorContext& context, F&& f) {
  try {
    return f();
  } catch (const RankFailure& error) {
    const auto failed = static_cast<std::size_t>(error.failed_rank());
    throw RankFailure(message_among(ranks, error), failed < ranks.size() ? ranks[failed] : error.failed_rank(),
                      error.cause(), context);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(message_among(ranks, error), context, error.code());
  } catch (const InvalidState& error) {
    throw InvalidState(message_among(ranks, error), context, error.code());
  } catch (const MismatchError& error) {
    throw MismatchError(message_among(ranks, error), context, error.code());
  } catch (const NonFiniteError& error) {
    throw NonFiniteError(message_among(ranks, error), context, error.code());
  } catch (const TimeoutError& error) {
    throw TimeoutError(message_among(ranks, error), context, error.code(), error.rank_loss());
  } catch (const RevokedError& error) {
    throw RevokedError(message_among(ranks, error), context, error.code(), error.rank_loss());
  } catch (const MemoryError& error) {
    throw MemoryError(message_among(ranks, error), context, error.code());
  } catch (const Error& error) {
    throw BackendError(message_among(ranks, error), context, error.code());
  }
}

}  // namespace distx::inline DISTX_ABI::detail
