// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/mman.h>
#include <sys/wait.h>

#include <functional>
#include <iostream>

#include "distx/distx.hpp"
#include "distx/posix/mapping.hpp"
#include "distx/shm.hpp"

// Ranks that are processes forked by the test, so that a test can kill them.
namespace test {

/// The state through which forked ranks connect: memory that was mapped before the fork.
struct Board {
  static constexpr std::size_t block_bytes = 4096;
  struct alignas(64) Rank {
    std::atomic<std::uint64_t> arrived{0};
    std::byte block[block_bytes];
  };
  Rank ranks[24];
  std::atomic<int> steps{0};  // a progress counter for tests
};

class ForkedConnector {
 public:
  ForkedConnector(Board& board, int rank, int size) : board_(&board), rank_(rank), size_(size) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] int local_rank() const noexcept { return rank_; }
  [[nodiscard]] int local_size() const noexcept { return size_; }
  [[nodiscard]] int root_rank() const noexcept { return 0; }
  void barrier() {
    const auto now = ++at(rank_).arrived;
    for (int r = 0; r < size_; ++r)
      if (distx::detail::wait_until(
              std::chrono::minutes(1), [&] { return at(r).arrived.load() >= now; },
              [&] { return stop_ != nullptr && *stop_ != 0; }) != distx::detail::WaitEnd::ready)
        throw distx::TimeoutError("a forked rank has not arrived");
  }
  /// Waits throw once this is not 0, for a rank that will not join.
  void stop_when(const std::atomic<int>& stop) noexcept { stop_ = &stop; }
  void broadcast(std::span<std::byte> bytes, int root) {
    if (rank_ == root) std::copy(bytes.begin(), bytes.end(), at(root).block);
    barrier();
    if (rank_ != root) std::copy_n(at(root).block, bytes.size(), bytes.begin());
    barrier();
  }
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    if (send.size() > Board::block_bytes) throw distx::MismatchError("too long for the board");
    std::copy(send.begin(), send.end(), at(rank_).block);
    barrier();
    for (int r = 0; r < size_; ++r)
      std::copy_n(at(r).block, send.size(), receive.begin() + static_cast<std::ptrdiff_t>(send.size()) * r);
    barrier();
  }

 private:
  Board::Rank& at(int r) const { return board_->ranks[r]; }

  Board* board_;
  int rank_;
  int size_;
  const std::atomic<int>* stop_ = nullptr;
};

/// Runs `body(connector, board)` in `ranks` new processes and returns, for each, the result of `body`, or 1000 plus the
/// signal that killed it.
inline std::vector<int> forked(int ranks, const std::function<int(ForkedConnector&, Board&)>& body) {
  void* const memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for the board");
  const auto mapping = distx::detail::posix::Mapping::from_native_handle({memory, sizeof(Board)});
  auto& board = *new (memory) Board;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = ::fork();
    if (process == 0) {
      int status = 99;
      try {
        ForkedConnector connector(board, rank, ranks);
        status = body(connector, board);
      } catch (const std::exception& error) {
        std::cerr << "rank " << rank << ": " << error.what() << std::endl;
      }
      ::_exit(status);
    }
    processes.push_back(process);
  }
  std::vector<int> all;
  for (const pid_t process : processes) {
    int status = 0;
    const auto ended = [&] { return ::waitpid(process, &status, WNOHANG) == process; };
    if (distx::detail::wait_until(std::chrono::minutes(1), ended, [] { return false; }) !=
        distx::detail::WaitEnd::ready) {
      ::kill(process, SIGKILL);
      ::waitpid(process, &status, 0);
    }
    all.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
  }
  return all;
}

}  // namespace test
