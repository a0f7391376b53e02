// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <nccl.h>

#include <atomic>
#include <chrono>

#include "standin/arrays.hpp"
#include "standin/standin.hpp"

using namespace standin;

namespace {

constexpr int rank_counts[] = {1, 2, 3, 4, 7};

/// One rank of a communicator.
class Rank {
 public:
  Rank(const ncclUniqueId& id, int ranks, int number, bool blocking = true) : rank(number), size(ranks) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    const ncclResult_t code = ncclCommInitRankConfig(&comm, size, id, rank, &config);
    CHECK(code == (blocking ? ncclSuccess : ncclInProgress));
    settle();
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ~Rank() {
    if (comm != nullptr) CHECK(ncclCommDestroy(comm) == ncclSuccess);
  }

  /// Connects what operations of the tests need, so that none of them waits for another rank.
  void connect() const {
    const Array<int> array(2 * static_cast<std::size_t>(size));
    const auto* const from = array.data();
    auto* const to = array.data() + size;
    REQUIRE(ncclAllReduce(from, to, 1, ncclInt32, ncclSum, comm, stream) == ncclSuccess);
    REQUIRE(ncclBroadcast(from, to, 1, ncclInt32, 0, comm, stream) == ncclSuccess);
    REQUIRE(ncclAlltoAll(from, to, 1, ncclInt32, comm, stream) == ncclSuccess);
    stream.synchronize();
  }
  /// Waits until the communicator is no longer in progress.
  ncclResult_t settle() const {
    ncclResult_t code = ncclInProgress;
    while (code == ncclInProgress) {
      REQUIRE(ncclCommGetAsyncError(comm, &code) == ncclSuccess);
      std::this_thread::yield();
    }
    return code;
  }

  const int rank;
  const int size;
  ncclComm_t comm = nullptr;
  OwnStream stream;
};

/// Runs a function as each rank of a communicator.
void with_ranks(int size, const std::function<void(Rank&)>& run) {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  as_ranks(size, [&](int rank) {
    Rank self(id, size, rank);
    self.connect();
    run(self);
  });
}

/// Rank r's element i.
int given(int rank, std::size_t i) { return 100 * (rank + 1) + static_cast<int>(i); }
std::vector<int> all_given(int rank, std::size_t count) {
  std::vector<int> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = given(rank, i);
  return values;
}

/// Waits until something holds, or much too long.
bool soon(const std::function<bool()>& holds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds())
    if (std::chrono::steady_clock::now() > end) return false;
  return true;
}

constexpr std::size_t count = 13;
const auto counted = [](int size) { return count * static_cast<std::size_t>(size); };

}  // namespace

TEST_CASE("every collective gives what plain loops give") {
  const Live before = live();
  for (const int size : rank_counts)
    with_ranks(size, [&](Rank& self) {
      const auto ranks = static_cast<std::size_t>(size);
      const auto me = static_cast<std::size_t>(self.rank);
      const int root = size - 1;
      const Array<int> send(all_given(self.rank, counted(size)));
      const Array<int> receive(counted(size));
      int expected[4] = {};  // sum, product, greatest, least of element 1
      expected[1] = 1;
      expected[3] = given(0, 1);
      unsigned product = 1;
      for (int rank = 0; rank < size; ++rank) {
        expected[0] += given(rank, 1);
        product *= static_cast<unsigned>(given(rank, 1));
        expected[2] = given(rank, 1);
      }
      expected[1] = static_cast<int>(product);
      const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin};
      for (int op = 0; op < 4; ++op) {
        CHECK(ncclAllReduce(send.data(), receive.data(), count, ncclInt32, ops[op], self.comm, self.stream) ==
              ncclSuccess);
        self.stream.synchronize();
        CHECK(receive.download()[1] == expected[op]);
      }
      CHECK(ncclAllReduce(send.data(), receive.data(), count, ncclInt32, ncclAvg, self.comm, self.stream) ==
            ncclSuccess);
      self.stream.synchronize();
      CHECK(receive.download()[1] == expected[0] / size);

      receive.upload(std::vector<int>(counted(size), -1));
      CHECK(ncclReduce(send.data(), receive.data(), count, ncclInt32, ncclSum, root, self.comm, self.stream) ==
            ncclSuccess);
      self.stream.synchronize();
      CHECK(receive.download()[1] == (self.rank == root ? expected[0] : -1));

      CHECK(ncclBroadcast(send.data(), receive.data(), count, ncclInt32, root, self.comm, self.stream) == ncclSuccess);
      self.stream.synchronize();
      CHECK(receive.download()[count - 1] == given(root, count - 1));

      CHECK(ncclAllGather(send.data(), receive.data(), count, ncclInt32, self.comm, self.stream) == ncclSuccess);
      self.stream.synchronize();
      auto got = receive.download();
      for (std::size_t from = 0; from < ranks; ++from) CHECK(got[from * count + 2] == given(static_cast<int>(from), 2));

      CHECK(ncclReduceScatter(send.data(), receive.data(), count, ncclInt32, ncclSum, self.comm, self.stream) ==
            ncclSuccess);
      self.stream.synchronize();
      int sum = 0;
      for (int from = 0; from < size; ++from) sum += given(from, me * count + 3);
      CHECK(receive.download()[3] == sum);

      CHECK(ncclAlltoAll(send.data(), receive.data(), count, ncclInt32, self.comm, self.stream) == ncclSuccess);
      self.stream.synchronize();
      got = receive.download();
      for (std::size_t from = 0; from < ranks; ++from)
        CHECK(got[from * count + 4] == given(static_cast<int>(from), me * count + 4));

      receive.upload(std::vector<int>(counted(size), -1));
      CHECK(ncclGather(send.data(), receive.data(), count, ncclInt32, root, self.comm, self.stream) == ncclSuccess);
      self.stream.synchronize();
      got = receive.download();
      for (std::size_t from = 0; from < ranks; ++from)
        CHECK(got[from * count + 5] == (self.rank == root ? given(static_cast<int>(from), 5) : -1));

      CHECK(ncclScatter(send.data(), receive.data(), count, ncclInt32, root, self.comm, self.stream) == ncclSuccess);
      self.stream.synchronize();
      CHECK(receive.download()[6] == given(root, me * count + 6));

      // In place.
      const Array<int> both(all_given(self.rank, counted(size)));
      CHECK(ncclReduceScatter(both.data(), both.data() + me * count, count, ncclInt32, ncclSum, self.comm,
                              self.stream) == ncclSuccess);
      CHECK(ncclAllGather(both.data() + me * count, both.data(), count, ncclInt32, self.comm, self.stream) ==
            ncclSuccess);
      self.stream.synchronize();
      got = both.download();
      for (std::size_t i = 0; i < got.size(); ++i) {
        sum = 0;
        for (int from = 0; from < size; ++from) sum += given(from, i);
        CHECK(got[i] == sum);
      }
    });
  REQUIRE(soon([&] { return live() == before; }));
}

TEST_CASE("small types are rounded at every rank, averages and scaled sums multiply first") {
  with_ranks(3, [](Rank& self) {
    const auto halves = array_of<__nv_bfloat16>({__nv_bfloat16(self.rank == 0 ? 256.0F : 1.0F)});
    CHECK(ncclAllReduce(halves.data(), halves.data(), 1, ncclBfloat16, ncclSum, self.comm, self.stream) == ncclSuccess);
    self.stream.synchronize();
    CHECK(static_cast<float>(halves.download()[0]) == 256.0F);  // no bfloat16 equals 257
    const auto numbers = array_of<float>({static_cast<float>(self.rank)});
    CHECK(ncclAllReduce(numbers.data(), numbers.data(), 1, ncclFloat32, ncclAvg, self.comm, self.stream) ==
          ncclSuccess);
    self.stream.synchronize();
    CHECK(numbers.download()[0] == doctest::Approx(1));
    ncclRedOp_t scaled = ncclSum;
    float factor = static_cast<float>(self.rank + 1);
    REQUIRE(ncclRedOpCreatePreMulSum(&scaled, &factor, ncclFloat32, ncclScalarHostImmediate, self.comm) == ncclSuccess);
    numbers.upload({2.0F});
    CHECK(ncclAllReduce(numbers.data(), numbers.data(), 1, ncclFloat64, scaled, self.comm, self.stream) ==
          ncclInvalidArgument);
    CHECK(ncclAllReduce(numbers.data(), numbers.data(), 1, ncclFloat32, scaled, self.comm, self.stream) == ncclSuccess);
    CHECK(ncclRedOpDestroy(scaled, self.comm) == ncclSuccess);
    CHECK(ncclRedOpDestroy(scaled, self.comm) == ncclInvalidArgument);
    self.stream.synchronize();
    CHECK(numbers.download()[0] == 12.0F);
    const auto of_device = array_of<float>({10.0F});
    REQUIRE(ncclRedOpCreatePreMulSum(&scaled, of_device.data(), ncclFloat32, ncclScalarDevice, self.comm) ==
            ncclSuccess);
    numbers.upload({1.0F});
    CHECK(ncclAllReduce(numbers.data(), numbers.data(), 1, ncclFloat32, scaled, self.comm, self.stream) == ncclSuccess);
    CHECK(ncclRedOpDestroy(scaled, self.comm) == ncclSuccess);
    self.stream.synchronize();
    CHECK(numbers.download()[0] == 30.0F);
  });
}

TEST_CASE("8-bit floats are reduced like the small types, on GPUs of compute capability 9.0, as NCCL does") {
  with_ranks(3, [](Rank& self) {
    const auto sums = array_of<__nv_fp8_e4m3>({__nv_fp8_e4m3(self.rank == 0 ? 16.0F : 1.0F)});
    CHECK(ncclAllReduce(sums.data(), sums.data(), 1, ncclFloat8e4m3, ncclSum, self.comm, self.stream) == ncclSuccess);
    const auto largest = array_of<__nv_fp8_e5m2>({__nv_fp8_e5m2(static_cast<float>(self.rank))});
    CHECK(ncclAllReduce(largest.data(), largest.data(), 1, ncclFloat8e5m2, ncclMax, self.comm, self.stream) ==
          ncclSuccess);
    self.stream.synchronize();
    CHECK(static_cast<float>(sums.download()[0]) == 16.0F);  // 17 is no such float
    CHECK(static_cast<float>(largest.download()[0]) == 2.0F);
  });
  with_ranks(1, [](Rank& self) {  // of one rank NCCL multiplies no 8-bit floats
    const auto one = array_of<__nv_fp8_e5m2>({__nv_fp8_e5m2(1.0F)});
    const auto reduced = [&](ncclRedOp_t op) {
      return ncclAllReduce(one.data(), one.data(), 1, ncclFloat8e5m2, op, self.comm, self.stream);
    };
    CHECK(reduced(ncclSum) == ncclSuccess);
    CHECK(reduced(ncclAvg) == ncclInvalidArgument);
    const __nv_fp8_e5m2 factor(0.5F);
    ncclRedOp_t scaled = ncclNumOps;
    REQUIRE(ncclRedOpCreatePreMulSum(&scaled, const_cast<__nv_fp8_e5m2*>(&factor), ncclFloat8e5m2,
                                     ncclScalarHostImmediate, self.comm) == ncclSuccess);
    CHECK(reduced(scaled) == ncclInvalidArgument);
    CHECK(ncclRedOpDestroy(scaled, self.comm) == ncclSuccess);
    self.stream.synchronize();
  });
  compute_capability(1, 89);  // the second rank's
  with_ranks(2, [](Rank& self) {
    const auto one = array_of<__nv_fp8_e4m3>({__nv_fp8_e4m3(1.0F)});
    CHECK(ncclAllReduce(one.data(), one.data(), 1, ncclFloat8e4m3, ncclSum, self.comm, self.stream) ==
          ncclInvalidArgument);
    CHECK(ncclBroadcast(one.data(), one.data(), 1, ncclFloat8e4m3, 0, self.comm, self.stream) == ncclSuccess);
    self.stream.synchronize();
  });
  compute_capability(1, 90);
}

TEST_CASE("messages go round in a group, and one by one in order") {
  for (const int size : rank_counts)
    with_ranks(size, [&](Rank& self) {
      const int next = (self.rank + 1) % size;
      const int before = (self.rank + size - 1) % size;
      const Array<int> send(all_given(self.rank, count));
      const Array<int> receive(count);
      REQUIRE(ncclGroupStart() == ncclSuccess);
      REQUIRE(ncclGroupStart() == ncclSuccess);  // one in the other
      CHECK(ncclSend(send.data(), count, ncclInt32, next, self.comm, self.stream) == ncclSuccess);
      REQUIRE(ncclGroupEnd() == ncclSuccess);
      CHECK(cudaStreamQuery(self.stream) == cudaSuccess);  // nothing is enqueued before the end
      CHECK(ncclRecv(receive.data(), count, ncclInt32, before, self.comm, self.stream) == ncclSuccess);
      REQUIRE(ncclGroupEnd() == ncclSuccess);
      self.stream.synchronize();
      CHECK(receive.download() == all_given(before, count));
      if (size == 1) return;
      for (std::size_t i = 0; i < 3; ++i) {
        if (self.rank == 0) CHECK(ncclSend(send.data() + i, 1, ncclInt32, 1, self.comm, self.stream) == ncclSuccess);
        if (self.rank == 1) CHECK(ncclRecv(receive.data() + i, 1, ncclInt32, 0, self.comm, self.stream) == ncclSuccess);
      }
      self.stream.synchronize();
      if (self.rank == 1) CHECK(receive.download()[2] == given(0, 2));
    });
  CHECK(ncclGroupEnd() == ncclInvalidUsage);
}

TEST_CASE("an error in a group is returned at its end, and nothing of it starts") {
  with_ranks(1, [](Rank& self) {
    const Array<int> array(count);
    std::vector<int> host(count);
    REQUIRE(ncclGroupStart() == ncclSuccess);
    CHECK(ncclAllReduce(array.data(), array.data(), count, ncclInt32, ncclSum, self.comm, self.stream) == ncclSuccess);
    CHECK(ncclAllReduce(host.data(), array.data(), count, ncclInt32, ncclSum, self.comm, self.stream) ==
          ncclInvalidArgument);
    CHECK(ncclGroupEnd() == ncclInvalidArgument);
    CHECK(std::string(ncclGetLastError(self.comm)).find("invalid argument") != std::string::npos);
    CHECK(ncclAllReduce(array.data(), array.data(), count + 1, ncclInt32, ncclSum, self.comm, self.stream) ==
          ncclInvalidArgument);
    CHECK(ncclAllReduce(array.data(), array.data(), 0, ncclInt32, ncclSum, self.comm, self.stream) == ncclSuccess);
    CHECK(ncclBroadcast(array.data(), array.data(), 1, ncclInt32, 1, self.comm, self.stream) == ncclInvalidArgument);
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    {
      const OwnStream other;
      CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, self.comm, other) ==
            ncclUnhandledCudaError);
    }
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
  });
}

TEST_CASE("ranks on one GPU are refused, and ids nobody gave out") {
  ncclUniqueId id{};
  ncclComm_t comm = nullptr;
  CHECK(ncclCommInitRank(&comm, 1, id, 0) == ncclSystemError);
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  CHECK(ncclCommInitRank(&comm, 1, id, 1) == ncclInvalidArgument);
  as_ranks(2, [&](int rank) {
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    ncclComm_t mine = nullptr;
    CHECK(ncclCommInitRank(&mine, 2, id, rank) == ncclInvalidUsage);
    CHECK(mine == nullptr);
  });
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.magic = 0;
  CHECK(ncclCommInitRankConfig(&comm, 1, id, 0, &config) == ncclInvalidArgument);
}

TEST_CASE("communicators that do not block are in progress until all have come, and when they first connect") {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::atomic<bool> may_come{false};
  as_ranks(2, [&](int rank) {
    if (rank == 1) may_come.wait(false);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    CHECK(ncclCommInitRankConfig(&comm, 2, id, rank, &config) == ncclInProgress);
    ncclResult_t code = ncclSuccess;
    if (rank == 0) {
      CHECK(ncclCommGetAsyncError(comm, &code) == ncclSuccess);
      CHECK(code == ncclInProgress);
      int size = 0;
      CHECK(ncclCommCount(comm, &size) == ncclInvalidArgument);  // not yet
      may_come = true;
      may_come.notify_all();
    }
    const auto settled = [&] {
      REQUIRE(ncclCommGetAsyncError(comm, &code) == ncclSuccess);
      return code == ncclSuccess;
    };
    CHECK(soon(settled));
    const OwnStream stream;
    const OwnEvent event;
    const auto array = array_of<int>({1});
    CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, comm, stream) == ncclInProgress);
    // Too early: nothing is enqueued yet.
    REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
    CHECK(cudaEventSynchronize(event) == cudaSuccess);
    CHECK(soon(settled));
    stream.synchronize();
    CHECK(array.download()[0] == 2);
    CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, comm, stream) == ncclInProgress);
    CHECK(soon(settled));
    stream.synchronize();
    CHECK(array.download()[0] == 4);
    CHECK(ncclCommFinalize(comm) == ncclInProgress);
    CHECK(soon(settled));
    CHECK(ncclCommDestroy(comm) == ncclSuccess);
    CHECK(ncclCommDestroy(comm) == ncclInvalidArgument);
  });
}

TEST_CASE("communicators split by color and key, and shrink") {
  for (const int size : {2, 3, 4, 7})
    with_ranks(size, [&](Rank& self) {
      ncclComm_t part = nullptr;
      const bool out = self.rank == 1;
      REQUIRE(ncclCommSplit(self.comm, out ? NCCL_SPLIT_NOCOLOR : self.rank % 2, -self.rank, &part, nullptr) ==
              ncclSuccess);
      CHECK((part == nullptr) == out);
      if (!out) {
        int ranks = 0;
        int rank = -1;
        CHECK(ncclCommCount(part, &ranks) == ncclSuccess);
        CHECK(ncclCommUserRank(part, &rank) == ncclSuccess);
        CHECK(ranks == (self.rank % 2 == 0 ? (size + 1) / 2 : size / 2 - 1));
        CHECK(rank == (self.rank % 2 == 0 ? ranks - 1 - self.rank / 2 : ranks - self.rank / 2));
        const auto array = array_of<int>({1});
        CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, part, self.stream) == ncclSuccess);
        self.stream.synchronize();
        CHECK(array.download()[0] == ranks);
        CHECK(ncclCommDestroy(part) == ncclSuccess);
      }
      int gone[] = {0};
      if (self.rank == 0) {
        CHECK(ncclCommShrink(self.comm, gone, 1, &part, nullptr, NCCL_SHRINK_DEFAULT) == ncclInvalidArgument);
        return;
      }
      REQUIRE(ncclCommShrink(self.comm, gone, 1, &part, nullptr, NCCL_SHRINK_DEFAULT) == ncclSuccess);
      int rank = -1;
      CHECK(ncclCommUserRank(part, &rank) == ncclSuccess);
      CHECK(rank == self.rank - 1);
      CHECK(ncclCommDestroy(part) == ncclSuccess);
    });
}

TEST_CASE("an abort ends what waits at its rank, and the others wait for theirs") {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::atomic<bool> aborted{false};
  as_ranks(3, [&](int rank) {
    Rank self(id, 3, rank);
    self.connect();
    const auto array = array_of<int>({rank + 1});
    if (rank < 2)
      CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, self.comm, self.stream) == ncclSuccess);
    CHECK(cudaStreamQuery(self.stream) == (rank < 2 ? cudaErrorNotReady : cudaSuccess));
    if (rank == 1) aborted.wait(false);
    CHECK(cudaStreamQuery(self.stream) == (rank < 2 ? cudaErrorNotReady : cudaSuccess));
    CHECK(ncclCommAbort(std::exchange(self.comm, nullptr)) == ncclSuccess);
    self.stream.synchronize();
    if (rank == 0) {
      aborted = true;
      aborted.notify_all();
    }
    CHECK(array.download()[0] == rank + 1);
    static_cast<void>(cudaGetLastError());
  });
}

TEST_CASE("collectives that do not agree wait indefinitely, and so do those of a missing rank or one with an error") {
  for (const int kind : {0, 1, 2}) {
    never_arrives(1, false);
    with_ranks(2, [&](Rank& self) {
      const Array<int> array(2);
      if (self.rank == 1) never_arrives(1, kind == 1);
      if (kind == 2) async_error(self.comm, ncclRemoteError);
      const std::size_t number = kind == 0 && self.rank == 1 ? 2 : 1;
      const ncclResult_t code =
          ncclAllReduce(array.data(), array.data(), number, ncclInt32, ncclSum, self.comm, self.stream);
      CHECK(code == (kind == 2 ? ncclRemoteError : ncclSuccess));
      linger();
      if (kind != 2) CHECK(cudaStreamQuery(self.stream) == cudaErrorNotReady);
      ncclResult_t state = ncclInProgress;
      CHECK(ncclCommGetAsyncError(self.comm, &state) == ncclSuccess);
      CHECK(state == (kind == 2 ? ncclRemoteError : ncclSuccess));
      CHECK(ncclCommAbort(std::exchange(self.comm, nullptr)) == ncclSuccess);
      self.stream.synchronize();
      static_cast<void>(cudaGetLastError());
    });
  }
  never_arrives(1, false);
}

TEST_CASE("the first use of an algorithm holds the caller until every rank makes the same call") {
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::atomic<bool> entered{false}, returned{false};
  as_ranks(2, [&](int rank) {
    const Rank self(id, 2, rank);
    const Array<int> array(1);
    for (const bool first : {true, false}) {
      if (rank == 1) {
        while (!entered) std::this_thread::yield();
        linger();
        CHECK(returned == !first);
      } else {
        entered = true;
      }
      CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, self.comm, self.stream) == ncclSuccess);
      if (rank == 0) returned = true;
      self.stream.synchronize();
      if (rank == 0 && first) entered = returned = false;
      REQUIRE(ncclBroadcast(array.data(), array.data(), 1, ncclInt32, 0, self.comm, self.stream) == ncclSuccess);
      self.stream.synchronize();
    }
  });
}

TEST_CASE("first messages of two ranks fail, or wait, where the groups of both do not mirror each other") {
  enum class Program { send_and_receive_alone, a_group_and_a_receive, three_ranks };
  for (const auto program : {Program::send_and_receive_alone, Program::a_group_and_a_receive, Program::three_ranks}) {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    const int size = program == Program::three_ranks ? 3 : 2;
    as_ranks(size, [&](int rank) {
      Rank self(id, size, rank, false);
      const Array<int> array(static_cast<std::size_t>(size));
      const auto grouped = [&](std::initializer_list<int> sends, std::initializer_list<int> receives) {
        REQUIRE(ncclGroupStart() == ncclSuccess);
        for (const int to : sends)
          CHECK(ncclSend(array.data(), 1, ncclInt32, to, self.comm, self.stream) == ncclSuccess);
        for (const int from : receives)
          CHECK(ncclRecv(array.data() + from, 1, ncclInt32, from, self.comm, self.stream) == ncclSuccess);
        CHECK(ncclGroupEnd() == ncclInProgress);
      };
      if (program == Program::three_ranks) {
        // MPI completes this program; here each rank waits for another's next call.
        if (rank == 0) grouped({1, 2}, {});
        if (rank == 1) grouped({}, {0});
        if (rank == 2) grouped({}, {1});
        linger();
        ncclResult_t state = ncclSuccess;
        CHECK(ncclCommGetAsyncError(self.comm, &state) == ncclSuccess);
        CHECK(state == ncclInProgress);
      } else {
        if (program == Program::send_and_receive_alone || rank == 0)
          grouped({1 - rank}, {});
        else
          grouped({0}, {0});
        CHECK(self.settle() == ncclInternalError);
        CHECK(std::string(ncclGetLastError(self.comm)).find("Message truncated") != std::string::npos);
      }
      CHECK(ncclCommAbort(std::exchange(self.comm, nullptr)) == ncclSuccess);
    });
  }
}

TEST_CASE("a communicator in whose traffic a peer died cannot be shrunk, and one without traffic can") {
  with_ranks(3, [](Rank& self) {
    ncclComm_t spare = nullptr, smaller = nullptr;
    REQUIRE(ncclCommSplit(self.comm, 0, self.rank, &spare, nullptr) == ncclSuccess);
    int gone[] = {2};
    if (self.rank != 2) {
      async_error(self.rank, ncclRemoteError);
      CHECK(ncclCommShrink(self.comm, gone, 1, &smaller, nullptr, NCCL_SHRINK_ABORT) == ncclRemoteError);
      REQUIRE(ncclCommShrink(spare, gone, 1, &smaller, nullptr, NCCL_SHRINK_ABORT) == ncclSuccess);
      CHECK(ncclCommAbort(smaller) == ncclSuccess);
    }
    CHECK(ncclCommAbort(spare) == ncclSuccess);
    CHECK(ncclCommAbort(std::exchange(self.comm, nullptr)) == ncclSuccess);
  });
}

TEST_CASE("a revoked communicator does nothing any more, and can be shrunk") {
  with_ranks(3, [](Rank& self) {
    const auto array = array_of<int>({1});
    if (self.rank == 0) {
      CHECK(ncclCommAbort(std::exchange(self.comm, nullptr)) == ncclSuccess);
      return;
    }
    CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, self.comm, self.stream) == ncclSuccess);
    CHECK(ncclCommRevoke(self.comm, NCCL_REVOKE_DEFAULT) == ncclSuccess);
    self.stream.synchronize();
    CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, self.comm, self.stream) == ncclInvalidUsage);
    CHECK(ncclCommFinalize(self.comm) == ncclInvalidUsage);
    int gone[] = {0};
    ncclComm_t part = nullptr;
    REQUIRE(ncclCommShrink(self.comm, gone, 1, &part, nullptr, NCCL_SHRINK_ABORT) == ncclSuccess);
    CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, part, self.stream) == ncclSuccess);
    self.stream.synchronize();
    CHECK(array.download()[0] == 2);
    CHECK(ncclCommDestroy(part) == ncclSuccess);
  });
}

TEST_CASE("memory of NCCL is registered by all ranks, and counted") {
  const Live before = live();
  with_ranks(2, [](Rank& self) {
    void* memory = nullptr;
    REQUIRE(ncclMemAlloc(&memory, 100) == ncclSuccess);
    ncclWindow_t window = nullptr;
    REQUIRE(ncclCommWindowRegister(self.comm, memory, 100, &window, NCCL_WIN_COLL_SYMMETRIC) == ncclSuccess);
    CHECK(window != nullptr);
    const Array<int> array(1);
    ncclWindow_t none = nullptr;
    CHECK(ncclCommWindowRegister(self.comm, array.data() + 1, 4, &none, 0) == ncclInvalidArgument);
    CHECK(live().windows >= 1);
    CHECK(ncclCommWindowDeregister(self.comm, window) == ncclSuccess);
    CHECK(ncclCommWindowDeregister(self.comm, window) == ncclInvalidArgument);
    CHECK(ncclMemFree(memory) == ncclSuccess);
    CHECK(ncclMemFree(memory) == ncclInvalidArgument);
  });
  REQUIRE(soon([&] { return live() == before; }));
}

TEST_CASE("operations of one communicator keep their order on all streams, and wait for their own stream's work") {
  with_ranks(2, [](Rank& self) {
    const OwnStream other;
    const auto array = array_of<int>({1});
    for (int turn = 0; turn < 20; ++turn) {
      const cudaStream_t stream = turn % 2 == 0 ? self.stream : other;
      CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, self.comm, stream) == ncclSuccess);
    }
    self.stream.synchronize();
    other.synchronize();
    CHECK(array.download()[0] == 1 << 20);
    REQUIRE(cudaMemsetAsync(array.data(), 1, sizeof(int), self.stream) == cudaSuccess);
    CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, self.comm, self.stream) == ncclSuccess);
    self.stream.synchronize();
    CHECK(array.download()[0] == 0x02020202);
  });
}

TEST_CASE("a captured collective runs as often as it is launched") {
  with_ranks(2, [](Rank& self) {
    const auto array = array_of<int>({1});
    self.stream.synchronize();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t instance = nullptr;
    REQUIRE(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, self.comm, self.stream) == ncclSuccess);
    REQUIRE(cudaStreamEndCapture(self.stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&instance, graph, 0) == cudaSuccess);
    for (int turn = 0; turn < 3; ++turn) REQUIRE(cudaGraphLaunch(instance, self.stream) == cudaSuccess);
    self.stream.synchronize();
    CHECK(array.download()[0] == 8);
    CHECK(cudaGraphExecDestroy(instance) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  });
}

TEST_CASE("a communicator is aborted only after the graphs that have calls of it are destroyed") {
  with_ranks(1, [](Rank& self) {
    const auto array = array_of<int>({1});
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(ncclAllReduce(array.data(), array.data(), 1, ncclInt32, ncclSum, self.comm, self.stream) == ncclSuccess);
    REQUIRE(cudaStreamEndCapture(self.stream, &graph) == cudaSuccess);
    std::atomic<bool> destroyed{false};
    const std::size_t aborts_before = calls("ncclCommAbort");
    bool waited = false;
    std::thread aborts([&, comm = std::exchange(self.comm, nullptr)] {
      CHECK(ncclCommAbort(comm) == ncclSuccess);
      waited = destroyed;
    });
    while (calls("ncclCommAbort") == aborts_before) std::this_thread::yield();
    destroyed = true;
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    aborts.join();
    CHECK(waited);
  });
}
