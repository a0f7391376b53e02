// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The flight recorder's files, read as a program reads them.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "distx/comm/hierarchical.hpp"
#include "distx/distx.hpp"
#include "distx/observe/flight_recorder.hpp"
#include "forked_process.hpp"

namespace {

using nlohmann::json;
using Threads = distx::ThreadCommunicator;

/// A folder for the files of a test; the recorder's settings are reset at the end.
class Records {
 public:
  Records() {
    std::string name = (std::filesystem::temp_directory_path() / "distx-flight-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()) != nullptr);
    folder_ = name;
  }
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;
  ~Records() {
    distx::flight::configure({});
    std::error_code ignored;  // a folder that stays in /tmp does not fail the test
    std::filesystem::remove_all(folder_, ignored);
  }
  [[nodiscard]] std::string folder() const { return folder_.string(); }
  [[nodiscard]] bool has(int rank) const { return std::filesystem::exists(path(rank)); }
  [[nodiscard]] json of(int rank) const { return json::parse(std::ifstream(path(rank))); }
  void clear() const {
    for (const auto& file : std::filesystem::directory_iterator(folder_)) std::filesystem::remove(file);
  }

 private:
  [[nodiscard]] std::filesystem::path path(int rank) const {
    return folder_ / ("flight_rank_" + std::to_string(rank) + ".json");
  }
  std::filesystem::path folder_;
};

/// Runs `f(comm)` on thread ranks that end together.
template <class F>
void on_ranks(int ranks, F f) {
  distx::spawn(distx::threads(ranks, std::chrono::minutes(1)), [&](distx::ThreadConnector& connector) {
    Threads comm(connector, std::chrono::minutes(1));
    f(comm);
    connector.barrier();
  });
}

std::vector<std::string> operations(const json& record) {
  std::vector<std::string> all;
  for (const auto& call : record.at("calls")) all.push_back(call.at("operation"));
  return all;
}

}  // namespace

TEST_CASE("a flight record contains each rank's calls, their callers and their labels") {
  const Records records;
  constexpr auto line = __LINE__ + 4;
  on_ranks(3, [&](Threads& comm) {
    std::vector<float> values(5, 1.0f), all(15);
    const distx::flight::Label step({.step = 7, .phase = "a phase longer than fifteen bytes"});
    distx::reduce(comm, values, values, distx::max, 2);
    {
      const distx::flight::Label parameter({.bucket = 3, .parameter = "head.weight"});
      distx::start_all_gather(comm, values, all).wait();
    }
    auto group = comm.split(comm.rank() == 1 ? 1 : 0, -comm.rank());
    distx::start_all_reduce(group, values, distx::max).wait();
    distx::send_receive(comm, values, (comm.rank() + 1) % 3, std::span(all).first(5), (comm.rank() + 2) % 3);
    if (comm.rank() == 0) distx::flight::write_record(records.folder());
    distx::barrier(comm);
  });
  for (int rank = 0; rank < 3; ++rank) {
    const json record = records.of(rank);
    CHECK(record.at("rank") == rank);
    CHECK(record.at("size") == 3);
    CHECK(record.at("error").is_null());
    const json& calls = record.at("calls");
    REQUIRE(calls.size() >= 4);
    const json& reduced = calls.at(0);
    CHECK(reduced.at("operation") == "reduce");
    CHECK(reduced.at("op") == "max");
    CHECK(reduced.at("root") == 2);
    CHECK(reduced.at("type") == "float32");
    CHECK(reduced.at("send_count") == 5);
    CHECK(reduced.at("queue") == "blocking");
    CHECK(reduced.at("call") == 1);
    CHECK(reduced.at("state") == "completed");
    CHECK(reduced.at("line") == line);
    CHECK(std::filesystem::path(reduced.at("file").get<std::string>()).filename() == "flight_recorder_test.cpp");
    CHECK(reduced.at("step") == 7);
    CHECK(reduced.at("phase") == "a phase longer ");
    CHECK_FALSE(reduced.contains("bucket"));
    const json& gathered = calls.at(1);
    CHECK(gathered.at("operation") == "all_gather");
    CHECK(gathered.at("queue") == "asynchronous");
    CHECK(gathered.at("receive_count") == 15);
    CHECK(gathered.at("step") == 7);
    CHECK(gathered.at("bucket") == 3);
    CHECK(gathered.at("parameter") == "head.weight");
    CHECK(gathered.at("enqueued_ns") <= gathered.at("started_ns"));
    CHECK(gathered.at("started_ns") <= gathered.at("completed_ns"));
    CHECK(calls.at(2).at("operation") == "split");
    CHECK(calls.at(3).at("operation") == "all_reduce");
    CHECK(calls.at(3).at("group") == (rank == 1 ? "0/0.1" : "0/0.0"));
    CHECK(calls.at(3).at("size") == (rank == 1 ? 1 : 2));
    CHECK(record.at("groups").at(0).at("members") == std::vector<int>{0, 1, 2});
    CHECK(record.at("groups").at(1).at("members") == (rank == 1 ? std::vector<int>{1} : std::vector<int>{2, 0}));
  }
  const json message = records.of(0).at("calls").at(4);
  CHECK(message.at("operation") == "send_receive");
  CHECK(message.at("to") == 1);
  CHECK(message.at("from") == 2);
  CHECK(message.at("queue") == "messages");
}

TEST_CASE("a flight record keeps the last 1,000 calls") {
  const Records records;
  on_ranks(2, [&](Threads& comm) {
    int value = 1;
    for (int call = 0; call < 1500; ++call) distx::all_reduce(comm, std::span(&value, 1), distx::min);
    if (comm.rank() == 0) distx::flight::write_record(records.folder());
    distx::barrier(comm);
  });
  const json calls = records.of(1).at("calls");
  REQUIRE(calls.size() == 1000);
  CHECK(calls.front().at("call") >= 499);
  for (std::size_t i = 1; i < 1000; ++i) CHECK(calls.at(i).at("call") == calls.at(i - 1).at("call").get<int>() + 1);
  CHECK(calls.back().at("call") >= 1500);
}

TEST_CASE("an error writes every rank's flight record, with the error and the unfinished call") {
  const Records records;
  distx::flight::configure({.folder = records.folder()});
  std::atomic<int> thrown{0};
  on_ranks(3, [&](Threads& comm) {
    std::vector<double> values(2);
    distx::all_reduce(comm, values, distx::sum);
    try {
      if (comm.rank() == 1)
        distx::broadcast(comm, values, 0);
      else
        distx::all_reduce(comm, values, distx::sum);
    } catch (const distx::MismatchError&) {
      ++thrown;
    }
  });
  CHECK(thrown == 3);
  for (int rank = 0; rank < 3; ++rank) {
    const json record = records.of(rank);
    CHECK(operations(record) == std::vector<std::string>{"all_reduce", rank == 1 ? "broadcast" : "all_reduce"});
    CHECK(record.at("calls").at(0).at("state") == "completed");
    CHECK(record.at("calls").at(1).at("state") == "started");
    CHECK(record.at("error").get<std::string>().find(rank == 1 ? "calls all_reduce, this rank broadcast"
                                                               : "calls broadcast, this rank all_reduce") !=
          std::string::npos);
    CHECK(record.at("calls").at(1).at("in_group") == 2);
    // A call that never waited has no time.
    CHECK(record.at("calls").at(1).value("created_ns", 0L) >= record.at("calls").at(0).value("created_ns", 0L));
  }
}

TEST_CASE("an asynchronous call that fails is recorded as started") {
  const Records records;
  distx::flight::configure({.folder = records.folder()});
  on_ranks(2, [&](Threads& comm) {
    std::vector<double> values(comm.rank() == 0 ? 2u : 3u);
    auto pending = distx::start_all_reduce(comm, values, distx::sum);
    CHECK_THROWS_AS(pending.wait(), distx::MismatchError);
  });
  CHECK(records.of(0).at("calls").at(0).at("state") == "started");
  CHECK(records.of(1).at("calls").at(0).at("send_count") == 3);
}

TEST_CASE("nothing is recorded while the flight recorder is off") {
  const Records records;
  distx::flight::configure({.enabled = false});
  on_ranks(2, [&](Threads& comm) {
    distx::barrier(comm);
    distx::flight::write_record(records.folder());
    distx::barrier(comm);
  });
  CHECK_FALSE(records.has(0));
  CHECK_FALSE(records.has(1));
}

TEST_CASE("a record can be written while other threads make calls") {
  const Records records;
  on_ranks(3, [&](Threads& comm) {
    std::vector<int> values(4);
    for (int round = 0; round < 60; ++round) {
      for (int call = 0; call < 40; ++call) {
        const distx::flight::Label label({.step = round, .parameter = "values"});
        distx::all_reduce(comm, values, distx::sum);
      }
      if (comm.rank() == 2 && round % 10 == 0) distx::flight::write_record(records.folder());
    }
  });
  const json calls = records.of(0).at("calls");
  CHECK(calls.size() == 1000);
  for (const auto& call : calls) {
    CHECK(call.at("operation") == "all_reduce");
    CHECK(call.at("parameter") == "values");
    CHECK(call.at("send_count") == 4);
  }
}

TEST_CASE("calls that a hierarchical communicator makes inside are not recorded") {
  const Records records;
  distx::spawn(distx::threads(4, std::chrono::minutes(1)), [&](distx::ThreadConnector& connector) {
    distx::Hierarchical<Threads, Threads> comm(connector, std::chrono::minutes(1));
    std::vector<int> values(4);
    distx::all_reduce(comm, values, distx::sum);
    distx::start_all_reduce(comm, values, distx::sum).wait();
    distx::barrier(comm);
    if (comm.rank() == 0) distx::flight::write_record(records.folder());
    connector.barrier();
  });
  const json record = records.of(3);
  CHECK(record.at("size") == 4);
  int own = 0;
  for (const auto& call : record.at("calls"))
    if (call.at("file").get<std::string>().ends_with("flight_recorder_test.cpp")) ++own;
  CHECK(own == 3);
}

TEST_CASE("a communicator of one rank does not take the place of rank 0 in the flight record") {
  const Records records;
  on_ranks(1, [&](Threads& alone) { distx::start_barrier(alone).wait(); });
  distx::spawn(distx::threads(3, std::chrono::minutes(1)), [&](distx::ThreadConnector& connector) {
    distx::SelfConnector self;
    distx::SerialCommunicator alone(self);
    distx::start_barrier(alone).wait();
    Threads comm(connector, std::chrono::minutes(1));
    distx::barrier(comm);
    if (comm.rank() == 2) distx::flight::write_record(records.folder());
    connector.barrier();
  });
  for (int rank = 0; rank < 3; ++rank) {
    const json record = records.of(rank);
    CHECK(record.at("size") == 3);
    REQUIRE(record.at("calls").size() == 1);
    CHECK(record.at("calls").at(0).at("group") == "1");
    CHECK(record.at("calls").at(0).at("size") == 3);
  }
}

TEST_CASE("a blocking call of one rank, which waits for nobody, is not recorded") {
  const Records records;
  on_ranks(1, [&](Threads& alone) {
    distx::barrier(alone);
    distx::start_barrier(alone).wait();
    distx::flight::write_record(records.folder());
  });
  const json calls = records.of(0).at("calls");
  REQUIRE(calls.size() == 1);
  CHECK(calls.at(0).at("queue") == "asynchronous");
}

TEST_CASE("SIGUSR1 writes the flight record of a rank that is blocked") {
  const Records records;
  distx::flight::configure({.folder = records.folder(), .on_signal = true});
  on_ranks(2, [&](Threads& comm) {
    int value = 1;
    distx::all_reduce(comm, std::span(&value, 1), distx::sum);
    if (comm.rank() == 0) return distx::barrier(comm);
    // Rank 0 may not have entered the barrier when the first signal arrives.
    json calls;
    do {
      std::raise(SIGUSR1);
      const auto written = [&] { return records.has(0) && records.has(1); };
      REQUIRE(distx::detail::wait_until(std::chrono::minutes(1), written, [] { return false; }) ==
              distx::detail::WaitEnd::ready);
      calls = records.of(0).at("calls");
      records.clear();
    } while (calls.size() < 2);
    CHECK(calls.at(1).at("operation") == "barrier");
    CHECK(calls.at(1).at("state") == "started");
    distx::barrier(comm);
  });
}

TEST_CASE("writing a flight record throws if a file cannot be written") {
  const Records records;
  on_ranks(2, [&](Threads& comm) {
    distx::barrier(comm);
    CHECK_THROWS_WITH_AS(distx::flight::write_record(records.folder() + "/missing"),
                         doctest::Contains(".json': No such file or directory; name an existing"),  // of either rank
                         distx::BackendError);
    distx::barrier(comm);
  });
}

TEST_CASE("a training labels its communication with step, phase, bucket and parameter") {
  const Records records;
  on_ranks(2, [&](Threads& comm) {
    std::vector<float> weights(6), gradients(6), bias(2), bias_gradient(2);
    std::vector parameters{distx::ref("layer.weight", weights, gradients),
                           distx::ref("layer.bias", bias, bias_gradient)};
    distx::DataParallel<distx::ZeRO<1>> training(comm, parameters, distx::SGD{}, {.bucket_bytes = 8});
    for (int step = 0; step < 2; ++step) {
      training.ready(bias, weights);
      training.step({.learning_rate = 0.1});
    }
    if (comm.rank() == 0) distx::flight::write_record(records.folder());
    distx::barrier(comm);
  });
  std::set<std::string> reduced, gathered;
  const json calls = records.of(1).at("calls");
  for (const auto& call : calls) {
    if (!call.contains("bucket")) continue;
    const auto bucket = std::to_string(call.at("step").get<int>()) + " " +
                        std::to_string(call.at("bucket").get<int>()) + " " + call.at("parameter").get<std::string>();
    if (call.at("operation") == "reduce_scatter" && call.at("phase") == "reduce") reduced.insert(bucket);
    if (call.at("operation") == "all_gather" && call.at("phase") == "gather") gathered.insert(bucket);
  }
  const std::set<std::string> all{"0 0 layer.bias", "0 1 layer.weight", "1 0 layer.bias", "1 1 layer.weight"};
  CHECK(reduced == all);
  CHECK(gathered == all);
}

TEST_CASE("a forked process writes no record of its parent's ranks, and its own to a folder that it configures") {
  const Records records, own;
  distx::flight::configure({.folder = records.folder()});
  on_ranks(2, [&](Threads& comm) {
    distx::barrier(comm);
    if (comm.rank() == 0) {
      const int wrong = test::in_forked_process([&] {
        distx::flight::write_record(records.folder());
        comm.revoke("by a forked process");
        try {
          distx::barrier(comm);
        } catch (const distx::InvalidState&) {  // writes nothing, unlike an error of the rank
        }
        distx::flight::configure({.folder = own.folder()});
        on_ranks(2, [](Threads& its_own) { distx::barrier(its_own); });
        return records.has(0) || records.has(1) || !own.has(0) || !own.has(1) ? 1 : 0;
      });
      CHECK(wrong == 0);
    }
    distx::barrier(comm);
  });
  CHECK(records.of(0).at("calls").size() == 2);
}

TEST_CASE("a forked process records the calls of communicators that it makes") {
  const Records records;
  const auto two_barriers = [](Threads& comm) {
    distx::barrier(comm);
    distx::barrier(comm);
  };
  on_ranks(2, [](Threads& comm) { distx::barrier(comm); });  // so that this thread has records
  const int wrong = test::in_forked_process([&] {
    distx::flight::configure({.folder = records.folder()});
    on_ranks(2, two_barriers);
    return records.of(0).at("calls").size() == 2 && records.of(1).at("calls").size() == 2 ? 0 : 1;
  });
  CHECK(wrong == 0);
}
