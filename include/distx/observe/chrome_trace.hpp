// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include "distx/observe/detail/json_string.hpp"
#include "distx/observe/timeline.hpp"

// The Trace Event Format, which Perfetto and chrome://tracing open: a JSON object with a list of events. Ranks are its
// processes, tracks its threads; a span is an event "X", an asynchronous one a pair of "b" and "e".
namespace distx::inline DISTX_ABI {

namespace observe {

/// The offset of a rank's clock: its time minus `nanoseconds` is rank 0's time, with an error of at most `uncertainty`.
struct ClockOffset {
  std::int64_t nanoseconds = 0;
  std::int64_t uncertainty = 0;

  friend bool operator==(const ClockOffset&, const ClockOffset&) = default;
};

}  // namespace observe

namespace detail {

/// Formats nanoseconds as microseconds, the unit of the format, with three decimals.
inline std::string microseconds(std::int64_t nanoseconds) {
  const std::int64_t magnitude = nanoseconds < 0 ? -nanoseconds : nanoseconds;
  const std::string fraction = std::to_string(magnitude % 1000);
  return (nanoseconds < 0 ? "-" : "") + std::to_string(magnitude / 1000) + "." + std::string(3 - fraction.size(), '0') +
         fraction;
}

inline std::string chrome_metadata(const std::string& kind, int rank, int track, const std::string& argument) {
  return R"({"ph":"M","name":")" + kind + R"(","pid":)" + std::to_string(rank) + R"(,"tid":)" + std::to_string(track) +
         R"(,"args":{)" + argument + "}}";
}

inline std::string chrome_arguments(const observe::TimedSpan& span) {
  std::string text =
      R"(,"args":{"bytes":)" + std::to_string(span.bytes) + R"(,"wire_bytes":)" + std::to_string(span.wire_bytes);
  if (span.location.line() != 0) {
    const std::string where = span.location.file_name() + (":" + std::to_string(span.location.line()));
    text += R"(,"location":)" + json_string(where);
  }
  return text + "}";
}

/// Returns the events of one rank as JSON objects separated by commas, at least one. `zero` is the start of the trace
/// in rank 0's time.
[[nodiscard]] inline std::string chrome_events(const observe::Timeline::Contents& contents, int rank,
                                               const observe::ClockOffset& offset, std::int64_t zero) {
  std::string text = chrome_metadata("process_name", rank, 0, R"("name":"rank )" + std::to_string(rank) + '"');
  const auto add = [&](const std::string& event) { text.append(",\n").append(event); };
  add(chrome_metadata("process_sort_index", rank, 0, R"("sort_index":)" + std::to_string(rank)));
  const std::string clock = "clock offset " + std::to_string(offset.nanoseconds) + " ns, within " +
                            std::to_string(offset.uncertainty) + " ns" +
                            (contents.lost > 0 ? "; " + std::to_string(contents.lost) + " spans lost" : "");
  add(chrome_metadata("process_labels", rank, 0, R"("labels":)" + json_string(clock)));
  for (std::size_t track = 0; track < contents.tracks.size(); ++track)
    add(chrome_metadata("thread_name", rank, static_cast<int>(track),
                        R"("name":)" + json_string(contents.tracks[track])));
  std::uint64_t id = static_cast<std::uint64_t>(rank) << 40;  // the ranks share the numbers of asynchronous events
  for (const auto& span : contents.spans) {
    const auto event = [&](const std::string& kind, std::int64_t time) {
      return R"({"ph":")" + kind + R"(","cat":"distx","name":)" + json_string(span.name) + R"(,"pid":)" +
             std::to_string(rank) + R"(,"tid":)" + std::to_string(span.track) + R"(,"ts":)" +
             microseconds(time - offset.nanoseconds - zero);
    };
    if (!span.asynchronous) {
      add(event("X", span.begin) + R"(,"dur":)" + microseconds(span.end - span.begin) + chrome_arguments(span) + "}");
      continue;
    }
    const std::string numbered = R"(,"id":)" + std::to_string(id++);
    add(event("b", span.begin) + numbered + chrome_arguments(span) + "}");
    add(event("e", span.end) + numbered + "}");
  }
  return text;
}

inline constexpr std::string_view chrome_trace_head = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
inline constexpr std::string_view chrome_trace_tail = "\n]}\n";

}  // namespace detail

}  // namespace distx::inline DISTX_ABI
