// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The trace file as a viewer reads it: valid JSON, every rank's spans, balanced, on one clock.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "distx/comm/decorators/metered.hpp"
#include "distx/comm/decorators/traced.hpp"
#include "distx/comm/decorators/write_trace.hpp"
#include "distx/distx.hpp"

namespace {

using nlohmann::json;
using Threads = distx::ThreadCommunicator;
constexpr std::int64_t hour = 3'600'000'000'000;

class File {
 public:
  File() {
    std::string name = (std::filesystem::temp_directory_path() / "distx-trace-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    std::error_code ignored;  // a folder that stays in /tmp does not fail the test
    std::filesystem::remove_all(folder_, ignored);
  }
  [[nodiscard]] std::string path() const { return (folder_ / "trace.json").string(); }
  [[nodiscard]] json parsed() const { return json::parse(std::ifstream(path())); }

 private:
  std::filesystem::path folder_;
};

/// The events of one rank: of one kind ("X", "b", "e", "M"), of one name where it is given.
std::vector<json> events(const json& trace, int rank, const std::string& kind, const std::string& name = "") {
  std::vector<json> found;
  for (const auto& event : trace.at("traceEvents"))
    if (event.at("pid") == rank && event.at("ph") == kind && (name.empty() || event.at("name") == name))
      found.push_back(event);
  return found;
}

/// Checks that a trace has events of these ranks only, which end no sooner than they begin, and an "e" for each "b".
void check_balanced(const json& trace, int ranks) {
  std::map<std::uint64_t, json> open;
  std::set<std::uint64_t> numbers;
  for (const auto& event : trace.at("traceEvents")) {
    CHECK(event.at("pid") >= 0);
    CHECK(event.at("pid") < ranks);
    const std::string kind = event.at("ph");
    if (kind == "M") continue;
    CHECK(event.at("ts") >= 0.0);
    if (kind == "X") {
      CHECK(event.at("dur") >= 0.0);
      continue;
    }
    const std::uint64_t id = event.at("id");
    if (kind == "b") {
      CHECK(numbers.insert(id).second);
      open[id] = event;
      continue;
    }
    REQUIRE(kind == "e");
    REQUIRE(open.count(id) == 1);
    for (const char* field : {"pid", "tid", "cat", "name"}) CHECK(open[id].at(field) == event.at(field));
    CHECK(open[id].at("ts") <= event.at("ts"));
    open.erase(id);
  }
  CHECK(open.empty());
}

double begin_of(const json& event) { return event.at("ts"); }
double end_of(const json& event) { return begin_of(event) + event.at("dur").get<double>(); }

TEST_CASE("the trace contains every rank's calls, blocking and asynchronous") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    const File file;
    distx::spawn(ranks, [&](distx::ThreadConnector& connector) {
      distx::Metered comm(distx::Traced{Threads(connector)});
      std::vector<float> values(10), more(10);
      distx::all_reduce(comm, values, distx::sum);
      auto first = distx::start_all_reduce(comm, values, distx::sum);
      auto second = distx::start_broadcast(comm, more, 0);
      {
        auto scope = comm.inner().timeline().scope("a \"forward\"\n\\ \x01 caf\xc3\xa9 \xff");
        distx::barrier(comm);
      }
      second.wait();
      while (!first.test()) std::this_thread::yield();
      first.wait();
      first.wait();
      { auto abandoned = distx::start_barrier(comm); }
      auto group = comm.split(comm.rank() % 2, 0);
      distx::barrier(group);
      auto under_way = distx::start_all_reduce(comm, values, distx::sum);
      distx::observe::write_trace(file.path(), comm.inner());
      under_way.wait();
    });
    const json trace = file.parsed();
    check_balanced(trace, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      CHECK(events(trace, rank, "X", "all_reduce").size() == 1);
      CHECK(events(trace, rank, "X", "barrier").size() == 2);
      CHECK(events(trace, rank, "X", "wait").size() == 3);
      CHECK(events(trace, rank, "X").size() == 7);
      CHECK(events(trace, rank, "b").size() == 3);
      CHECK(events(trace, rank, "b", "all_reduce").size() == 1);
      CHECK(events(trace, rank, "b", "broadcast").size() == 1);
      CHECK(events(trace, rank, "b", "barrier").size() == 1);
      CHECK(events(trace, rank, "X", "a \"forward\"\n\\ \x01 caf\xc3\xa9 \xef\xbf\xbd").size() == 1);
      const json call = events(trace, rank, "X", "all_reduce").front();
      CHECK(call.at("args").at("bytes") == 40);
      const auto expected =
          wire_bytes(distx::calls::AllReduce<float, distx::Sum>{{nullptr, 10}, {nullptr, 10}}, rank, ranks);
      CHECK(call.at("args").at("wire_bytes") == expected.sent + expected.received);
      const std::string location = call.at("args").at("location");
      CHECK(location.find("trace_test.cpp:") != std::string::npos);
      // The group has a separate track, and each track a name.
      CHECK(events(trace, rank, "X", "barrier")[0].at("tid") != events(trace, rank, "X", "barrier")[1].at("tid"));
      CHECK(events(trace, rank, "M", "thread_name").size() == 2);
      CHECK(events(trace, rank, "M", "process_name").front().at("args").at("name") == "rank " + std::to_string(rank));
      // The barrier inside the scope is inside it in the trace too.
      const json scope = events(trace, rank, "X", "a \"forward\"\n\\ \x01 caf\xc3\xa9 \xef\xbf\xbd").front();
      const json barrier = events(trace, rank, "X", "barrier").front();
      CHECK(begin_of(scope) <= begin_of(barrier) + 0.0005);
      CHECK(end_of(barrier) <= end_of(scope) + 0.0005);
    }
  }
}

TEST_CASE("an asynchronous call's span lasts from start to wait") {
  const File file;
  distx::spawn(2, [&](distx::ThreadConnector& connector) {
    distx::Traced comm{Threads(connector)};
    std::vector<float> values(10);
    auto pending = distx::start_all_reduce(comm, values, distx::sum);
    { auto scope = comm.timeline().scope("backward"); }
    pending.wait();
    distx::observe::write_trace(file.path(), comm.timeline(), connector);
  });
  const json trace = file.parsed();
  check_balanced(trace, 2);
  for (int rank = 0; rank < 2; ++rank) {
    const json backward = events(trace, rank, "X", "backward").at(0), wait = events(trace, rank, "X", "wait").at(0);
    CHECK(begin_of(events(trace, rank, "b").at(0)) <= begin_of(backward));
    CHECK(end_of(backward) <= begin_of(events(trace, rank, "e").at(0)));
    CHECK(end_of(wait) == doctest::Approx(begin_of(events(trace, rank, "e").at(0))));
  }
}

TEST_CASE("align_clocks measures the true offset within its uncertainty") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    std::vector<distx::observe::ClockOffset> own(static_cast<std::size_t>(ranks)), shifted = own, other_way = own;
    distx::spawn(ranks, [&](distx::ThreadConnector& connector) {
      Threads comm(connector);
      const auto rank = static_cast<std::size_t>(comm.rank());
      const std::int64_t shift = hour * comm.rank();
      own[rank] = distx::observe::align_clocks(comm, distx::observe::steady_nanoseconds);
      shifted[rank] = distx::observe::align_clocks(comm, [&] { return distx::observe::steady_nanoseconds() + shift; });
      other_way[rank] =
          distx::observe::align_clocks(connector, [&] { return distx::observe::steady_nanoseconds() - shift; });
    });
    CHECK(own[0] == distx::observe::ClockOffset{});
    CHECK(shifted[0] == distx::observe::ClockOffset{});
    for (int rank = 0; rank < ranks; ++rank) {
      CAPTURE(rank);
      const auto at = static_cast<std::size_t>(rank);
      CHECK(own[at].nanoseconds == 0);  // one clock
      CHECK(std::abs(shifted[at].nanoseconds - hour * rank) <= shifted[at].uncertainty);
      CHECK(std::abs(other_way[at].nanoseconds + hour * rank) <= other_way[at].uncertainty);
      CHECK(shifted[at].uncertainty < hour / 2);
    }
  }
}

TEST_CASE("clocks hours apart are aligned: in the trace no rank leaves a barrier before all have entered") {
  const File file;
  constexpr int ranks = 4;
  distx::spawn(ranks, [&](distx::ThreadConnector& connector) {
    const std::int64_t shift = hour * (connector.rank() * 3 % 4 - 1);
    distx::Traced comm(Threads(connector), std::make_shared<distx::observe::Timeline>(
                                               [shift] { return distx::observe::steady_nanoseconds() + shift; }));
    distx::barrier(comm);
    distx::observe::write_trace(file.path(), comm);
  });
  const json trace = file.parsed();
  check_balanced(trace, ranks);
  std::array<double, ranks> uncertainty{};
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string label = events(trace, rank, "M", "process_labels").at(0).at("args").at("labels");
    uncertainty[static_cast<std::size_t>(rank)] = std::stod(label.substr(label.find("within ") + 7)) / 1000;
  }
  for (int left = 0; left < ranks; ++left)
    for (int came = 0; came < ranks; ++came) {
      const double slack =
          uncertainty[static_cast<std::size_t>(left)] + uncertainty[static_cast<std::size_t>(came)] + 0.002;
      CHECK(end_of(events(trace, left, "X", "barrier").at(0)) + slack >=
            begin_of(events(trace, came, "X", "barrier").at(0)));
      CHECK(begin_of(events(trace, left, "X", "barrier").at(0)) < static_cast<double>(hour) / 2000);
    }
}

TEST_CASE("the trace contains calls that fail") {
  distx::SelfConnector self;
  distx::Traced comm{distx::SerialCommunicator(self)};
  float value = 1;
  CHECK_THROWS_AS(distx::broadcast(comm, value, 1), distx::InvalidArgument);
  const auto contents = comm.timeline().contents();
  REQUIRE(contents.spans.size() == 1);
  CHECK(contents.spans[0].name == "broadcast");
  CHECK(contents.spans[0].end >= contents.spans[0].begin);
  comm.timeline().clear();
  CHECK(comm.timeline().contents().spans.empty());
  CHECK(comm.timeline().contents().tracks.size() == 1);
}

TEST_CASE("an empty trace is valid, and a trace that cannot be written throws the same error on every rank") {
  const File file;
  std::atomic<int> told{0};
  distx::spawn(3, [&](distx::ThreadConnector& connector) {
    distx::Traced comm{Threads(connector)};
    distx::observe::write_trace(file.path(), comm);
    const std::string nowhere = file.path() + "/no/such/folder.json";
    try {
      distx::observe::write_trace(nowhere, comm);
    } catch (const distx::BackendError& error) {
      const std::string words = error.what();
      if (words.find(nowhere) != std::string::npos && words.find("cannot be opened") != std::string::npos) ++told;
    }
    distx::barrier(comm);
  });
  CHECK(told == 3);
  check_balanced(file.parsed(), 3);
  CHECK(events(file.parsed(), 2, "M", "process_name").size() == 1);
}

TEST_CASE("json_string accepts any bytes") {
  for (int first = 0; first < 256; ++first)
    for (int second = 0; second < 256; ++second) {
      const std::string bytes{static_cast<char>(first), static_cast<char>(second), 'x'};
      const std::string text = json::parse(distx::detail::json_string(bytes));
      if (first < 0x80 && second < 0x80)
        CHECK(text == bytes);
      else
        CHECK(text.back() == 'x');
    }
  for (const std::string valid : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x9a\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"})
    CHECK(json::parse(distx::detail::json_string(valid)) == valid);
  // Cut off, overlong, a surrogate, beyond Unicode: one mark for each byte.
  for (const std::string bad : {"\xe2\x82", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    std::string marks;
    for (std::size_t i = 0; i < bad.size(); ++i) marks += "\xef\xbf\xbd";
    CHECK(json::parse(distx::detail::json_string(bad)) == marks);
  }
}

}  // namespace
