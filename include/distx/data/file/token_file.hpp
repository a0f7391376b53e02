// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <concepts>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include "distx/core/error.hpp"
#include "distx/posix/mapping.hpp"

namespace distx::inline DISTX_ABI {

/// A file of token ids, one after another with the low byte first, of which any part is read without copies.
///
/// The file is mapped and may be larger than memory: pages are read when they are used, and dropped when memory is
/// short. It must not change while it is open. All functions may be called concurrently.
///
///     distx::TokenFile<std::uint16_t> text("train.bin");
///     distx::DistributedSampler sampler(text.windows(1025, 1024), comm, {.batch_size = 8});
///     distx::DataLoader loader(sampler, [&](std::size_t i) { return text.window(1024 * i, 1025); });
///
/// @tparam Token  std::uint16_t or std::uint32_t
template <class Token>
  requires std::same_as<Token, std::uint16_t> || std::same_as<Token, std::uint32_t>
class TokenFile {
  static_assert(std::endian::native == std::endian::little,
                "distx: token files have the low byte first, as this processor does not");

 public:
  /// @throws DataError if the file is absent, unreadable or empty, or its size is not a multiple of the token's
  explicit TokenFile(std::filesystem::path path) : path_(std::move(path)) {
    // A pipe without a writer would block.
    file_ = detail::posix::open_file(path_.c_str(), O_RDONLY | O_NONBLOCK);
    if (!file_) fail_system("open", errno);
    const auto status = inspect();
    if (!S_ISREG(status.st_mode)) fail_system("open", S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
    const auto bytes = static_cast<std::size_t>(status.st_size);
    if (bytes == 0) fail("is empty; write tokens into it");
    if (bytes % sizeof(Token) != 0)
      fail("has " + std::to_string(bytes) + " bytes, not a multiple of the " + std::to_string(sizeof(Token)) +
           " of a token; write it whole, or choose another type of token");
    mapping_ = detail::posix::map_file(file_, bytes, PROT_READ, MAP_SHARED);
    if (!mapping_) fail_system("map", errno);
    ::madvise(mapping_.native_handle().address, bytes, MADV_RANDOM);  // reading around a page would be wasted
  }
  TokenFile(TokenFile&&) noexcept = default;
  TokenFile& operator=(TokenFile&&) = delete;

  /// Returns the number of tokens.
  [[nodiscard]] std::size_t size() const noexcept { return mapping_.native_handle().bytes / sizeof(Token); }
  /// Returns all tokens, valid until the file is destroyed. A process that reads what was truncated receives SIGBUS.
  [[nodiscard]] std::span<const Token> tokens() const noexcept {
    return {static_cast<const Token*>(mapping_.native_handle().address), size()};
  }
  /// Returns the number of windows of `length` tokens that begin at 0, stride, 2 * stride, ….
  /// @pre length > 0 and stride > 0
  [[nodiscard]] std::size_t windows(std::size_t length, std::size_t stride) const noexcept {
    return length > size() ? 0 : (size() - length) / stride + 1;
  }
  /// Returns `length` tokens from `offset` on, and starts to read them. They are valid until the file is destroyed.
  /// @throws InvalidArgument if they are not all in the file
  /// @throws DataError if the file was truncated since it was opened. The check is made here: a process that reads what
  ///   is truncated later receives SIGBUS
  [[nodiscard]] std::span<const Token> window(std::size_t offset, std::size_t length) const {
    if (offset > size() || length > size() - offset)
      throw InvalidArgument("invalid window of " + std::to_string(length) + " tokens at " + std::to_string(offset) +
                                ": '" + path_.string() + "' has " + std::to_string(size()) + " tokens",
                            context());
    check_size();
    const auto tokens = this->tokens().subspan(offset, length);
    advise(tokens, MADV_WILLNEED);
    return tokens;
  }
  /// Reads the whole file, and drops what it has read.
  /// @throws DataError for a token that is not below `vocabulary`, with its position; or if the file was truncated
  void check(std::size_t vocabulary) const {
    constexpr std::size_t at_once = (std::size_t{16} << 20) / sizeof(Token);
    for (std::size_t offset = 0; offset < size(); offset += at_once) {
      const auto tokens = window(offset, std::min(at_once, size() - offset));
      const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](Token token) { return token >= vocabulary; });
      if (bad != tokens.end())
        fail("has the token " + std::to_string(*bad) + " at position " +
             std::to_string(offset + static_cast<std::size_t>(bad - tokens.begin())) + ", and the vocabulary has " +
             std::to_string(vocabulary) + " tokens; use the tokenizer's vocabulary and type of token");
      advise(tokens, MADV_DONTNEED);
    }
  }

 private:
  [[nodiscard]] static ErrorContext context() noexcept { return {.operation = "TokenFile"}; }
  [[noreturn]] void fail(const std::string& message) const {
    throw DataError("'" + path_.string() + "' " + message, context());
  }
  [[noreturn]] void fail_system(const char* action, int error) const {
    throw DataError("cannot " + std::string(action) + " '" + path_.string() + "' (" +
                        std::generic_category().message(error) + "); check the path and its permissions",
                    context(), error);
  }
  [[nodiscard]] struct ::stat inspect() const {
    struct ::stat status {};
    if (::fstat(file_.native_handle(), &status) != 0) fail_system("inspect", errno);
    return status;
  }
  void check_size() const {
    if (const auto bytes = static_cast<std::size_t>(inspect().st_size); bytes < mapping_.native_handle().bytes)
      fail("was truncated from " + std::to_string(mapping_.native_handle().bytes) + " to " + std::to_string(bytes) +
           " bytes while it is open; replace files by renaming a new one instead");
  }
  /// Advises the kernel on the pages of some tokens; a failure has no effect on what is read.
  static void advise(std::span<const Token> tokens, int advice) noexcept {
    static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(tokens.data());
    const auto first = begin / page * page;
    ::madvise(reinterpret_cast<void*>(first), begin + tokens.size_bytes() - first, advice);
  }

  std::filesystem::path path_;
  detail::posix::Descriptor file_;
  detail::posix::Mapping mapping_;
};

}  // namespace distx::inline DISTX_ABI
