// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/observe/detail/flight_signal.hpp"

namespace distx::inline DISTX_ABI::flight {

/// The settings of the flight recorder.
struct RecorderOptions {
  /// Whether calls are recorded. Variable DISTX_FLIGHT_RECORDER=off.
  bool enabled = true;
  /// An existing folder: the records are written there when a communicator throws, and when the last one is destroyed.
  /// Variable DISTX_FLIGHT=FOLDER.
  std::string folder{};
  /// Whether SIGUSR1 writes the records to `folder` as well. Variable DISTX_FLIGHT_SIGNAL=on.
  bool on_signal = false;
};

/// Replaces the settings that the environment gives. Call it before the first communicator is made.
inline void configure(const RecorderOptions& options) {
  detail::FlightRegistry::get().configure(options.enabled, options.folder, options.on_signal);
}

/// Writes the last 1,000 calls of each thread to a file per rank of this process: `flight_rank_<r>.json`, which
/// distx-flight reads, and converts for PyTorch's flight recorder tools. Not collective.
///
/// May be called at any time, by any thread; calls in progress on other threads are included.
/// @param folder  an existing folder
/// @throws BackendError if a file cannot be written
inline void write_record(const std::string& folder) { detail::write_flight_files(folder); }

/// Labels the calls that this thread makes while the object exists, in the flight record.
///
///     distx::flight::Label label({.step = step, .phase = "evaluation"});
///
/// What is not given is taken from the enclosing label. Texts are copied, up to 15 and 47 bytes.
class Label {
 public:
  /// The parts of a label; a negative number or an empty text is not given.
  struct Parts {
    std::int64_t step = -1;
    std::string_view phase{};
    std::int64_t bucket = -1;
    std::string_view parameter{};
  };

  explicit Label(const Parts& parts) noexcept
      : outer_(detail::flight_context), observer_(detail::label_observer.load(std::memory_order_relaxed)) {
    if (outer_ != nullptr) context_ = *outer_;
    if (parts.step >= 0) context_.step = parts.step;
    if (parts.bucket >= 0) context_.bucket = parts.bucket;
    copy(context_.phase, parts.phase);
    copy(context_.parameter, parts.parameter);
    detail::flight_context = &context_;
    if (observer_ != nullptr) observer_(&context_);
  }
  Label(const Label&) = delete;
  Label& operator=(const Label&) = delete;
  ~Label() {
    if (observer_ != nullptr) observer_(nullptr);
    detail::flight_context = outer_;
  }

 private:
  template <std::size_t Size>
  static void copy(char (&to)[Size], std::string_view from) noexcept {
    if (!from.empty()) to[from.copy(to, Size - 1)] = '\0';
  }

  const detail::FlightContext* outer_;
  detail::LabelObserver* observer_;
  detail::FlightContext context_;
};

}  // namespace distx::inline DISTX_ABI::flight
