// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "standin/kernels.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>

#include "standin/arrays.hpp"
#include "standin/kernel.hpp"

using namespace standin;

TEST_CASE("the threads of a kernel have their indices") {
  const OwnStream stream;
  const Array<int> out(10);
  CHECK(kernels::number(stream, 2, 3, out.data(), 10) == cudaSuccess);
  stream.synchronize();
  CHECK(out.download() == std::vector<int>{0, 1, 2, 3, 4, 5, 0, 1, 2, 3});
  const Array<int> boxes(2 * 2 * 2 * 24);
  boxes.upload(std::vector<int>(boxes.size(), 0));
  CHECK(kernels::boxes(stream, {2, 2, 2}, {4, 3, 2}, boxes.data()) == cudaSuccess);
  stream.synchronize();
  const auto got = boxes.download();
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == static_cast<int>(i % 24));
}

TEST_CASE("a block's threads share memory and wait at barriers") {
  const OwnStream stream;
  for (const std::size_t threads : {1U, 7U, 32U, 100U, 1024U}) {
    std::vector<int> values(3 * threads);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i);
    const auto array = array_of(values);
    CHECK(kernels::reverse(stream, 3, static_cast<unsigned>(threads), array.data()) == cudaSuccess);
    stream.synchronize();
    const auto got = array.download();
    for (std::size_t i = 0; i < values.size(); ++i)
      CHECK(got[i] == static_cast<int>(i / threads * threads + threads - 1 - i % threads));
  }
}

TEST_CASE("a missing barrier gives wrong results in reversed and in random order") {
  const OwnStream stream;
  const std::vector<int> wanted(64, 7);
  for (const Order order : {Order::forward, Order::reverse, Order::random}) {
    thread_order(order);
    const Array<int> out(64);
    CHECK(kernels::unordered(stream, 64, out.data()) == cudaSuccess);
    stream.synchronize();
    CHECK((out.download() == wanted) == (order == Order::forward));
  }
  thread_order({});
}

TEST_CASE("memory that a block shares is poisoned when it begins") {
  const OwnStream stream;
  const Array<int> out(3);
  CHECK(kernels::unset(stream, 3, out.data()) == cudaSuccess);
  stream.synchronize();
  for (const int value : out.download()) CHECK(static_cast<unsigned>(value) == 0xCBCBCBCB);
}

TEST_CASE("vectors at misaligned addresses end the GPU's work") {
  const OwnStream stream;
  const Array<int> from(12), to(12);
  CHECK(kernels::vectors(stream, 2, from.data(), to.data() + 4) == cudaSuccess);
  stream.synchronize();
  for (const auto& [source, target] : {std::pair(1, 0), std::pair(0, 2)}) {
    static_cast<void>(kernels::vectors(stream, 2, from.data() + source, to.data() + target));  // may already fail
    CHECK(cudaStreamSynchronize(stream) == cudaErrorMisalignedAddress);
    CHECK(kernels::number(stream, 1, 1, to.data(), 1) == cudaErrorMisalignedAddress);
    CHECK(end_gpu_failure() == cudaErrorMisalignedAddress);
    static_cast<void>(cudaGetLastError());
  }
}

TEST_CASE("warps shuffle and vote as on a GPU") {
  const OwnStream stream;
  const Array<int> out(6 * 32);
  CHECK(kernels::shuffle(stream, out.data()) == cudaSuccess);
  stream.synchronize();
  const auto got = out.download();
  for (int lane = 0; lane < 32; ++lane) {
    const int* const mine = got.data() + 6 * lane;
    CHECK(mine[0] == 5);
    CHECK(mine[1] == (lane % 8 + 3 < 8 ? lane + 3 : lane));
    CHECK(mine[2] == (lane < 2 ? lane : lane - 2));
    CHECK(mine[3] == (lane ^ 1));
    CHECK(static_cast<unsigned>(mine[4]) == 0xAAAAAAAAU);
    CHECK(mine[5] == 1);
  }
}

TEST_CASE("sums by shuffles, shared memory and atomics equal those of a loop") {
  const OwnStream stream;
  std::vector<float> values(5000);
  double expected = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 100);
    expected += static_cast<double>(values[i]);
  }
  const auto array = array_of(values);
  for (const unsigned threads : {32U, 96U, 256U, 1024U}) {
    const auto total = array_of<double>({0});
    const auto greatest = array_of<unsigned long long>({0});
    CHECK(kernels::sum(stream, 4, threads, array.data(), 5000, total.data(), greatest.data()) == cudaSuccess);
    stream.synchronize();
    CHECK(total.download()[0] == expected);
    CHECK(std::bit_cast<double>(greatest.download()[0]) == 99);
  }
}

TEST_CASE("reduced-precision types convert as on a GPU") {
  const OwnStream stream;
  const auto in = array_of<__nv_bfloat16>({__nv_bfloat16(1.5F), __nv_bfloat16(-3.0F)});
  const Array<__half> out(2);
  CHECK(kernels::twice(stream, 2, in.data(), out.data()) == cudaSuccess);
  stream.synchronize();
  CHECK(static_cast<float>(out.download()[0]) == 3);
  CHECK(static_cast<float>(out.download()[1]) == -6);
}

TEST_CASE("launches that no GPU could run are rejected") {
  const Array<int> out(1);
  CHECK(kernels::number(nullptr, 0, 1, out.data(), 1) == cudaErrorInvalidConfiguration);
  CHECK(kernels::number(nullptr, 1, 0, out.data(), 1) == cudaErrorInvalidConfiguration);
  CHECK(kernels::number(nullptr, 1, 1025, out.data(), 1) == cudaErrorInvalidConfiguration);
  CHECK(kernels::boxes(nullptr, {1, 65536, 1}, 1, out.data()) == cudaErrorInvalidConfiguration);
  const OwnStream stream;
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  CHECK(kernels::number(stream, 1, 1, out.data(), 1) == cudaErrorInvalidResourceHandle);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  static_cast<void>(cudaGetLastError());
}
