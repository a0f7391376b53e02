// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "connect/connectors.hpp"
#include "distx/connect/file/detail/file_transport.hpp"
#include "distx/connect/file/detail/rendezvous.hpp"

// Ranks in a folder, each a thread of the test with its own connector.
namespace test {

/// A new folder for this user alone; removed at the end.
class NewFolder {
 public:
  NewFolder()
      : path_(std::filesystem::temp_directory_path() / ("distx-test-" + distx::detail::posix::random_name(32))) {
    distx::detail::file::Folder::make(path_);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

/// Runs `body(rank)` in a thread for each rank; returns the message of what each threw, empty if nothing.
inline std::vector<std::string> each(int ranks, const std::function<void(int)>& body) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        messages[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  threads.clear();
  return messages;
}

inline std::vector<std::string> each_in(const std::filesystem::path& folder, int ranks,
                                        const std::function<void(distx::FileConnector&)>& body,
                                        distx::Timeout deadline = std::chrono::seconds(60)) {
  return each(ranks, [&](int rank) {
    distx::FileConnector connector(folder, rank, ranks, {.deadline = deadline});
    body(connector);
  });
}

}  // namespace test
