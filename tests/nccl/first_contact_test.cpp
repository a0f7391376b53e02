// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Programs that MPI allows, each as the first traffic of a communicator: NCCL alone fails, or hangs, in most of them.
#include <doctest/doctest.h>

#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "distx/comm/point_to_point.hpp"
#include "distx/comm/reductions.hpp"
#include "nccl/gpu_ranks.hpp"

namespace {

using distx::Cuda;

constexpr std::size_t few = 100;
constexpr std::size_t many = std::size_t{1} << 20;  // NCCL may use another algorithm for that size

template <class T>
distx::Buffer<T, Cuda> filled(std::size_t size, T value) {
  distx::Buffer<T, Cuda> buffer(size, distx::uninitialized);
  const std::vector<T> values(size, value);
  distx::cuda::detail::check(cudaMemcpy(buffer.data(), values.data(), size * sizeof(T), cudaMemcpyDefault),
                             "cudaMemcpy");
  return buffer;
}
template <class T>
void expect_last(const distx::Buffer<T, Cuda>& buffer, T wanted) {
  T last{};
  distx::cuda::detail::check(cudaMemcpy(&last, buffer.data() + buffer.size() - 1, sizeof(T), cudaMemcpyDefault),
                             "cudaMemcpy");
  if (last != wanted) throw std::runtime_error("got " + std::to_string(last) + ", wanted " + std::to_string(wanted));
}

}  // namespace

TEST_CASE("the first messages of two ranks may be started in any order" * gpu_ranks::needs_ranks(2)) {
  gpu_ranks::on_gpus(2, [](auto& comm) {
    const int peer = 1 - comm.rank();
    const auto mine = filled(few, comm.rank());
    auto got = filled(few, -1);
    if (comm.rank() == 0) {
      distx::send(comm, mine, peer);
      distx::receive(comm, got, peer);
    } else {
      auto received = distx::start_receive(comm, got, peer);
      auto sent = distx::start_send(comm, mine, peer);
      sent.wait();
      received.wait();
    }
    expect_last(got, peer);
  });
}

TEST_CASE("a first receive may be followed by a barrier that the sender enters first" * gpu_ranks::needs_ranks(2)) {
  gpu_ranks::on_gpus(2, [](auto& comm) {
    auto buffer = filled(few, comm.rank());
    if (comm.rank() == 0) {
      auto received = distx::start_receive(comm, buffer, 1);
      static_cast<void>(received.test());
      distx::barrier(comm);
      received.wait();
      expect_last(buffer, 1);
    } else {
      distx::barrier(comm);
      distx::send(comm, buffer, 0);
    }
  });
}

TEST_CASE("the first messages of three ranks may be a pipeline" * gpu_ranks::needs_ranks(3)) {
  gpu_ranks::on_gpus(3, [](auto& comm) {
    auto mine = filled(few, comm.rank());
    auto first = filled(few, -1), second = filled(few, -1);
    if (comm.rank() == 0) {
      auto to_1 = distx::start_send(comm, mine, 1);
      auto to_2 = distx::start_send(comm, mine, 2);
      to_1.wait();
      to_2.wait();
    } else if (comm.rank() == 1) {
      distx::receive(comm, first, 0);
      distx::send(comm, mine, 2);
      expect_last(first, 0);
    } else {
      distx::receive(comm, second, 1);
      distx::receive(comm, first, 0);
      expect_last(first, 0);
      expect_last(second, 1);
    }
  });
}

TEST_CASE("a first collective may be started before a message that it does not depend on" * gpu_ranks::needs_ranks(2)) {
  for (const std::size_t size : {few, many})
    gpu_ranks::on_gpus(2, [&](auto& comm) {
      auto values = filled(size, 1.0f);
      auto message = filled(few, comm.rank());
      if (comm.rank() == 0) {
        auto sum = distx::start_all_reduce(comm, values, distx::sum);
        distx::send(comm, message, 1);
        sum.wait();
      } else {
        distx::receive(comm, message, 0);
        distx::start_all_reduce(comm, values, distx::sum).wait();
        expect_last(message, 0);
      }
      expect_last(values, 2.0f);
    });
}

TEST_CASE("a thread in a first collective does not hold up the messages of another thread" *
          gpu_ranks::needs_ranks(2)) {
  const auto body = [&](auto& comm) {
    const auto reduce = [&] {
      const distx::cuda::DeviceGuard guard(comm.device());
      auto values = filled(many, 1.0f);
      distx::all_reduce(comm, values, distx::sum);
    };
    auto message = filled(few, comm.rank());
    if (comm.rank() == 0) {
      auto other = std::async(std::launch::async, reduce);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      distx::send(comm, message, 1);
      other.get();
    } else {
      distx::receive(comm, message, 0);
      reduce();
    }
  };
  gpu_ranks::on_gpus(2, body, {.check = distx::Check::off});  // a comparison would be ordered before the message
}

TEST_CASE("a thread in a blocking collective does not hold up the blocking calls of another thread" *
          gpu_ranks::needs_ranks(2)) {
  const auto body = [&](auto& comm) {
    const auto values = filled(many, 1.0f);
    const auto reduce = [&] {
      const distx::cuda::DeviceGuard guard(comm.device());
      distx::all_reduce(comm, values, distx::sum);
    };
    reduce();  // NCCL is connected for it, so the next one is on its stream at once
    const auto mine = filled(few, comm.rank());
    auto got = filled(few, -1);
    if (comm.rank() == 0) {
      auto other = std::async(std::launch::async, reduce);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // NCCL does not tell when its kernel runs
      distx::send(comm, mine, 1);
      distx::receive(comm, got, 1);
      distx::send_receive(comm, mine, 1, got, 1);
      other.get();
    } else {
      distx::receive(comm, got, 0);
      distx::send(comm, mine, 0);
      distx::send_receive(comm, mine, 0, got, 0);
      reduce();
    }
    expect_last(got, 1 - comm.rank());
  };
  gpu_ranks::on_gpus(2, body, {.check = distx::Check::off});
}
