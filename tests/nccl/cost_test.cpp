// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The CUDA calls and allocations of distx's calls, counted by the stand-in for CUDA and NCCL.
#include <doctest/doctest.h>

#include <array>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "cuda/gate.hpp"
#include "distx/comm/any_communicator.hpp"
#include "distx/comm/detail/host_values.hpp"
#include "distx/nccl/detail/backend_definitions.hpp"
#include "nccl/ranks.hpp"
#include "standin/standin.hpp"

using distx::Cuda;
using nccl_test::on_gpu;
using nccl_test::on_host;
using nccl_test::on_ranks;

namespace {

struct Calls {
  std::size_t records = standin::calls("cudaEventRecord");
  std::size_t waits = standin::calls("cudaStreamWaitEvent");
  std::size_t events = standin::calls("cudaEventCreateWithFlags");
  std::size_t allocations = standin::calls("cudaMalloc") + standin::calls("cudaMallocHost") +
                            standin::calls("cudaMallocAsync") + standin::calls("cudaHostAlloc");
  std::size_t synchronizations = standin::calls("cudaStreamSynchronize") + standin::calls("cudaDeviceSynchronize") +
                                 standin::calls("cudaEventSynchronize");
};

/// Lists the objects alive, for the message of a failing check.
std::string alive() {
  const auto live = standin::live();
  std::string words;
  for (const auto& [name, count] :
       {std::pair("device allocations", live.device_allocations), std::pair("host allocations", live.host_allocations),
        std::pair("streams", live.streams), std::pair("events", live.events),
        std::pair("communicators", live.communicators), std::pair("windows", live.windows),
        std::pair("operators", live.operators)})
    words += std::to_string(count) + " " + name + " ";
  return words;
}

}  // namespace

TEST_CASE("a blocking call records one event, and none at one rank, and synchronizes no stream") {
  for (const std::size_t ranks : {1u, 2u}) {
    std::optional<Calls> before, after;
    on_ranks(static_cast<int>(ranks), [&](auto& connector) {
      distx::NcclCommunicator comm(connector);
      auto value = on_gpu(std::vector<float>(2, 1.0f));
      distx::all_reduce(comm, value, distx::sum);
      connector.barrier();
      if (connector.rank() == 0) before.emplace();
      connector.barrier();
      for (int i = 0; i < 10; ++i) distx::all_reduce(comm, value, distx::sum);
      connector.barrier();
      if (connector.rank() == 0) after.emplace();
      connector.barrier();
    });
    const std::size_t events = ranks == 1 ? 0 : 10 * ranks;
    CHECK(after->records - before->records == events);
    CHECK(after->waits - before->waits == events);
    CHECK(after->allocations == before->allocations);
    CHECK(after->synchronizations == before->synchronizations);
  }
}

TEST_CASE("all ranks reduce 8-bit floats by NCCL if every GPU can, else all on the host") {
  const auto reductions = [](int ranks, bool native, auto make) {
    std::size_t before = 0;
    on_ranks(ranks, [&](auto& connector) {
      auto comm = make(connector);
      connector.barrier();
      if (connector.rank() == 0) before = standin::calls("ncclAllReduce");
      connector.barrier();
      auto value = on_gpu(std::vector<distx::float8_e4m3>(2, distx::float8_e4m3(1.5f)));
      distx::all_reduce(comm, value, distx::sum);
      if (static_cast<float>(on_host(value)[1]) != 1.5f * static_cast<float>(comm.size()))
        throw std::runtime_error("wrong sum");
      connector.barrier();
    });
    CHECK(standin::calls("ncclAllReduce") - before == (native ? static_cast<std::size_t>(ranks) : 0));
  };
  const auto plain = [](auto& connector) { return distx::NcclCommunicator(connector); };
  const auto split = [](auto& connector) { return distx::NcclCommunicator(connector).split(0, 0); };
  const auto shrunk = [](auto& connector) { return distx::NcclCommunicator(connector).shrink({}); };
  const auto borrowed = [](auto& connector) {
    ncclUniqueId id{};
    if (connector.rank() == 0) static_cast<void>(ncclGetUniqueId(&id));
    id = distx::broadcast_value(connector, id, 0);
    ncclComm_t raw = nullptr;
    static_cast<void>(ncclCommInitRank(&raw, connector.size(), id, connector.rank()));
    auto comm = distx::NcclCommunicator::from_native_handle(raw);
    ncclCommDestroy(raw);
    return comm;
  };
  for (const bool native : {true, false}) {
    standin::compute_capability(1, native ? 90 : 89);
    reductions(2, native, plain);
    reductions(2, native, split);
    reductions(2, native, shrunk);
    reductions(2, native, borrowed);
  }
  standin::compute_capability(1, 90);
}

TEST_CASE("an asynchronous call records one event; two, with a wait, after another stream") {
  on_ranks(1, [](auto& connector) {
    distx::NcclCommunicator comm(connector);
    auto value = on_gpu(std::vector<float>(2, 1.0f));
    distx::start_all_reduce(comm, value, distx::sum).wait();
    const Calls before;
    distx::start_all_reduce(comm, value, distx::sum, comm.stream()).wait(comm.stream());
    const Calls own;
    CHECK(own.records == before.records + 1);
    CHECK(own.waits == before.waits);
    distx::start_all_reduce(comm, value, distx::sum).wait(distx::CudaStreamRef());
    const Calls other;
    CHECK(other.records == own.records + 2);
    CHECK(other.waits == own.waits + 2);
  });
}

TEST_CASE("an asynchronous call of a new shape is compared by one all_gather, later ones by none") {
  for (const bool compared : {true, false}) {
    std::array<std::size_t, 3> gathers{}, sends{};
    std::array<std::optional<Calls>, 3> counted;
    on_ranks(2, [&](auto& connector) {
      distx::NcclCommunicator comm(connector, {.check = compared ? distx::Check::first_use : distx::Check::off});
      auto values = on_gpu(std::vector<float>(10, 1.0f));
      for (std::size_t round = 0; round < gathers.size(); ++round) {
        connector.barrier();
        if (connector.rank() == 0) {
          gathers[round] = standin::calls("ncclAllGather");
          sends[round] = standin::calls("ncclSend");
          counted[round].emplace();
        }
        connector.barrier();
        distx::start_all_reduce(comm, values, distx::sum).wait();
        comm.rank() == 0 ? distx::send(comm, values, 1) : distx::receive(comm, values, 0);
      }
      connector.barrier();
    });
    CHECK(gathers[1] - gathers[0] == (compared ? 2 : 0));
    CHECK(gathers[2] - gathers[1] == 0);
    CHECK(sends[1] - sends[0] == (compared ? 2 : 1));
    CHECK(sends[2] - sends[1] == 1);
    CHECK(counted[1]->allocations == counted[0]->allocations);  // made with the communicator
    CHECK(counted[1]->synchronizations == counted[0]->synchronizations);
  }
}

TEST_CASE("nothing is allocated after the first call of a kind") {
  on_ranks(2, [](auto& connector) {
    distx::NcclCommunicator comm(connector);
    auto floats = on_gpu(std::vector<float>(1000, 1.0f));
    auto others = on_gpu(std::vector<float>(1000, 0.0f));
    auto shorts = on_gpu(std::vector<short>(1000, short{1}));
    const auto round = [&] {
      distx::all_reduce(comm, floats, distx::sum);
      distx::all_reduce(comm, shorts, distx::sum);
      distx::send_receive(comm, floats, 1 - comm.rank(), others, 1 - comm.rank());
      auto first = distx::start_all_reduce(comm, floats, distx::sum);
      auto second = distx::start_all_reduce(comm, shorts, distx::sum);
      second.wait();
      first.wait();
    };
    round();
    round();
    connector.barrier();
    const Calls before;
    connector.barrier();
    round();
    connector.barrier();
    const Calls after;
    connector.barrier();
    CHECK(after.allocations == before.allocations);
    CHECK(after.events == before.events);
  });
}

TEST_CASE("an asynchronous call that only the communicator's stream waits for makes few CUDA calls") {
  on_ranks(1, [](auto& connector) {
    distx::NcclCommunicator comm(connector);
    auto value = on_gpu(std::vector<float>(2, 1.0f));
    const auto bursts = [&] {
      for (int i = 0; i < 200; ++i) {
        distx::start_all_reduce(comm, value, distx::sum, comm.stream()).wait(comm.stream());
        if (i % 20 == 19) comm.stream().synchronize();
      }
    };
    const Calls first;
    bursts();
    const Calls before;
    CHECK(before.events - first.events <= 41);  // at most twice what is in flight
    const std::size_t cuda = standin::cuda_calls_here();
    bursts();
    // Four for each call, one for each burst, and few questions whether the GPU has done one.
    CHECK(standin::cuda_calls_here() - cuda <= 810 + 140);
  });
}

TEST_CASE("a call that was taken early and enqueued late is reused only after its own end") {
  namespace nccl = distx::nccl::detail;
  const distx::calls::RankOf self;
  const distx::NcclOptions options;
  nccl::RevocationState revocation(nullptr, 0, 0);
  std::mutex mutex;
  const distx::CudaStream stream;
  nccl::CommStream comm({}, stream, self, options, revocation, mutex);
  nccl::StreamCallPool pool;
  std::vector<nccl::StreamCall*> taken;
  for (int i = 0; i < 40; ++i) taken.push_back(&pool.take(distx::no_timeout));
  const auto enqueue = [&](nccl::StreamCall& call) {
    call.comm = &comm;
    comm.issued(call);
    call.holder = nccl::StreamCall::Holder::stream;
  };
  for (std::size_t i = 1; i < taken.size(); ++i) enqueue(*taken[i]);
  stream.synchronize();
  test::Gate gate(stream);
  enqueue(*taken[0]);
  std::set<const nccl::StreamCall*> reused;
  for (std::size_t i = 1; i < taken.size(); ++i) reused.insert(&pool.take(distx::no_timeout));
  CHECK(!reused.contains(taken[0]));
  CHECK(reused.contains(taken[1]));
}

TEST_CASE("a call that is started while others are in flight asks the GPU for one of them only") {
  on_ranks(1, [](auto& connector) {
    distx::NcclCommunicator comm(connector);
    const distx::CudaStream stream;
    auto value = on_gpu(std::vector<float>(2, 1.0f));
    test::Gate gate(stream);
    const auto start = [&] { distx::start_all_reduce(comm, value, distx::sum, stream).wait(stream); };
    for (int i = 0; i < 40; ++i) start();
    const std::size_t before = standin::calls_here("cudaEventQuery");
    start();
    CHECK(standin::calls_here("cudaEventQuery") <= before + 1);
    gate.open();
    stream.synchronize();
    const std::size_t events = standin::calls("cudaEventCreateWithFlags");
    start();
    CHECK(standin::calls("cudaEventCreateWithFlags") == events);
    stream.synchronize();
  });
}

TEST_CASE("work is ordered after another stream without events being made") {
  const distx::CudaStream first, second;
  distx::detail::order<Cuda>(first, second);
  const Calls before;
  for (int i = 0; i < 10; ++i) distx::detail::order<Cuda>(second, first);
  const Calls after;
  CHECK(after.records == before.records + 10);
  CHECK(after.waits == before.waits + 10);
  CHECK(after.events == before.events);
}

TEST_CASE("values of the host are reduced under the deadline, while the default stream waits") {
  on_ranks(2, [](auto& connector) {
    distx::AnyCommunicator<Cuda> comm(
        distx::NcclCommunicator(connector, {.deadline = std::chrono::milliseconds(300), .check = distx::Check::off}));
    const auto reduce = [&] {
      double value = comm.rank() + 1;
      distx::detail::all_reduce_values(comm, distx::Span<double>(&value, 1), distx::sum,
                                       std::source_location::current());
      return value;
    };
    CHECK(reduce() == 3);
    CHECK(reduce() == 3);
    test::Gate gate{distx::CudaStreamRef()};
    CHECK_THROWS_AS(reduce(), distx::Error);
  });
}

TEST_CASE("no thread makes a context on a GPU that no rank has") {
  standin::forget_contexts();
  distx::spawn(distx::threads(2, std::chrono::minutes(1)), [](auto& connector) {
    distx::cuda::set_device(connector.rank() + 1);
    distx::NcclCommunicator comm(connector);
    auto value = on_gpu(std::vector<float>(2, 1.0f));
    const distx::CudaStream stream;
    {
      // In flight until the watchdog has asked for it several times.
      test::Gate gate(stream);
      auto pending = distx::start_all_reduce(comm, value, distx::sum, stream);
      const std::size_t before = standin::calls("cudaEventQuery");
      while (standin::calls("cudaEventQuery") < before + 10) std::this_thread::yield();
      connector.barrier();
      gate.open();
      pending.wait();
    }
  });
  CHECK(standin::has_context(1));
  CHECK(standin::has_context(2));
  CHECK(!standin::has_context(0));
}

TEST_CASE("nothing stays allocated after communicators, revoked ones included, are destroyed") {
  const auto before = alive();
  on_ranks(3, [](auto& connector) {
    distx::NcclCommunicator comm(connector);
    auto part = comm.split(comm.rank() % 2, 0);
    auto memory = comm.template allocate<float>(100);
    distx::all_reduce(comm, memory, distx::PreMultipliedSum{2});
    auto shorts = on_gpu(std::vector<short>(1000, short{1}));
    distx::start_all_reduce(comm, shorts, distx::sum).wait(distx::CudaStreamRef());
    distx::start_all_reduce(part, shorts, distx::sum).wait();
  });
  CHECK(alive() == before);
  on_ranks(2, [](auto& connector) {
    distx::NcclCommunicator comm(connector);
    auto memory = comm.template allocate<float>(100);
    connector.barrier();
    comm.revoke("a test");
  });
  CHECK(alive() == before);
  CHECK(standin::overruns() == 0);
}
