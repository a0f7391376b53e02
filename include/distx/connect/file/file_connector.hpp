// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <memory>

#include "distx/connect/file/detail/file_group.hpp"
#include "distx/connect/self.hpp"

namespace distx {

/// Options of a FileConnector.
struct FileConnectorOptions {
  /// How long the constructor, and every call, waits for the other ranks.
  Timeout deadline = default_deadline;
};

/// A Connector of processes that share a folder, on one host or on a file system of several hosts.
///
/// It needs nothing but that folder, and is meant for control messages: a call takes about a millisecond. If a rank's
/// process exits without destroying its connector, every wait of the ranks on its host, and through them of all ranks,
/// ends at once with a RankFailure; if it destroys the connector while unwinding, with a RevokedError. Files of an
/// earlier job are never used; the last rank to leave, also after an error, removes this job's files. Files of a job
/// whose processes have all ended on this host without doing so, as by SIGKILL, are removed by rank 0 of the next job
/// in the folder; those of other hosts' processes stay.
/// In a process that is forked from a rank's, calls throw InvalidState, and the destructor does nothing.
///
/// Any user that can write to the folder could take part in the job, so the folder must belong to the user that runs it
/// and be writable for nobody else. Rank 0 makes it with mode 0700 if there is none; files in it have mode 0600.
class FileConnector {
 public:
  /// Joins the other ranks in `folder`. Collective; blocks until all ranks have joined.
  ///
  /// @param rank  in [0, size)
  /// @param size  the number of ranks, the same on every rank; at most 65536
  /// @throws ConnectError if the rank or the size is invalid, the ranks' sizes differ, two processes have one rank,
  ///         another job uses the folder, or the folder cannot be used or is open to other users
  /// @throws TimeoutError naming the missing ranks; RankFailure if a rank's process exits
  FileConnector(const std::filesystem::path& folder, int rank, int size, const FileConnectorOptions& options = {})
      : group_(detail::make_here<detail::file::FileGroup>(folder, checked(rank, size), size, options.deadline)),
        local_rank_(group_->count_on_host(rank)),
        local_size_(group_->count_on_host(size)) {}
  /// Joins the job that runs in `folder`, once its ranks call `grow`. Blocks until then.
  ///
  /// The new ranks follow those of the job, in any order.
  /// @throws ConnectError if the job ends, or does not admit this process before the deadline
  /// @throws RankFailure if rank 0 exits while it admits this process
  [[nodiscard]] static FileConnector join(const std::filesystem::path& folder,
                                          const FileConnectorOptions& options = {}) {
    auto joined = detail::file::JoinRequest(folder, options.deadline).join();
    return FileConnector(
        detail::make_here<detail::file::FileGroup>(options.deadline, joined.rank, std::move(joined.job)));
  }
  FileConnector(FileConnector&&) noexcept = default;
  FileConnector& operator=(FileConnector&&) noexcept = default;

  [[nodiscard]] int rank() const noexcept { return group_->rank(); }
  [[nodiscard]] int size() const noexcept { return group_->size(); }
  /// Returns the rank among those of this host: under one kernel, seeing each other's process ids.
  [[nodiscard]] int local_rank() const noexcept { return local_rank_; }
  [[nodiscard]] int local_size() const noexcept { return local_size_; }
  [[nodiscard]] int root_rank() const noexcept { return 0; }

  /// Blocks until every rank has entered the call. Collective.
  /// @throws MismatchError on every rank if the ranks make different calls; TimeoutError naming the missing ranks;
  ///         RankFailure or RevokedError if another rank has ended; ConnectError if the folder is gone. The same holds
  ///         for the other calls
  void barrier() { (void)call("barrier", ""); }

  /// Copies `bytes` of `root` to `bytes` on every rank. Collective.
  /// @throws MismatchError on every rank if the ranks pass different roots or numbers of bytes
  void broadcast(std::span<std::byte> bytes, int root) {
    detail::check_control_root(root, rank(), size());
    const auto terms = " of " + std::to_string(bytes.size()) + " bytes from rank " + std::to_string(root);
    const auto all = call("broadcast", terms, rank() == root ? bytes : std::span<std::byte>());
    const auto sent = std::as_bytes(std::span(all[static_cast<std::size_t>(root)].bytes));
    if (sent.size() != bytes.size()) throw truncated("broadcast", root);
    std::copy(sent.begin(), sent.end(), bytes.begin());
  }

  /// Writes the ranks' `send` to `receive`, in rank order. Collective; `receive` has `size()` times the bytes of
  /// `send`.
  /// @throws MismatchError on every rank if the ranks pass different numbers of bytes
  void all_gather(std::span<const std::byte> send, std::span<std::byte> receive) {
    detail::check_control_gather(send.size(), receive.size(), rank(), size());
    const auto all = call("all_gather", " of " + std::to_string(send.size()) + " bytes", send);
    auto next = receive.begin();
    for (std::size_t other = 0; other < all.size(); ++other) {
      if (all[other].bytes.size() != send.size()) throw truncated("all_gather", static_cast<int>(other));
      next = std::transform(all[other].bytes.begin(), all[other].bytes.end(), next,
                            [](char byte) { return std::byte(byte); });
    }
  }

  /// Returns a connector of the ranks that are left, as `AnyConnector::shrink` describes. The end of a process of
  /// another host may be noticed at the deadline only.
  [[nodiscard]] FileConnector shrink(Timeout deadline = default_deadline) {
    return FileConnector(group_->shrink(deadline));
  }
  /// Returns a connector of these ranks and of the processes that wait to join, as `AnyConnector::grow` describes.
  [[nodiscard]] FileConnector grow() {
    const auto context = group_->where("grow");
    group_->check_current(context);
    detail::file::Candidates candidates;
    if (rank() == 0) candidates = group_->candidates();
    const auto all = call("grow", "", std::as_bytes(std::span<const char>("1", candidates.empty() ? 0 : 1)));
    return FileConnector(all[0].bytes.empty() ? group_ : group_->grow(candidates, context));
  }

  /// Returns the ranks' failure channel, which also reports a rank that exited. Never null; while it is kept, this rank
  /// does not leave.
  [[nodiscard]] std::shared_ptr<FailureChannel> failure_channel() const noexcept { return group_; }

 private:
  explicit FileConnector(std::shared_ptr<detail::file::FileGroup> group)
      : group_(std::move(group)),
        local_rank_(group_->count_on_host(group_->rank())),
        local_size_(group_->count_on_host(group_->size())) {}

  static int checked(int rank, int size) {
    const ErrorContext context{.operation = "connect", .backend = "file"};
    if (size < 1 || size > detail::file::most_ranks)
      throw ConnectError("invalid size " + std::to_string(size) + " (DISTX_SIZE): must be in [1, " +
                             std::to_string(detail::file::most_ranks) + "]",
                         context);
    if (rank < 0 || rank >= size)
      throw ConnectError(
          "invalid rank " + std::to_string(rank) + " (DISTX_RANK): must be in [0, " + std::to_string(size) + ")",
          context);
    return rank;
  }

  /// Returns what every rank wrote, once all are known to make the same call.
  std::vector<detail::file::FileGroup::Contribution> call(std::string_view operation, const std::string& terms,
                                                          std::span<const std::byte> bytes = {}) {
    const auto context = group_->where(operation);
    auto all = group_->exchange(
        {std::string(operation) + terms, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}}, context);
    for (std::size_t other = 1; other < all.size(); ++other)
      if (all[other].call != all[0].call)
        throw MismatchError("rank 0 calls " + all[0].call + ", rank " + std::to_string(other) + " " + all[other].call,
                            context);
    return all;
  }
  ConnectError truncated(std::string_view operation, int other) const {
    return ConnectError("the file of rank " + std::to_string(other) +
                            " is truncated: the folder must be on a file "
                            "system that shows files whole once they are renamed",
                        group_->where(operation));
  }

  std::shared_ptr<detail::file::FileGroup> group_;
  int local_rank_;
  int local_size_;
};

static_assert(Connector<FileConnector> && HasFailureChannel<FileConnector>);

}  // namespace distx
