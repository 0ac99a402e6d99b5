#include "tests/layouts/mask_oracles.hpp"

#include <algorithm>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace ringlab::mask_oracles {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
    return parts;
}

/// Lengths as they are typed: "2,3x2" is 2, 3, 3.
std::vector<Token> lengths_of(const std::string& text) {
    std::vector<Token> lengths;
    for (const auto& item : split(text, ',')) {
        const auto parts = split(item, 'x');
        lengths.insert(lengths.end(), parts.size() == 2 ? std::stoul(parts[1]) : 1, std::stoll(parts.at(0)));
    }
    return lengths;
}

/// A number for each token of a sequence.
class PerToken {
public:
    void append(Token tokens, Token value) { values_.insert(values_.end(), static_cast<std::size_t>(tokens), value); }
    Token operator[](Token token) const { return values_.at(static_cast<std::size_t>(token)); }
    void set(Token token, Token value) { values_.at(static_cast<std::size_t>(token)) = value; }

private:
    std::vector<Token> values_;
};

/// The number, from 0, of each token's part, where parts of these lengths follow each other.
PerToken parts_of(const std::vector<Token>& lengths) {
    PerToken part;
    Token number = 0;
    for (const auto length : lengths) part.append(length, number++);
    return part;
}

/// Lengths of random parts that make up the sequence.
std::string random_lengths(Random& random, Token tokens) {
    const auto equal = pick(random, 1, tokens);
    if (tokens % equal == 0 && pick(random, 0, 1) == 0)
        return std::to_string(equal) + "x" + std::to_string(tokens / equal);
    std::string text;
    for (auto left = tokens; left > 0;) {
        const auto length = pick(random, 1, left);
        left -= length;
        text += std::to_string(length) + (left > 0 ? "," : "");
    }
    return text;
}

std::string no_arguments(Random&, Token) { return ""; }

std::string random_spec(const std::pair<const std::string, Oracle>& mask, Random& random, Token tokens) {
    const auto arguments = mask.second.random_arguments(random, tokens);
    return mask.first + (arguments.empty() ? "" : ":" + arguments);
}

}  // namespace

Joined::Joined(const std::string& spec, Token tokens) : first_(static_cast<std::size_t>(tokens), tokens) {
    for (const auto& text : split(spec, '+')) {
        const auto colon = std::min(text.find(':'), text.size());
        const auto arguments = text.substr(std::min(colon + 1, text.size()));
        terms_.push_back(oracles().at(text.substr(0, colon)).term(arguments, tokens));
        sink_ = std::max(sink_, terms_.back().sink);
    }
    for (Token row = 0; row < tokens; ++row)
        for (Token key = tokens; key-- > 0;)
            if (all_see(row, key)) first_[static_cast<std::size_t>(row)] = key;
}

bool Joined::all_see(Token row, Token key) const {
    return std::ranges::all_of(terms_, [&](const Term& term) { return term.sees(row, key); });
}

bool Joined::is_padding(Token token) const {
    return std::ranges::any_of(terms_, [&](const Term& term) { return term.is_padding(token); });
}

bool Joined::sees(Token row, Token key) const {
    if (is_padding(row) || is_padding(key)) return false;
    const auto first = first_[static_cast<std::size_t>(row)];
    const bool sees_something = first < static_cast<Token>(first_.size());
    return all_see(row, key) || (sees_something && key < sink_ && key < first);
}

std::string random_join(Random& random, Token tokens, int most) {
    std::string spec;
    for (auto terms = pick(random, 1, most); terms > 0; --terms) {
        const auto mask = std::next(oracles().begin(), pick(random, 0, static_cast<Token>(oracles().size()) - 1));
        spec += (spec.empty() ? "" : "+") + random_spec(*mask, random, tokens);
    }
    return spec;
}

std::vector<std::string> mask_examples(Token tokens) {
    std::vector<std::string> specs;
    for (const auto& mask : oracles()) {
        Random random(7);  // of each mask's own, so that a new mask does not change the others
        specs.push_back(random_spec(mask, random, tokens));
    }
    return specs;
}

Token pick(Random& random, Token low, Token high) {
    return low + static_cast<Token>(random() % static_cast<std::uint64_t>(high - low + 1));
}

const std::map<std::string, Oracle>& oracles() {
    static const std::map<std::string, Oracle> all{
        {"block-causal",
         {"segments see themselves and every earlier segment, as frames of a video do (add documents: for several "
          "videos)",
          random_lengths,
          [](const std::string& arguments, Token) {
              const auto segment = parts_of(lengths_of(arguments));
              return Term{.sees = [=](Token row, Token key) { return segment[key] <= segment[row]; }};
          }}},
        {"causal",
         {"row q sees keys 0..q", no_arguments,
          [](const std::string&, Token) { return Term{.sees = [](Token row, Token key) { return key <= row; }}; }}},
        {"chunks",
         {"chunks of SIZE tokens, the last one of the rest; a row sees all of its own chunk (add causal+ for Llama 4's "
          "local "
          "layers)",
          [](Random& random, Token tokens) { return std::to_string(pick(random, 1, tokens + 1)); },
          [](const std::string& arguments, Token) {
              const auto size = std::stoll(arguments);
              return Term{.sees = [=](Token row, Token key) { return row / size == key / size; }};
          }}},
        {"documents",
         {"packed documents: a row sees all of its own document (add causal+ to see only its past)", random_lengths,
          [](const std::string& arguments, Token) {
              const auto document = parts_of(lengths_of(arguments));
              return Term{.sees = [=](Token row, Token key) { return document[row] == document[key]; }};
          }}},
        {"full", {"every row sees every key", no_arguments, [](const std::string&, Token) { return Term(); }}},
        {"padded-segments",
         {"block-causal segments of ROOM tokens, of which the first LEN are there and the rest is padding (LEN 0: "
          "all), as "
          "for images, language and actions of a vision-language-action model",
          [](Random& random, Token tokens) {
              std::string text;
              for (auto left = tokens; left > 0;) {
                  const auto room = pick(random, 1, left);
                  text += (text.empty() ? "" : ",") + std::to_string(room);
                  if (pick(random, 0, 1) == 0) text += "/" + std::to_string(pick(random, 0, room));
                  left -= room;
              }
              return text;
          },
          [](const std::string& arguments, Token) {
              PerToken segment, there;
              Token number = 0;
              std::istringstream items(arguments);
              for (std::string item; std::getline(items, item, ',');) {
                  const auto slash = item.find('/');
                  const auto room = std::stoll(item),
                             length = slash == item.npos ? room : std::stoll(item.substr(slash + 1));
                  segment.append(room, number++);
                  there.append(length, 1);
                  there.append(room - length, 0);
              }
              return Term{.sees = [=](Token row, Token key) { return segment[key] <= segment[row]; },
                          .is_padding = [=](Token token) { return !there[token]; }};
          }}},
        {"prefix",
         {"prefix-LM: the first N tokens see each other, later ones see their past",
          [](Random& random, Token tokens) { return std::to_string(pick(random, 1, tokens)); },
          [](const std::string& arguments, Token) {
              const auto first = std::stoll(arguments);
              return Term{.sees = [=](Token row, Token key) { return row < first ? key < first : key <= row; }};
          }}},
        {"prefix-documents",
         {"packed prefix-LM documents: the first PREFIX tokens of each see each other, the other REST see their past "
          "in it",
          [](Random& random, Token tokens) {
              std::string text;
              for (auto left = tokens; left > 0;) {
                  const auto document = left < 4 || pick(random, 0, 2) == 0 ? left : pick(random, 2, left - 2);
                  const auto prefix = pick(random, 1, std::max<Token>(1, document - 1));  // one token alone is refused
                  text += (text.empty() ? "" : ",") + std::to_string(prefix) + "," + std::to_string(document - prefix);
                  left -= document;
              }
              return text;
          },
          [](const std::string& arguments, Token) {
              const auto part = parts_of(lengths_of(arguments));  // 2n: the prefix of document n, 2n + 1: its rest
              return Term{.sees = [=](Token row, Token key) {
                  const bool same_document = part[row] / 2 == part[key] / 2;
                  const bool in_prefix = part[row] == part[key] && part[row] % 2 == 0;
                  return same_document && (in_prefix || key <= row);
              }};
          }}},
        {"shared-question",
         {"a question and its answers, each causal: an answer sees the question and itself, no other answer",
          random_lengths,
          [](const std::string& arguments, Token) {
              const auto part = parts_of(lengths_of(arguments));  // 0: the question
              return Term{.sees = [=](Token row, Token key) {
                  return key <= row && (part[key] == 0 || part[key] == part[row]);
              }};
          }}},
        {"sink",
         {"added to other masks: a row also sees those of the first N keys, of any document, that come before all that "
          "it "
          "sees by the other masks together (padding counts as seen here). A sink never looks ahead, and a row that "
          "sees "
          "nothing by the other masks still sees nothing",
          [](Random& random, Token tokens) { return std::to_string(pick(random, 0, tokens + 2)); },
          [](const std::string& arguments, Token) { return Term{.sink = std::stoll(arguments)}; }}},
        {"valid",
         {"everything outside these half-open ranges is padding: it sees nothing and is not seen",
          [](Random& random, Token tokens) {
              std::string text;
              for (Token at = 0; at < tokens && (text.empty() || pick(random, 0, 1) == 0);) {
                  const auto begin = pick(random, at, std::min(tokens - 1, at + tokens / 3)),
                             end = pick(random, begin + 1, tokens);
                  text += (text.empty() ? "" : ",") + std::to_string(begin) + "-" + std::to_string(end);
                  at = end;
              }
              return text;
          },
          [](const std::string& arguments, Token tokens) {
              PerToken there;
              there.append(tokens, 0);
              std::istringstream ranges(arguments);
              for (std::string range; std::getline(ranges, range, ',');) {
                  const auto end = std::stoll(range.substr(range.find('-') + 1));
                  for (auto token = std::stoll(range); token < end; ++token) there.set(token, 1);
              }
              return Term{.is_padding = [=](Token token) { return !there[token]; }};
          }}},
        {"window",
         {"row q sees keys q-LEFT..q+RIGHT; RIGHT 0 makes it causal",
          [](Random& random, Token tokens) {
              const auto side = [&] {
                  return pick(random, 0, 9) == 0 ? std::numeric_limits<Token>::max() : pick(random, 0, tokens + 1);
              };
              const auto left = side(), right = pick(random, 0, 1) == 0 ? 0 : side();
              return std::to_string(left) + "," + std::to_string(right);
          },
          [](const std::string& arguments, Token) {
              const auto sides = lengths_of(arguments);
              return Term{
                  .sees = [=](Token row, Token key) { return row - key <= sides.at(0) && key - row <= sides.at(1); }};
          }}}};
    return all;
}

}  // namespace ringlab::mask_oracles
