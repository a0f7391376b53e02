// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#pragma once

#include <optional>

#include "text.hpp"

namespace examples {

/// The tokens that a GPT learns from: the characters of a text, or a file of tokens.
class Corpus {
 public:
  explicit Corpus(Text text) : text_(std::move(text)) {}
  explicit Corpus(TokenFile file) : file_(std::move(file)) {}

  [[nodiscard]] TokenSpan tokens() const { return file_ ? file_->tokens() : TokenSpan(text_.tokens); }
  /// Returns all tokens but the last tenth, which is never learnt from.
  [[nodiscard]] TokenSpan training() const { return tokens().subspan(0, tokens().size() - held_out_size()); }
  [[nodiscard]] TokenSpan held_out() const { return tokens().subspan(training().size(), held_out_size()); }
  /// Returns the word for a token in messages.
  [[nodiscard]] const char* unit() const { return file_ ? "tokens" : "characters"; }
  /// Returns the number of different tokens: the characters of the text, or one more than the largest token.
  [[nodiscard]] std::size_t vocabulary() const {
    if (!file_) return text_.vocabulary.size();
    Token largest = 0;
    for (std::size_t i = 0; i < tokens().size(); ++i) largest = std::max(largest, tokens()[i]);
    return std::size_t{largest} + 1;
  }

  /// @throws distx::DataError if a token is not below `vocabulary`
  void check(std::size_t vocabulary) const {
    for (std::size_t i = 0; i < tokens().size(); ++i)
      if (tokens()[i] >= vocabulary)
        throw distx::DataError("token " + std::to_string(tokens()[i]) + " at index " + std::to_string(i) +
                               " of --tokens is not among the " + std::to_string(vocabulary) +
                               " of the vocabulary: use the model's tokenizer, and the file's --token-type");
  }

  /// Returns the number of sequences to learn from: one that begins at each character; or, of a file of tokens, those
  /// that follow one another, so that each token is learnt once in an epoch.
  [[nodiscard]] std::size_t sequences(std::size_t length) const {
    return file_ ? (training().size() - 1) / length : training().size() - length;
  }
  /// Makes a batch of some of these sequences.
  [[nodiscard]] TextBatch batch(std::span<const std::size_t> numbers, std::size_t length) const {
    std::vector<std::size_t> places(numbers.begin(), numbers.end());
    if (file_)
      for (auto& place : places) place *= length;
    return examples::sequences(training(), places, length);
  }

  /// Returns the token that a sample begins after: an end of line, or the first token.
  [[nodiscard]] Token prompt() const {
    const auto line_end = text_.vocabulary.find('\n');
    return file_ ? tokens()[0] : static_cast<Token>(line_end == std::string::npos ? 0 : line_end);
  }
  /// Returns the characters of a text, or the tokens as numbers.
  [[nodiscard]] std::string to_string(std::span<const Token> sample) const {
    std::string characters;
    for (const Token token : sample) {
      if (file_)
        characters += (characters.empty() ? "" : " ") + std::to_string(token);
      else
        characters.push_back(text_.vocabulary[token]);
    }
    return characters;
  }

 private:
  [[nodiscard]] std::size_t held_out_size() const { return tokens().size() / 10; }

  Text text_;
  std::optional<TokenFile> file_;
};

}  // namespace examples
