// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "timing/nccl_table.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include <distx/comm/movement.hpp>
#include <distx/comm/point_to_point.hpp>
#include <distx/cuda.hpp>
#include <distx/nccl.hpp>
#include <distx/nccl/detail/handles.hpp>

namespace timing {

namespace {

using distx::Cuda;
using distx::Span;

/// Small integers, whose sums are exact; no power of two is a period of theirs, so blocks in the wrong place show.
constexpr std::size_t period = 61;
constexpr float value(int rank, std::size_t i) {
  return static_cast<float>((i % period + 5 * static_cast<std::size_t>(rank)) % 17);
}

struct Places {
  float* send;
  float* receive;
};

constexpr bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce || operation == Operation::reduce_scatter;
}
constexpr bool has_root(Operation operation) {
  return operation == Operation::reduce || operation == Operation::broadcast || operation == Operation::gather ||
         operation == Operation::scatter;
}
/// distx's broadcast has one buffer, and messages have two.
constexpr bool does(Operation operation, bool in_place) {
  return in_place ? operation != Operation::send_recv : operation != Operation::broadcast;
}
/// NCCL's own all-to-all has two buffers.
constexpr bool nccl_does(Operation operation, bool in_place) {
  return does(operation, in_place) && !(in_place && operation == Operation::all_to_all);
}

/// One kind of call, by distx: it is enqueued, and what is enqueued on the communicator's stream comes after it.
distx::Pending<distx::Cuda> start(distx::NcclCommunicator& comm, const Case& c, const Places& at) {
  const Span<const float, Cuda> send(at.send, c.sends());
  const Span<float, Cuda> receive(at.receive, c.receives());
  const auto after = comm.stream();
  switch (c.operation) {
    case Operation::all_reduce:
      return distx::start_all_reduce(comm, send, receive, distx::sum, after);
    case Operation::reduce:
      return distx::start_reduce(comm, send, receive, distx::sum, root, after);
    case Operation::broadcast:
      return distx::start_broadcast(comm, receive, root, after);
    case Operation::all_gather:
      return distx::start_all_gather(comm, send, receive, {}, after);
    case Operation::reduce_scatter:
      return distx::start_reduce_scatter(comm, send, receive, distx::sum, {}, after);
    case Operation::gather:
      return distx::start_gather(comm, send, receive, root, {}, after);
    case Operation::scatter:
      return distx::start_scatter(comm, send, receive, root, {}, after);
    case Operation::all_to_all:
      return distx::start_all_to_all(comm, send, receive, {}, {}, after);
    case Operation::send_recv:
      break;
  }
  return distx::start_send_receive(comm, send, c.to(), receive, c.from(), 0, after);
}

void check(ncclResult_t code, const char* routine) {
  distx::nccl::detail::check(code, routine, {.operation = "NCCL itself", .backend = "nccl"});
}

/// Block for block by messages, as NCCL had it to be done before 2.28: `sends` and `receives` elements with each rank.
struct Exchange {
  const float* from;
  std::size_t sends, send_stride;
  float* to;
  std::size_t receives, receive_stride;
};
[[maybe_unused]] void exchange(ncclComm_t comm, cudaStream_t stream, const Case& c, const Exchange& e) {
  check(ncclGroupStart(), "ncclGroupStart");
  for (int other = 0; other < c.ranks; ++other) {
    const auto r = static_cast<std::size_t>(other);
    const bool to_root = other == root, from_root = c.rank == root;
    if (c.operation != Operation::gather ? c.operation == Operation::all_to_all || from_root : to_root)
      check(ncclSend(e.from + r * e.send_stride, e.sends, ncclFloat, other, comm, stream), "ncclSend");
    if (c.operation != Operation::gather ? c.operation == Operation::all_to_all || to_root : from_root)
      check(ncclRecv(e.to + r * e.receive_stride, e.receives, ncclFloat, other, comm, stream), "ncclRecv");
  }
  check(ncclGroupEnd(), "ncclGroupEnd");
}

/// The same call, by NCCL itself.
void enqueue(ncclComm_t comm, cudaStream_t stream, const Case& c, const Places& at) {
  const std::size_t block = c.block();
  switch (c.operation) {
    case Operation::all_reduce:
      return check(ncclAllReduce(at.send, at.receive, c.whole, ncclFloat, ncclSum, comm, stream), "ncclAllReduce");
    case Operation::reduce:
      return check(ncclReduce(at.send, at.receive, c.whole, ncclFloat, ncclSum, root, comm, stream), "ncclReduce");
    case Operation::broadcast:
      return check(ncclBroadcast(at.send, at.receive, c.whole, ncclFloat, root, comm, stream), "ncclBroadcast");
    case Operation::all_gather:
      return check(ncclAllGather(at.send, at.receive, block, ncclFloat, comm, stream), "ncclAllGather");
    case Operation::reduce_scatter:
      return check(ncclReduceScatter(at.send, at.receive, block, ncclFloat, ncclSum, comm, stream),
                   "ncclReduceScatter");
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
    case Operation::gather:
      return check(ncclGather(at.send, at.receive, block, ncclFloat, root, comm, stream), "ncclGather");
    case Operation::scatter:
      return check(ncclScatter(at.send, at.receive, block, ncclFloat, root, comm, stream), "ncclScatter");
    case Operation::all_to_all:
      return check(ncclAlltoAll(at.send, at.receive, block, ncclFloat, comm, stream), "ncclAlltoAll");
#else
    case Operation::gather:
      return exchange(comm, stream, c, {at.send, block, 0, at.receive, block, block});
    case Operation::scatter:
      return exchange(comm, stream, c, {at.send, block, block, at.receive, block, 0});
    case Operation::all_to_all:
      return exchange(comm, stream, c, {at.send, block, block, at.receive, block, block});
#endif
    case Operation::send_recv:
      break;
  }
  check(ncclGroupStart(), "ncclGroupStart");
  check(ncclSend(at.send, c.whole, ncclFloat, c.to(), comm, stream), "ncclSend");
  check(ncclRecv(at.receive, c.whole, ncclFloat, c.from(), comm, stream), "ncclRecv");
  check(ncclGroupEnd(), "ncclGroupEnd");
}

/// What element `i` of this rank's result must be.
class Expected {
 public:
  explicit Expected(int ranks) {
    for (std::size_t i = 0; i < period; ++i)
      for (int rank = 0; rank < ranks; ++rank) sums_[i] += value(rank, i);
  }
  [[nodiscard]] float at(const Case& c, std::size_t i) const {
    const std::size_t block = c.block(), own = static_cast<std::size_t>(c.rank) * block;
    switch (c.operation) {
      case Operation::all_reduce:
      case Operation::reduce:
        return sums_[i % period];
      case Operation::reduce_scatter:
        return sums_[(own + i) % period];
      case Operation::broadcast:
        return value(root, i);
      case Operation::scatter:
        return value(root, own + i);
      case Operation::all_gather:
      case Operation::gather:
        return value(static_cast<int>(i / block), i % block);
      case Operation::all_to_all:
        return value(static_cast<int>(i / block), own + i % block);
      case Operation::send_recv:
        break;
    }
    return value(c.from(), i);
  }

 private:
  std::array<float, period> sums_{};
};

/// Half a line of the table.
struct Half {
  double seconds = 0, nccl_seconds = 0, ratio = 0;
  double wrong = 0, nccl_wrong = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Table {
 public:
  Table(distx::AnyConnector& connector, const NcclTable& how)
      : how_(how),
        comm_(connector, {.stream = stream_.ref(), .blocking = true}),  // as the one of NCCL that it is compared with
        expected_(comm_.size()),
        send_(static_cast<std::size_t>(how.most / sizeof(float))),
        receive_(send_.size()) {
    // One that blocks, as NCCL makes them where nothing else is asked for.
    ncclUniqueId id{};
    if (comm_.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    id = distx::broadcast_value(connector, id, 0);
    ncclComm_t plain = nullptr;
    check(ncclCommInitRank(&plain, comm_.size(), id, comm_.rank()), "ncclCommInitRank");
    plain_ = distx::nccl::detail::nccl_unique_comm::from_native_handle(plain);
  }

  /// @return how many elements were wrong, on all ranks, by distx and by NCCL itself
  double print() {
    if (comm_.rank() == 0) print_head();
    double wrong = 0;
    for (const Operation operation : how_.operations) {
      if (comm_.rank() == 0) print_columns(operation);
      for (std::uint64_t bytes = how_.least; bytes <= how_.most; bytes *= how_.factor) {
        Case c{operation, false, nccl_tests_whole(operation, bytes, comm_.size()), comm_.rank(), comm_.size()};
        if (c.whole == 0) continue;
        std::array<std::optional<Half>, 2> halves;
        for (const bool in_place : {false, true}) {
          if (!does(operation, in_place)) continue;
          c.in_place = in_place;
          halves[in_place ? 1 : 0] = measured(c);
          wrong += halves[in_place ? 1 : 0]->wrong + halves[in_place ? 1 : 0]->nccl_wrong;
        }
        if (comm_.rank() == 0) print_line(c, halves);
      }
    }
    return wrong;
  }

 private:
  [[nodiscard]] Places places(const Case& c) const {
    float* const whole = receive_.data();
    if (!c.in_place) return {send_.data(), whole};
    float* const own = whole + static_cast<std::size_t>(c.rank) * c.block();
    switch (c.operation) {
      case Operation::all_gather:
      case Operation::gather:
        return {own, whole};
      case Operation::reduce_scatter:
      case Operation::scatter:
        return {whole, own};
      default:
        return {whole, whole};
    }
  }

  /// Spoils what is received and writes what is sent.
  void prepare(const Case& c) {
    const Places at = places(c);
    distx::cuda::detail::check(cudaMemsetAsync(receive_.data(), 0xFF, c.bytes(), stream_.native_handle()),
                               "cudaMemsetAsync");
    host_.resize(c.sends());
    for (std::size_t i = 0; i < host_.size(); ++i) host_[i] = value(c.rank, i);
    distx::copy(stream_, Span<float, Cuda>(at.send, host_.size()), Span<const float>(host_));
    stream_.synchronize();
  }
  [[nodiscard]] double wrong(const Case& c) {
    host_.resize(c.receives());
    distx::copy(stream_, Span<float>(host_), Span<const float, Cuda>(places(c).receive, host_.size()));
    stream_.synchronize();
    double wrong = 0;
    for (std::size_t i = 0; i < host_.size(); ++i)
      if (host_[i] != expected_.at(c, i)) ++wrong;
    return wrong;
  }

  void by_distx(const Case& c, int calls) {
    const Places at = places(c);
    for (int i = 1; i < calls; ++i) start(comm_, c, at).wait(comm_.stream());
    start(comm_, c, at).wait();
  }
  void by_nccl(const Case& c, int calls) {
    const Places at = places(c);
    for (int i = 0; i < calls; ++i) enqueue(plain_.native_handle(), stream_.native_handle(), c, at);
    stream_.synchronize();
  }
  template <class F>
  double seconds_a_call(F&& run) {
    if (how_.warmup > 0) run(how_.warmup);
    distx::barrier(comm_);
    const auto begin = std::chrono::steady_clock::now();
    run(how_.iterations);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / how_.iterations;
  }

  Half measured(const Case& c) {
    const auto distx_runs = [&](int calls) { by_distx(c, calls); };
    const auto nccl_runs = [&](int calls) { by_nccl(c, calls); };
    const bool beside = nccl_does(c.operation, c.in_place);
    const auto rounds = static_cast<std::size_t>(how_.rounds);
    std::vector<double> seconds(2 * rounds);
    prepare(c);
    for (std::size_t round = 0; round < rounds; ++round)
      for (std::size_t turn = 0; turn < 2; ++turn) {
        // They alternate in going first, so that neither always finds the other's caches.
        const bool own = (round + turn) % 2 == 0;
        if (own)
          seconds[round] = seconds_a_call(distx_runs);
        else if (beside)
          seconds[rounds + round] = seconds_a_call(nccl_runs);
      }
    // In-place results have been summed repeatedly, so one more call is checked.
    std::vector<double> errors(2);
    prepare(c);
    by_distx(c, 1);
    errors[0] = wrong(c);
    if (beside) {
      prepare(c);
      by_nccl(c, 1);
      errors[1] = wrong(c);
    }
    everywhere(seconds, distx::max);
    everywhere(errors, distx::sum);
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(rounds);
    Half half{.seconds = median({seconds.begin(), middle}), .wrong = errors[0], .nccl_wrong = errors[1]};
    if (!beside) return half;
    half.nccl_seconds = median({middle, seconds.end()});
    std::vector<double> ratios;
    for (std::size_t round = 0; round < rounds; ++round) ratios.push_back(seconds[rounds + round] / seconds[round]);
    half.ratio = median(ratios);
    return half;
  }
  template <class Op>
  void everywhere(std::vector<double>& values, Op op) {
    const distx::Buffer<double, Cuda> there(values.size());
    distx::copy(stream_, there.span(), Span<const double>(values));
    distx::all_reduce(comm_, there, op);
    distx::copy(stream_, Span<double>(values), there.span());
    stream_.synchronize();
  }

  void print_head() const {
    cudaDeviceProp properties{};
    distx::cuda::detail::check(cudaGetDeviceProperties(&properties, comm_.device()), "cudaGetDeviceProperties");
    int version = 0;
    check(ncclGetVersion(&version), "ncclGetVersion");
    std::printf(
        "# distx on NCCL %d, %d ranks, rank 0 on %s\n"
        "# time: mean of %d started calls on one stream and one wait, after %d to warm up; the maximum over the ranks; "
        "median of %d rounds\n"
        "# size, count, algbw and busbw: as nccl-tests define them; NCCL: the same calls made directly, in turns; "
        "x: that time over distx's, median of the rounds; N/A: there is no such call\n",
        version, comm_.size(), properties.name, how_.iterations, how_.warmup, how_.rounds);
  }
  static void print_columns(Operation operation) {
    std::printf("\n# %s%s\n# %55s %39s %39s %35s\n", std::string(name_of(operation)).c_str(),
                operation == Operation::send_recv ? ", each to the next" : "", "", "out-of-place", "in-place",
                "NCCL: out-of-place, in-place");
    constexpr const char* columns = "# %11s %12s %9s %9s %9s %10s %9s %9s %8s %10s %9s %9s %8s %10s %6s %10s %6s\n";
    std::printf(columns, "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw",
                "busbw", "#wrong", "time", "x", "time", "x");
    std::printf(columns, "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)",
                "", "(us)", "", "(us)", "");
  }
  static void print_line(const Case& c, const std::array<std::optional<Half>, 2>& halves) {
    std::printf("  %11zu %12zu %9s %9s %9d", c.bytes(), has_blocks(c.operation) ? c.block() : c.whole, "float",
                reduces(c.operation) ? "sum" : "none", has_root(c.operation) ? root : -1);
    for (const auto& half : halves) {
      if (!half) {
        std::printf(" %10s %9s %9s %8s", "N/A", "N/A", "N/A", "N/A");
        continue;
      }
      const double bandwidth = static_cast<double>(c.bytes()) / half->seconds / 1e9;
      std::printf(" %10.2f %9.2f %9.2f %8.0f", half->seconds * 1e6, bandwidth,
                  bandwidth * bus_factor(c.operation, c.ranks), half->wrong);
    }
    for (const auto& half : halves) {
      if (half && half->nccl_seconds > 0)
        std::printf(" %10.2f %6.3f", half->nccl_seconds * 1e6, half->ratio);
      else
        std::printf(" %10s %6s", "N/A", "N/A");
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  const NcclTable& how_;
  distx::CudaStream stream_;
  distx::NcclCommunicator comm_;
  Expected expected_;
  distx::Buffer<float, Cuda> send_, receive_;
  distx::nccl::detail::nccl_unique_comm plain_;
  std::vector<float> host_;
};

}  // namespace

int print_nccl_table(distx::AnyConnector& connector, const NcclTable& table) {
  const auto visible = distx::all_gather_values(connector, distx::cuda::device_count());
  if (std::all_of(visible.begin(), visible.end(), [](int count) { return count == 0; })) {
    if (connector.rank() == 0) std::printf("skipped: %s\n", distx::cuda::why_no_gpu().c_str());
    return 77;
  }
  // NCCL lets ranks share a GPU where this variable makes different machines of them: tools/ranks --one-gpu.
  distx::cuda::pick_device(connector, {.share = std::getenv("NCCL_HOSTID") != nullptr});
  const double wrong = Table(connector, table).print();
  if (wrong == 0) return 0;
  if (connector.rank() == 0) std::fprintf(stderr, "%.0f elements were wrong, by distx or by NCCL itself\n", wrong);
  return 1;
}

}  // namespace timing
