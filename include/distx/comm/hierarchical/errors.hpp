// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <vector>

#include "distx/core/error.hpp"

namespace distx::detail {

/// The sentence of an error among some of the ranks, whose numbers in it are not those of all.
inline std::string words_among(const std::vector<int>& ranks, const Error& error) {
  std::string words = error.what();
  constexpr std::string_view name = "distx: ";
  if (words.starts_with(name)) words.erase(0, name.size());
  if (error.location().line() != 0) words.erase(words.rfind(" ["));  // the caller's line is told once
  if (ranks.empty()) return words;
  std::string who = ranks.size() == 1 ? "on rank" : "among ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) who += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  return who + ": " + words;
}

/// Runs `f`; an error of distx that it throws names ranks as all know them: rank i of those that it is among is
/// `ranks[i]`, itself where there are none given.
template <class F>
decltype(auto) as_seen_by_all(const std::vector<int>& ranks, const ErrorContext& context, F&& f) {
  try {
    return f();
  } catch (const RankFailure& error) {
    const auto failed = static_cast<std::size_t>(error.failed_rank());
    throw RankFailure(words_among(ranks, error), failed < ranks.size() ? ranks[failed] : error.failed_rank(),
                      error.cause(), context);
  } catch (const MismatchError& error) {
    throw MismatchError(words_among(ranks, error), context, error.code());
  } catch (const TimeoutError& error) {
    throw TimeoutError(words_among(ranks, error), context, error.code());
  } catch (const RevokedError& error) {
    throw RevokedError(words_among(ranks, error), context, error.code());
  } catch (const MemoryError& error) {
    throw MemoryError(words_among(ranks, error), context, error.code());
  } catch (const Error& error) {
    throw Error(words_among(ranks, error), context, error.code());
  }
}

}  // namespace distx::detail
