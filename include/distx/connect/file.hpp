// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/connect/file/world.hpp"
#include "distx/connect/self.hpp"

namespace distx {

struct FileConnectorOptions {
  /// How long its making, and every call, waits for the other ranks.
  Timeout deadline = default_deadline;
};

/// Ranks that are processes and meet in a folder, on one machine or on a file system that several machines share.
///
/// It needs nothing but that folder, and is meant for control messages: a call takes about a millisecond. A rank whose
/// process ends without letting its connector go ends every wait of the others on its machine, and through them of all,
/// at once in a RankFailure; one that lets it go while unwinding, in a RevokedError. What an earlier run has left in
/// the folder is never mistaken for this run's; the last rank to leave takes this run's files away.
class FileConnector {
 public:
  /// Meets the other ranks in `folder`, which rank 0 makes where there is none. Collective.
  /// @throws ConnectError unless all have the same size, each a rank of its own, and the folder to themselves;
  ///         TimeoutError that names the missing ranks; RankFailure
  FileConnector(const std::filesystem::path& folder, int rank, int size, const FileConnectorOptions& options = {})
      : world_(std::make_shared<file::World>(folder, checked(rank, size), size, options.deadline)),
        local_rank_(world_->neighbours_before(rank)),
        local_size_(world_->neighbours_before(size)) {}
  FileConnector(FileConnector&&) noexcept = default;
  FileConnector& operator=(FileConnector&&) noexcept = default;

  [[nodiscard]] int rank() const noexcept { return world_->rank(); }
  [[nodiscard]] int size() const noexcept { return world_->size(); }
  /// Among the ranks whose machines have the same name and have been started once.
  [[nodiscard]] int local_rank() const noexcept { return local_rank_; }
  [[nodiscard]] int local_size() const noexcept { return local_size_; }
  [[nodiscard]] int root_rank() const noexcept { return 0; }

  /// @throws MismatchError on every rank where the ranks make different calls; TimeoutError that names the missing
  ///         ranks; RankFailure, RevokedError when another rank has ended; an Error where the folder is gone. The same
  ///         for the other calls
  void barrier() { (void)call("barrier", ""); }

  /// @throws MismatchError on every rank where the ranks pass different roots or numbers of bytes
  void broadcast(std::span<std::byte> bytes, int root) {
    detail::check_control_root(root, rank(), size());
    const auto terms = " from " + std::to_string(root) + " of " + std::to_string(bytes.size()) + " bytes";
    const auto said = call("broadcast", terms, rank() == root ? bytes : std::span<std::byte>());
    const auto sent = std::as_bytes(std::span(said[static_cast<std::size_t>(root)].bytes));
    std::copy(sent.begin(), sent.end(), bytes.begin());
  }

  /// @throws MismatchError on every rank where the ranks pass different numbers of bytes
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    detail::check_control_gather(send.size(), receive.size(), rank(), size());
    auto place = receive.begin();
    for (const auto& said : call("all_gather", " of " + std::to_string(send.size()) + " bytes", send))
      place = std::transform(said.bytes.begin(), said.bytes.end(), place, [](char byte) { return std::byte(byte); });
  }

  /// They also tell of a rank that has ended as no rank should. What keeps them keeps the rank from leaving.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const noexcept { return world_; }

 private:
  static int checked(int rank, int size) {
    if (rank < 0 || rank >= size)
      throw ConnectError("there is no rank " + std::to_string(rank) + " of " + std::to_string(size) +
                             ": ranks are 0 to one less than their number (DISTX_RANK, DISTX_SIZE)",
                         {.operation = "connect", .backend = "file"});
    return rank;
  }

  /// What every rank has sent, once all are known to make the same call, in the same terms.
  std::vector<file::World::Said> call(std::string_view operation, const std::string& terms,
                                      std::span<const std::byte> bytes = {}) {
    const auto context = world_->where(operation);
    auto said = world_->exchange({std::string(operation) + terms, text_of(bytes)}, context);
    for (std::size_t other = 1; other < said.size(); ++other)
      if (said[other].sentence != said[0].sentence)
        throw MismatchError(
            "rank 0 calls " + said[0].sentence + ", rank " + std::to_string(other) + " " + said[other].sentence,
            context);
    return said;
  }
  static std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::shared_ptr<file::World> world_;
  int local_rank_;
  int local_size_;
};

static_assert(Connector<FileConnector> && HasFailureChannel<FileConnector>);

}  // namespace distx
