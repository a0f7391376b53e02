// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Properties of NcclCommunicator beyond the conformance suite.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <set>

#include "distx/comm/any_communicator.hpp"
#include "distx/comm/decorators/metered.hpp"
#include "distx/comm/decorators/traced.hpp"
#include "distx/connect/detail/product.hpp"
#include "distx/nccl/detail/datatypes.hpp"
#include "nccl/ranks.hpp"

using distx::Cuda;
using nccl_test::on_gpu;
using nccl_test::on_host;
using nccl_test::on_ranks;
using test::message_thrown;

namespace {

constexpr distx::ErrorContext nowhere{};

/// Two ranks, or one where there is one GPU: what `f` finds wrong is thrown.
int some_ranks() { return distx::cuda::device_count() >= 3 ? 3 : 1; }

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

}  // namespace

TEST_CASE("NcclOptions set the fields of ncclConfig_t, and shared resources are refused") {
  const auto plain = distx::nccl::detail::config_of({}, false, nowhere);
  CHECK(plain.blocking == 0);
  CHECK(plain.minCTAs == NCCL_CONFIG_UNDEF_INT);
  CHECK(plain.commName == nullptr);
  const distx::NcclOptions options{.name = "ring",
                                   .net_name = "Socket",
                                   .min_ctas = 2,
                                   .max_ctas = 4,
                                   .cga_cluster_size = 1,
                                   .traffic_class = 7,
                                   .collnet_enable = 0,
                                   .cta_policy = 1,
                                   .nvls_ctas = 8,
                                   .channels_per_net_peer = 3,
                                   .nvlink_centric_sched = 1};
  const auto config = distx::nccl::detail::config_of(options, true, nowhere);
  CHECK(config.blocking == 1);
  CHECK(std::string(config.commName) == "ring");
  CHECK(std::string(config.netName) == "Socket");
  CHECK(config.minCTAs == 2);
  CHECK(config.maxCTAs == 4);
  CHECK(config.cgaClusterSize == 1);
  CHECK(config.splitShare == NCCL_CONFIG_UNDEF_INT);
  CHECK(setenv("NCCL_COMM_SPLIT_SHARE_RESOURCES", "1", 1) == 0);
  const auto words =
      message_thrown<distx::InvalidArgument>([] { (void)distx::nccl::detail::config_of({}, false, nowhere); });
  CHECK(unsetenv("NCCL_COMM_SPLIT_SHARE_RESOURCES") == 0);
  CHECK(words.find("NCCL_COMM_SPLIT_SHARE_RESOURCES is 1: ") != std::string::npos);
  CHECK(config.trafficClass == 7);
  CHECK(config.collnetEnable == 0);
  CHECK(config.CTAPolicy == 1);
  CHECK(config.nvlsCTAs == 8);
  CHECK(config.nChannelsPerNetPeer == 3);
  CHECK(config.nvlinkCentricSched == 1);
}

TEST_CASE("one hardware queue for all streams is refused") {
  CHECK(setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1) == 0);
  const auto words =
      message_thrown<distx::InvalidArgument>([] { (void)distx::nccl::detail::config_of({}, false, nowhere); });
  CHECK(unsetenv("CUDA_DEVICE_MAX_CONNECTIONS") == 0);
  CHECK(words.find("set 8 to 32") != std::string::npos);
}

TEST_CASE("the error for two ranks on one GPU says what to do") {
  const auto words =
      distx::nccl::detail::advice_for("Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000");
  CHECK(words.find("pick_device(connector)") != std::string::npos);
  CHECK(distx::nccl::detail::advice_for("something else").empty());
}

TEST_CASE("averages and pre-multiplied sums are right in every floating type") {
  on_ranks(some_ranks(), [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20)});
    const float ranks = static_cast<float>(comm.size());
    auto values = on_gpu(std::vector<float>(100, static_cast<float>(comm.rank() + 1)));
    distx::all_reduce(comm, values, distx::average);
    const float mean = (ranks + 1) / 2;
    expect(std::abs(on_host(values)[99] - mean) < 1e-5f, "average");
    auto halves = on_gpu(std::vector<distx::bfloat16>(100, distx::bfloat16(2.0f)));
    distx::all_reduce(comm, halves, distx::PreMultipliedSum{0.25});
    expect(static_cast<float>(on_host(halves)[7]) == 0.5f * ranks, "pre-multiplied sum of bfloat16");
    auto doubles = on_gpu(std::vector<double>(10, 3.0));
    distx::all_reduce(comm, doubles, distx::PreMultipliedSum{0.5});
    expect(on_host(doubles)[3] == 1.5 * comm.size(), "pre-multiplied sum of double");
  });
}

namespace {

/// Every op on one type of 8-bit floats; 16 + 1 is 16 in either, however often.
template <class T>
void check_float8(distx::NcclCommunicator& comm, bool once) {
  const float ranks = static_cast<float>(comm.size());
  const auto of = [&](auto op) {
    auto values = on_gpu(std::vector<T>(100, T(comm.rank() == 0 ? 16.0f : 1.0f)));
    distx::all_reduce(comm, values, op);
    return static_cast<float>(on_host(values)[99]);
  };
  const auto is = [&](float got, float wanted, const std::string& what) {
    expect(got == wanted, what + " of " + std::string(name_of(distx::element_type<T>)) + ": " + std::to_string(got));
  };
  is(of(distx::max), 16, "max");
  is(of(distx::min), comm.size() == 1 ? 16 : 1, "min");
  is(of(distx::product), 16, "product");
  if (once) is(of(distx::sum), T(15 + ranks), "sum");
  if (once) is(of(distx::average), T((15 + ranks) / ranks), "average");
  auto values = on_gpu(std::vector<T>(100, T(2.0f)));
  distx::all_reduce(comm, values, distx::PreMultipliedSum{0.25});
  is(on_host(values)[7], 0.5f * ranks, "pre-multiplied sum");
  values = on_gpu(std::vector<T>(100, T(2.0f)));
  distx::start_all_reduce(comm, values, distx::average).wait();
  expect(std::abs(static_cast<float>(on_host(values)[50]) - 2) <= 0.5f, "average");
}

}  // namespace

TEST_CASE("every op reduces 8-bit floats, with either rounding, also at one rank") {
  for (const int ranks : std::set{1, some_ranks()})
    for (const auto rounding : {distx::NcclRounding::native, distx::NcclRounding::once})
      on_ranks(ranks, [&](auto& connector) {
        const bool once = rounding == distx::NcclRounding::once;
        distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20), .rounding = rounding});
        check_float8<distx::float8_e4m3>(comm, once);
        check_float8<distx::float8_e5m2>(comm, once);
      });
}

namespace {

enum class OlderDataType { ncclInt8 };
using distx::ElementType;
using distx::NcclRounding;

/// Whether NCCL itself does it.
template <class T, class Op>
bool native(Op op, NcclRounding rounding, int capability, int ranks = 2) {
  return distx::nccl::detail::native_reduction(distx::calls::AnyOp::make<T>(op), rounding, capability, ranks)
      .has_value();
}

}  // namespace

TEST_CASE("8-bit floats are reduced on the host if NCCL or a GPU does not have them, or NCCL refuses them") {
  using distx::float8_e4m3;
  CHECK(distx::nccl::detail::float8_of<ncclDataType_t>(ElementType::f8e5m2) == ncclFloat8e5m2);
  CHECK(!distx::nccl::detail::float8_of<OlderDataType>(ElementType::f8e5m2));
  CHECK(!distx::nccl::detail::datatype_of(ElementType::i16));
  CHECK(native<float8_e4m3>(distx::sum, NcclRounding::native, 90));
  CHECK(native<float8_e4m3>(distx::average, NcclRounding::native, 100));
  CHECK(native<float8_e4m3>(distx::max, NcclRounding::once, 90));
  CHECK(!native<float8_e4m3>(distx::product, NcclRounding::once, 90));
  CHECK(!native<float8_e4m3>(distx::max, NcclRounding::native, 89));
  CHECK(native<distx::bfloat16>(distx::sum, NcclRounding::native, 80));
  CHECK(native<float8_e4m3>(distx::sum, NcclRounding::native, 90, 1));
  CHECK(!native<distx::float8_e5m2>(distx::PreMultipliedSum{0.5}, NcclRounding::native, 90, 1));
}

TEST_CASE("NCCL multiplies no operand of one rank") {
  using distx::bfloat16;
  for (const auto rounding : {NcclRounding::native, NcclRounding::once}) {
    CHECK(distx::nccl::detail::native_reduction(distx::calls::AnyOp::make<bfloat16>(distx::average), rounding, 90, 1)
              ->op == ncclSum);
    CHECK(!native<bfloat16>(distx::PreMultipliedSum{0.5}, rounding, 80, 1));
  }
  CHECK(distx::nccl::detail::native_reduction(distx::calls::AnyOp::make<float>(distx::average), NcclRounding::native,
                                              90, 2)
            ->op == ncclAvg);
  on_ranks(1, [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20)});
    for (const std::size_t count : {1U, 4100U, 21125U, 1000003U}) {
      const auto values = on_gpu(std::vector<float>(count, 3.0f));
      const auto averages = on_gpu(std::vector<float>(count, 0.0f));
      distx::all_reduce(comm, values, averages, distx::average);
      expect(on_host(averages) == std::vector<float>(count, 3.0f), "average of " + std::to_string(count));
      distx::all_reduce(comm, averages, distx::PreMultipliedSum{0.5});
      expect(on_host(averages) == std::vector<float>(count, 1.5f), "pre-multiplied sum of " + std::to_string(count));
    }
  });
}

TEST_CASE("a pre-multiplied sum multiplies the sum on other backends") {
  const auto op = distx::calls::AnyOp::make<float>(distx::PreMultipliedSum{0.5});
  const float a = 3, b = 5;
  float result = 0;
  void* const target = &result;
  const void* const sources[] = {&a, &b};
  op.reduce(&target, 1, sources, 2, 1, 2);
  CHECK(result == 4);
  CHECK(op.target<distx::PreMultipliedSum>()->factor == 0.5);
  CHECK(!op.target<distx::Sum>());
  CHECK(!distx::ReductionOp<distx::PreMultipliedSum, int>);
}

TEST_CASE("a stream may be destroyed once an asynchronous call that begins after it is started") {
  on_ranks(some_ranks(), [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20)});
    auto values = on_gpu(std::vector<float>(1000, 1.0f));
    std::optional<distx::CudaStream> stream(std::in_place);
    auto first = distx::start_all_reduce(comm, values, distx::sum, *stream);
    stream.reset();
    first.wait();
    stream.emplace();
    {
      auto second = distx::start_all_reduce(comm, values, distx::max, *stream);
      stream.reset();
      second.wait(distx::CudaStreamRef());
    }
    expect(on_host(values)[999] == static_cast<float>(comm.size()), "a call after a destroyed stream");
  });
}

TEST_CASE("asynchronous calls keep the order of streams, and the host waits for none") {
  on_ranks(some_ranks(), [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20)});
    constexpr std::size_t size = 1 << 16;
    const distx::CudaStream before, after;
    for (int round = 0; round < 20; ++round) {
      distx::Buffer<float, Cuda> values(size), result(size);
      const std::vector<float> ones(size, static_cast<float>(round + 1));
      distx::cuda::PinnedBuffer<float> host(size), got(size);
      std::copy(ones.begin(), ones.end(), host.begin());
      distx::copy(before, values.span(), host.span());  // nobody waits for this
      auto pending = distx::start_all_reduce(comm, values, distx::sum, before);
      pending.wait(after);  // nor for that
      distx::copy(after, got.span(), values.span());
      after.synchronize();
      expect(got[0] == static_cast<float>((round + 1) * comm.size()) && got[size - 1] == got[0], "order of streams");
    }
  });
}

TEST_CASE("ranks of one process can reach each other's stream-ordered buffers") {
  on_ranks(some_ranks(), [](auto& connector) {
    distx::NcclCommunicator comm(connector);
    const distx::CudaStream stream;
    const distx::Buffer<float, Cuda> sums(1 << 20, stream);
    distx::start_all_reduce(comm, sums, distx::sum, stream).wait(stream);
    stream.synchronize();
    expect(on_host(sums) == std::vector<float>(1 << 20), "the sum of zeros");
  });
}

TEST_CASE("blocking calls run after the legacy default stream, or NcclOptions::stream") {
  on_ranks(some_ranks(), [](auto& connector) {
    const distx::CudaStream own;
    distx::NcclCommunicator comm(connector), on_own(connector, {.stream = own.ref()});
    expect(on_own.stream() == own.ref(), "the stream of the options");
    distx::cuda::PinnedBuffer<float> host(1000);
    for (int round = 1; round < 20; ++round) {
      distx::Buffer<float, Cuda> values(1000);
      std::fill(host.begin(), host.end(), static_cast<float>(round));
      distx::copy(distx::CudaStreamRef(), values.span(), host.span());
      distx::all_reduce(comm, values, distx::sum);
      expect(on_host(values)[999] == static_cast<float>(round * comm.size()), "after the default stream");
      distx::copy(own, values.span(), host.span());
      distx::all_reduce(on_own, values, distx::sum);
      expect(on_host(values)[999] == static_cast<float>(round * comm.size()), "after the options' stream");
    }
  });
}

TEST_CASE("messages pass each other and a barrier, in a group and outside; tags are refused") {
  on_ranks(some_ranks(), [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20)});
    const int right = (comm.rank() + 1) % comm.size(), left = (comm.rank() + comm.size() - 1) % comm.size();
    const auto mine = on_gpu(std::vector<int>(1000, comm.rank()));
    distx::Buffer<int, Cuda> got(1000), sums(1000);
    std::optional<distx::Pending<distx::Cuda>> sent, received, summed;
    {
      const distx::NcclGroup group;
      const distx::NcclGroup nested;
      received = distx::start_receive(comm, got, left);
      sent = distx::start_send(comm, mine, right);
      expect(!sent->test(), "a call in a group is not done");
    }
    received->wait();
    sent->wait();
    expect(on_host(got)[999] == left, "in a group");
    auto posted = distx::start_receive(comm, got, left);  // and the others' collective passes it
    distx::barrier(comm);
    distx::send(comm, mine, right);
    posted.wait();
    expect(on_host(got)[0] == left, "a receive before a barrier");
    connector.barrier();  // since the first error is everybody's
    const auto words = message_thrown<distx::Error>([&] { distx::send(comm, mine, right, 3); });
    expect(words.find("NCCL has no tags") != std::string::npos, "tag: " + words);
  });
}

TEST_CASE("test() finds that empty messages, and messages that a group has begun, are done" *
          nccl_test::needs_gpus(2)) {
  on_ranks(2, [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(5)});
    const int peer = 1 - comm.rank();
    const auto comes_true = [](auto& pending) {
      return distx::detail::wait_until(
                 std::chrono::seconds(5), [&] { return pending.test(); }, [] { return false; }) ==
             distx::detail::WaitEnd::ready;
    };
    const distx::Buffer<int, Cuda> nothing(0);
    distx::Buffer<int, Cuda> none(0), got(1000), sums(1000);
    auto empty = distx::start_send_receive(comm, nothing, peer, none, peer);
    expect(comes_true(empty), "a message of nothing");
    const auto mine = on_gpu(std::vector<int>(1000, comm.rank()));
    auto received = distx::start_receive(comm, got, peer);
    auto sent = distx::start_send(comm, mine, peer);
    std::optional<distx::Pending<distx::Cuda>> summed;
    {
      const distx::NcclGroup group;
      summed = distx::start_all_reduce(comm, mine, sums, distx::sum);
    }
    summed->wait();
    expect(comes_true(received) && comes_true(sent), "messages that a group has begun");
    received.wait();
    expect(on_host(got)[999] == peer, "what was received");
  });
}

TEST_CASE("messages can be connected later, by a collective call" * nccl_test::needs_gpus(2)) {
  on_ranks(2, [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20), .connect_messages = false});
    distx::NcclCommunicator connected(connector, {.deadline = std::chrono::seconds(20), .connect_messages = false});
    connected.connect_messages();
    auto message = on_gpu(std::vector<int>(10, connected.rank()));
    if (connected.rank() == 0) distx::send(connected, message, 1);
    if (connected.rank() == 1) distx::receive(connected, message, 0);
    expect(on_host(message)[9] == 0, "what was received");
    connector.barrier();
    const auto words = message_thrown<distx::Error>([&] { distx::send(comm, message, 1 - comm.rank()); });
    expect(words.find("connect_messages") != std::string::npos, words);
  });
}

TEST_CASE("one thread can start the calls of several GPUs in a group") {
  const int ranks = some_ranks();
  std::vector<std::optional<distx::NcclCommunicator>> comms(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](auto& connector) {
    comms[static_cast<std::size_t>(connector.rank())].emplace(connector, distx::NcclOptions{});
  });
  std::vector<distx::Buffer<float, Cuda>> values;
  std::vector<distx::Pending<distx::Cuda>> pendings;
  for (const auto& comm : comms) {
    const distx::cuda::DeviceGuard guard(comm->device());
    values.push_back(on_gpu(std::vector<float>(10, 1.0f)));
  }
  {
    const distx::NcclGroup group;
    for (std::size_t i = 0; i < comms.size(); ++i)
      pendings.push_back(distx::start_all_reduce(*comms[i], values[i], distx::sum));
  }
  for (auto& pending : pendings) pending.wait();
  for (const auto& value : values) CHECK(on_host(value)[9] == static_cast<float>(ranks));
  // They are finalized together, which takes a thread each.
  distx::spawn(distx::threads(ranks),
               [&](auto& connector) { comms[static_cast<std::size_t>(connector.rank())].reset(); });
}

TEST_CASE("a group rejects blocking calls, new communicators and waiting") {
  on_ranks(1, [](auto& connector) {
    distx::NcclCommunicator comm(connector), other(connector), third(connector), fourth(connector);
    distx::NcclCommunicator blocks(connector, {.blocking = true});
    distx::Buffer<short, Cuda> shorts(10);
    distx::Buffer<float, Cuda> floats(10);
    const distx::NcclGroup group;
    auto words = message_thrown<distx::InvalidState>([&] { distx::all_reduce(comm, floats, distx::sum); });
    expect(words.find("blocking call inside an NcclGroup") != std::string::npos, words);
    words = message_thrown<distx::InvalidState>([&] { (void)fourth.split(0, 0); });
    expect(words.find("blocking call inside an NcclGroup") != std::string::npos, words);
    words = message_thrown<distx::InvalidState>([&] { auto p = distx::start_all_reduce(other, shorts, distx::sum); });
    expect(words.find("outside the NcclGroup") != std::string::npos, words);
    words = message_thrown<distx::InvalidState>([&] { const distx::NcclCommunicator sixth(connector); });
    expect(words.find("cannot be made inside an NcclGroup") != std::string::npos, words);
    auto pending = distx::start_all_reduce(third, floats, distx::sum);
    words = message_thrown<distx::InvalidState>([&] { auto p = distx::start_all_reduce(blocks, floats, distx::sum); });
    expect(words.find("differ in NcclOptions::blocking") != std::string::npos, words);
    words = message_thrown<distx::InvalidState>([&] { pending.wait(); });
    expect(words.find("at the end of the group") != std::string::npos, words);
  });
}

TEST_CASE("from_native_handle leaves the caller's communicator usable, also after a revocation") {
  on_ranks(some_ranks(), [](auto& connector) {
    ncclUniqueId id{};
    if (connector.rank() == 0) expect(ncclGetUniqueId(&id) == ncclSuccess, "id");
    id = distx::broadcast_value(connector, id, 0);
    ncclComm_t raw = nullptr;
    expect(ncclCommInitRank(&raw, connector.size(), id, connector.rank()) == ncclSuccess, "init");
    auto values = on_gpu(std::vector<float>(10, 1.0f));
    {
      auto comm = distx::NcclCommunicator::from_native_handle(raw);
      expect(comm.rank() == connector.rank() && comm.size() == connector.size(), "ranks");
      expect(comm.native_handle() != raw, "another handle");
      distx::all_reduce(comm, values, distx::sum);
      comm.revoke("done");  // does not touch the caller's
    }
    expect(ncclAllReduce(values.data(), values.data(), 10, ncclFloat32, ncclSum, raw, nullptr) == ncclSuccess, "raw");
    const float expected = static_cast<float>(connector.size() * connector.size());
    expect(on_host(values)[0] == expected, "raw all_reduce");
    connector.barrier();
    ncclCommDestroy(raw);
  });
  CHECK_THROWS_AS(static_cast<void>(distx::NcclCommunicator::from_native_handle(nullptr)), distx::InvalidArgument);
}

TEST_CASE("allocate returns zeros, and rejects sizes that differ or do not fit") {
  on_ranks(some_ranks(), [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20)});
    distx::CommunicatorMemory<float, Cuda> memory;
    {
      auto again = comm.share();
      memory = again.allocate<float>(1000);
    }
    expect(on_host(memory.span()) == std::vector<float>(1000, 0.0f), "zeros");
    distx::all_reduce(comm, memory, distx::sum);
    expect(comm.allocate<double>(0).size() == 0, "nothing");
    // Released while only a stream waits for the call.
    const distx::CudaStream stream;
    auto used = comm.allocate<float>(100000);
    distx::start_all_reduce(comm, used, distx::sum, stream).wait(stream);
    used = {};
    if (comm.size() == 1) return;
    const auto words = message_thrown<distx::Error>([&] { (void)comm.allocate<float>(comm.rank() == 1 ? 5u : 6u); });
    expect(words.find("asks for") != std::string::npos || words.find("revoked") != std::string::npos, words);
  });
  on_ranks(1, [](auto& connector) {
    distx::NcclCommunicator comm(connector);
    const auto words = message_thrown<distx::MemoryError>([&] { (void)comm.allocate<float>(std::size_t{1} << 44); });
    expect(words.find("no GPU memory for 70368744177664 bytes") != std::string::npos, words);
  });
}

TEST_CASE("AnyCommunicator and decorators give the same results") {
  on_ranks(some_ranks(), [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20)});
    auto values = on_gpu(std::vector<float>(64, 1.0f));
    distx::AnyCommunicator<Cuda> any(comm.share());
    distx::all_reduce(any, values, distx::sum);
    auto pending = distx::start_all_reduce(any, values, distx::max);
    pending.wait();
    distx::Metered metered(comm.share());
    distx::all_reduce(metered, values, distx::max);
    distx::Traced traced(comm.share());
    auto started = distx::start_broadcast(traced, values, 0);
    started.wait(distx::CudaStreamRef());
    expect(on_host(values)[63] == static_cast<float>(comm.size()), "sum");
    expect(comm == comm.share(), "handles");
  });
}

namespace {

struct Throws {
  template <class T>
  T operator()(T, T) const {
    throw std::domain_error("no sum");
  }
};

}  // namespace

TEST_CASE("wait throws what a custom op threw, and the communicator is revoked" * nccl_test::needs_gpus(2)) {
  std::atomic<int> thrown{0};
  on_ranks(2, [&](auto& connector) {
    for (const bool blocking : {true, false}) {
      distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20)});
      auto values = on_gpu(std::vector<float>(64, 1.0f));
      try {
        if (blocking)
          distx::all_reduce(comm, values, Throws{});
        else
          distx::start_all_reduce(comm, values, Throws{}).wait();
      } catch (const std::domain_error&) {
        ++thrown;
      } catch (const distx::RevokedError&) {
        ++thrown;  // the other rank was first
      }
      connector.barrier();
      expect(!message_thrown<distx::RevokedError>([&] { distx::barrier(comm); }).empty(), "revoked");
      connector.barrier();
    }
  });
  CHECK(thrown == 4);
}

TEST_CASE("a product of connectors gives one communicator") {
  distx::SelfConnector outer;
  distx::spawn(distx::threads(some_ranks()) * outer, [&](auto& connector) {
    distx::cuda::pick_device(connector);
    distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20)});
    auto values = on_gpu(std::vector<float>(64, 1.0f));
    distx::all_reduce(comm, values, distx::sum);
    expect(on_host(values)[0] == static_cast<float>(comm.size()), "sum");
  });
}

TEST_CASE("NcclOptions::blocking gives the same results") {
  on_ranks(some_ranks(), [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.blocking = true});
    auto values = on_gpu(std::vector<float>(64, 1.0f));
    distx::all_reduce(comm, values, distx::sum);
    auto part = comm.split(comm.rank() % 2, 0);
    distx::start_all_reduce(part, values, distx::sum).wait();
    expect(on_host(values)[0] == static_cast<float>(comm.size() * part.size()), "sum");
  });
}

TEST_CASE("shrink without a failure waits for the calls in flight" * nccl_test::needs_gpus(3)) {
  on_ranks(3, [](auto& connector) {
    distx::NcclCommunicator comm(connector, {.deadline = std::chrono::seconds(20)});
    expect(!message_thrown<distx::InvalidArgument>([&] { (void)comm.shrink({7}); }).empty(), "no such rank");
    expect(!message_thrown<distx::InvalidArgument>([&] { (void)comm.shrink({comm.rank()}); }).empty(), "this rank");
    // The last rank to come does its part of these while the others make a smaller communicator already.
    auto under_way = on_gpu(std::vector<float>(64, 1.0f));
    std::vector<distx::Pending<distx::Cuda>> pending;
    if (comm.rank() == 1) connector.barrier();
    for (int i = 0; i < 50; ++i) pending.push_back(distx::start_all_reduce(comm, under_way, distx::max));
    if (comm.rank() != 1) {
      connector.barrier();
      auto smaller = comm.shrink({1});
      expect(std::ranges::all_of(pending, [](auto& call) { return call.test(); }), "what was under way is done");
      expect(smaller.size() == 2 && smaller.rank() == comm.rank() / 2, "ranks");
      auto values = on_gpu(std::vector<float>(64, 1.0f));
      distx::all_reduce(smaller, values, distx::sum);
      expect(on_host(values)[0] == 2.0f, "sum of those that stay");
    }
    connector.barrier();
  });
}
