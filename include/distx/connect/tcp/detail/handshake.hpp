// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <string_view>

#include "distx/connect/tcp/detail/sha256.hpp"
#include "distx/connect/tcp/detail/socket.hpp"
#include "distx/posix/random_name.hpp"
#include "distx/posix/small_file.hpp"

// How two ranks prove to each other that they know the token, before either reads anything else. All messages have a
// fixed size, and nothing is allocated for a stranger.
//
//   rank 0:  magic, nonce
//   rank:    magic, nonce, HMAC(token, "rank", both nonces)
//   rank 0:  HMAC(token, "root", both nonces), or zeros if the rank's proof is wrong
namespace distx::inline DISTX_ABI::detail::tcp {

/// With the byte order of frames, so that a host of another one is refused.
inline constexpr std::string_view magic = std::endian::native == std::endian::little ? "distx/3l" : "distx/3b";
inline constexpr std::size_t greeting_bytes = magic.size() + digest_bytes;
inline constexpr std::size_t answer_bytes = greeting_bytes + digest_bytes;

[[nodiscard]] inline std::string random_nonce() { return posix::random_name(digest_bytes); }
/// The reply to a wrong proof.
[[nodiscard]] inline std::string refusal() { return std::string(digest_bytes, '\0'); }

/// Returns the proof that the side of that role ("rank" or "root") knows the token.
[[nodiscard]] inline std::string proof(std::string_view token, std::string role, std::string_view root_nonce,
                                       std::string_view rank_nonce) {
  return hmac_sha256(token, role.append(root_nonce).append(rank_nonce));
}

[[nodiscard]] inline std::string greeting(std::string_view nonce) { return std::string(magic).append(nonce); }

/// Why a rank could not join.
struct JoinProblem {
  std::string text;
  bool is_final = false;  ///< another attempt would not help
};

/// A rank's side, over a socket that has just been connected. Blocks until `end`.
/// @return null if both sides have proven the token
[[nodiscard]] inline std::optional<JoinProblem> prove_as_rank(BufferedSocket& socket, std::string_view token,
                                                              Deadline::clock::time_point end) {
  const auto problem_of = [](int code) {
    return JoinProblem{code == ENODATA     ? "the connection was closed"
                       : code == ETIMEDOUT ? "the process there did not answer"
                                           : system_message(code)};
  };
  if (const int code = socket.exchange(greeting_bytes, end); code != 0) return problem_of(code);
  if (socket.take(magic.size()) != magic) return JoinProblem{"another program listens there", true};
  const auto root_nonce = socket.take(digest_bytes), nonce = random_nonce();
  socket.append(greeting(nonce) + proof(token, "rank", root_nonce, nonce));
  if (const int code = socket.exchange(digest_bytes, end); code != 0) return problem_of(code);
  const auto answer = socket.take(digest_bytes);
  if (answer == refusal()) return JoinProblem{"rank 0 has another token: set the same DISTX_TOKEN on every rank", true};
  if (!equal_digests(answer, proof(token, "root", root_nonce, nonce)))
    return JoinProblem{"the process there does not know the token", true};
  return std::nullopt;
}

/// Returns the token: DISTX_TOKEN, or the first line of the file that DISTX_TOKEN_FILE names; empty if neither is set.
/// @throws ConnectError if the file cannot be read, belongs to another user, or others may read it
[[nodiscard]] inline std::string token_from_environment() {
  auto token = variable("DISTX_TOKEN");
  const auto path = variable("DISTX_TOKEN_FILE");
  if (!token.empty() || path.empty()) return token;
  const auto refuse = [&](const std::string& problem) {
    Variables("tcp").refuse("DISTX_TOKEN_FILE '" + path + "' " + problem);
  };
  const auto file = posix::open_file(path.c_str(), O_RDONLY | O_NONBLOCK);
  struct stat status {};
  if (!file || ::fstat(file.native_handle(), &status) != 0) refuse("cannot be read (" + system_message(errno) + ")");
  if (!S_ISREG(status.st_mode)) refuse("is not a regular file");
  if (status.st_uid != ::geteuid()) refuse("belongs to another user");
  if ((status.st_mode & 077) != 0) refuse("is open to other users: set its mode to 0600");
  if (const int code = posix::read_rest(file, token); code != 0)
    refuse("cannot be read (" + system_message(code) + ")");
  token.erase(std::min(token.find('\n'), token.size()));
  if (token.empty()) refuse("has no token in its first line");
  return token;
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
