// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <filesystem>
#include <memory>

#include "distx/connect/connect.hpp"

namespace distx::inline DISTX_ABI {

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
/// earlier job are never used; the last rank to leave, also after an error, removes this job's files. If each process
/// of a job has left or has ended on this host, as by SIGKILL, rank 0 of the next job in the folder removes its files;
/// those of a job that a process of another host has not left stay.
/// In a process that is forked from a rank's, calls throw InvalidState, and the destructor does nothing.
///
/// Any user that can write to the folder could take part in the job, so the folder must belong to the user that runs it
/// and be writable for nobody else. Rank 0 makes it with mode 0700 if there is none; files in it have mode 0600.
class FileConnector : public detail::ErasedConnector {
 public:
  /// Joins the other ranks in `folder`. Collective; blocks until all ranks have joined.
  ///
  /// @param rank  in [0, size)
  /// @param size  the number of ranks, the same on every rank; at most 65536
  /// @throws ConnectError if the rank or the size is invalid, the ranks' sizes differ, two processes have one rank,
  ///         another job uses the folder, or the folder cannot be used or is open to other users
  /// @throws TimeoutError naming the missing ranks; RankFailure if a rank's process exits
  FileConnector(const std::filesystem::path& folder, int rank, int size, const FileConnectorOptions& options = {});
  /// Joins the job that runs in `folder`, once its ranks call `grow`. Blocks until then.
  ///
  /// The new ranks follow those of the job, in any order.
  /// @throws ConnectError if the job ends, or does not admit this process before the deadline
  /// @throws RankFailure if rank 0 exits while it admits this process
  [[nodiscard]] static FileConnector join(const std::filesystem::path& folder,
                                          const FileConnectorOptions& options = {});
  FileConnector(FileConnector&&) noexcept = default;
  FileConnector& operator=(FileConnector&&) noexcept = default;

  /// Returns a connector of the surviving ranks, as `AnyConnector::shrink` describes. The end of a process of
  /// another host may be noticed at the deadline only.
  [[nodiscard]] FileConnector shrink(Timeout deadline = default_deadline) {
    return FileConnector(self_->shrink(deadline));
  }
  /// Returns a connector of these ranks and of the processes that wait to join, as `AnyConnector::grow` describes.
  [[nodiscard]] FileConnector grow() { return FileConnector(self_->grow()); }

 private:
  explicit FileConnector(std::shared_ptr<detail::VirtualConnector> group) noexcept
      : ErasedConnector(std::move(group)) {}
};

static_assert(Connector<FileConnector> && HasFailureChannel<FileConnector>);

namespace detail::file {

/// Joins the ranks that DISTX_FILE, DISTX_RANK and DISTX_SIZE describe.
[[nodiscard]] AnyConnector connect_in_folder();
/// Joins the ranks of a URL: file:///folder?rank=0&size=4.
[[nodiscard]] AnyConnector connect_by_url(const ConnectUrl& url);

}  // namespace detail::file

}  // namespace distx::inline DISTX_ABI
