// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "distx/core/error.hpp"

namespace distx::inline DISTX_ABI::detail {

template <class Make>
concept MakesBatches = std::invocable<const Make&, std::span<const std::size_t>>;
template <class Make>
concept MakesSamples = !MakesBatches<Make> && std::invocable<const Make&, std::size_t>;

/// Returns the numbers of samples as text, of a long list the first ones.
[[nodiscard]] inline std::string listed_samples(std::span<const std::size_t> samples) {
  constexpr std::size_t most = 16;
  std::string text = samples.size() == 1 ? "sample " : "samples ";
  for (std::size_t i = 0; i < std::min(samples.size(), most); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(samples[i]);
  if (samples.size() > most) text += " and " + std::to_string(samples.size() - most) + " more";
  return text;
}

/// Throws a DataError about samples, with the exception that is being handled nested in it.
[[noreturn]] inline void throw_data_error(std::span<const std::size_t> samples, std::uint64_t epoch,
                                          const ErrorContext& context) {
  std::string text = (samples.size() == 1 ? "" : "one of the ") + listed_samples(samples);
  text += " cannot be loaded in epoch " + std::to_string(epoch) + ": ";
  try {
    throw;
  } catch (const Error& error) {
    std::throw_with_nested(DataError(text + error.message(), context, error.code()));
  } catch (const std::exception& error) {
    std::throw_with_nested(DataError(text + error.what(), context));
  } catch (...) {
    std::throw_with_nested(DataError(text + unknown_exception, context));
  }
}

/// Makes the batch of these samples.
/// @throws DataError that names the samples if `make` throws
template <class Make>
[[nodiscard]] auto make_batch(const Make& make, std::span<const std::size_t> samples, std::uint64_t epoch,
                              const ErrorContext& context) {
  if constexpr (MakesBatches<Make>) {
    try {
      return make(samples);
    } catch (...) {
      throw_data_error(samples, epoch, context);
    }
  } else {
    std::vector<std::remove_cvref_t<std::invoke_result_t<const Make&, std::size_t>>> batch;
    batch.reserve(samples.size());
    for (const auto& sample : samples) try {
        batch.push_back(make(sample));
      } catch (...) {
        throw_data_error({&sample, 1}, epoch, context);
      }
    return batch;
  }
}

}  // namespace distx::inline DISTX_ABI::detail
