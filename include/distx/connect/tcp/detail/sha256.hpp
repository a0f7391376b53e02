// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "distx/core/version.hpp"

namespace distx::inline DISTX_ABI::detail::tcp {

/// A SHA-256 value, and the size of every nonce and proof.
using Digest = std::array<std::uint8_t, 32>;

/// Computes SHA-256 (FIPS 180-4).
///
/// Written here because the challenge is all that needs it: a cryptographic library would be the one dependency of a
/// header-only library whose core has none.
class Sha256 {
 public:
  void add(const std::uint8_t* bytes, std::size_t count) noexcept {
    total_ += count;
    for (; count > 0; ++bytes, --count) {
      block_[filled_++] = *bytes;
      if (filled_ == block_.size()) compress();
    }
  }
  void add(std::string_view text) noexcept { add(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()); }
  void add(const Digest& digest) noexcept { add(digest.data(), digest.size()); }

  /// Returns the digest of everything added. Called once.
  [[nodiscard]] Digest finish() noexcept {
    const std::uint64_t bits = total_ * 8;
    constexpr std::uint8_t one = 0x80, zero = 0;
    add(&one, 1);
    while (filled_ != 56) add(&zero, 1);
    for (int shift = 56; shift >= 0; shift -= 8) {
      const auto byte = static_cast<std::uint8_t>(bits >> shift);
      add(&byte, 1);
    }
    Digest digest;
    for (std::size_t i = 0; i < digest.size(); ++i)
      digest[i] = static_cast<std::uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
  }

 private:
  void compress() noexcept {
    filled_ = 0;
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i)
      w[i] = std::uint32_t{block_[4 * i]} << 24 | std::uint32_t{block_[4 * i + 1]} << 16 |
             std::uint32_t{block_[4 * i + 2]} << 8 | std::uint32_t{block_[4 * i + 3]};
    for (std::size_t i = 16; i < w.size(); ++i) {
      const auto s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const auto s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const auto s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const auto t1 = h + s1 + ((e & f) ^ (~e & g)) + constants[i] + w[i];
      const auto s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const auto t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < mixed.size(); ++i) state_[i] += mixed[i];
  }

  /// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
  static constexpr std::array<std::uint32_t, 64> constants{
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> block_{};
  std::size_t filled_ = 0;
  std::uint64_t total_ = 0;
};

/// Returns the HMAC-SHA256 (RFC 2104) of a message.
[[nodiscard]] inline Digest hmac_sha256(std::string_view key, std::string_view message) noexcept {
  std::array<std::uint8_t, 64> block{};
  if (key.size() > block.size()) {
    Sha256 hash;
    hash.add(key);
    const Digest digest = hash.finish();
    std::copy(digest.begin(), digest.end(), block.begin());
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  const auto keyed = [&](std::uint8_t pad) {
    auto padded = block;
    for (auto& byte : padded) byte ^= pad;
    Sha256 hash;
    hash.add(padded.data(), padded.size());
    return hash;
  };
  Sha256 inner = keyed(0x36);
  inner.add(message);
  Sha256 outer = keyed(0x5c);
  outer.add(inner.finish());
  return outer.finish();
}

/// Compares in a time that does not depend on where the digests differ.
[[nodiscard]] inline bool equal_digests(const Digest& a, const Digest& b) noexcept {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace distx::inline DISTX_ABI::detail::tcp
