// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

// Helpers for the tests of the stand-in: arrays on a GPU, and ranks that are threads.
namespace standin {

/// An array on the current GPU.
template <class T>
class Array {
 public:
  explicit Array(std::size_t size) : size_(size) {
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, size * sizeof(T)) == cudaSuccess);
    data_ = static_cast<T*>(memory);
  }
  explicit Array(const std::vector<T>& values) : Array(values.size()) { upload(values); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { CHECK(cudaFree(data_) == cudaSuccess); }

  void upload(const std::vector<T>& values) const {
    REQUIRE(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  }
  [[nodiscard]] std::vector<T> download() const {
    std::vector<T> values(size_);
    REQUIRE(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::size_t size_;
  T* data_ = nullptr;
};

template <class T>
Array<T> array_of(const std::vector<T>& values) {
  return Array<T>(values);
}

/// A stream of the current GPU.
class OwnStream {
 public:
  explicit OwnStream(unsigned flags = cudaStreamNonBlocking) {
    REQUIRE(cudaStreamCreateWithFlags(&stream_, flags) == cudaSuccess);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() { CHECK(cudaStreamDestroy(stream_) == cudaSuccess); }
  operator cudaStream_t() const { return stream_; }  // NOLINT
  void synchronize() const { REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess); }

 private:
  cudaStream_t stream_ = nullptr;
};

class OwnEvent {
 public:
  explicit OwnEvent(unsigned flags = cudaEventDefault) {
    REQUIRE(cudaEventCreateWithFlags(&event_, flags) == cudaSuccess);
  }
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  ~OwnEvent() { CHECK(cudaEventDestroy(event_) == cudaSuccess); }
  operator cudaEvent_t() const { return event_; }  // NOLINT

 private:
  cudaEvent_t event_ = nullptr;
};

/// What must not happen would have happened by now.
inline void linger() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

/// Calls `run` for each of `size` ranks; each rank is a thread that uses the GPU of the same number.
inline void as_ranks(int size, const std::function<void(int rank)>& run) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      REQUIRE(cudaSetDevice(rank) == cudaSuccess);
      run(rank);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace standin
